"""PHT eq. 8-9: word attention inside each paragraph, summed over paragraphs by their weights.

Three exact forms exist: a context per paragraph and their weighted sum; one softmax inside paragraphs over all tokens,
weighted by paragraph, and one product with the values; a modified score. The second is used, by hand, a few examples
at a time, made again in backward: no [K, D, M] or [H, K, S] array of the whole batch exists. Measured forward and
backward on 8 examples of 30 paragraphs of 100 tokens, 140 targets, 4 heads of 64, fp32, 2 threads: 168 ms, against
254-335 ms for the same form through autograd, 344 ms for fused attention per paragraph, 126 ms for its products alone.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from raysum.models.kernels.attention import masked_softmax
from raysum.models.kernels.dropout import draw_keep, draw_seed, rounded
from raysum.models.kernels.pieces import pieces


def fuse(
    query: Tensor, key: Tensor, value: Tensor, share: Tensor, mask: Tensor, counts: Sequence[int], dropout: float = 0.0
) -> Tensor:
    """Weighted word contexts [B, H, Q, dh].

    query [B, H, Q, dh]; key and value [B, H, M * N, dh], paragraph after paragraph; share [B, Q, M] weights of the
    paragraphs, 0 at padding; mask [B, M * N]; counts [B] paragraphs of each example; dropout on the word weights.
    """
    seed = draw_seed() if dropout else 0
    return _Fusion.apply(query, key, value, share, mask, counts, dropout, seed)


def token_shares(query: Tensor, key: Tensor, share: Tensor, token_mask: Tensor) -> Tensor:
    """[B, Q, M, N]: the weight of every word in the contexts of :func:`fuse`, before dropout, mean over heads.

    query [B, H, Q, dh]; key [B, H, M * N, dh]; share [B, H or 1, Q, M]; token_mask [B, M, N]. One example at a time, to
    bound memory.
    """
    found = []
    for q, k, weights, mask in zip(query, key, share, token_mask, strict=True):
        scores = (q @ k.transpose(-1, -2) * q.shape[-1] ** -0.5).unflatten(-1, mask.shape)
        found.append((masked_softmax(scores, mask) * weights[..., None]).mean(0))
    return torch.stack(found)


@dataclass
class _Piece:
    """One piece of the batch: examples ``rows`` cut to their ``most`` paragraphs; C = rows * H."""

    rows: slice
    most: int
    query: Tensor  # [C, Q, dh]
    key: Tensor  # [C, most * N, dh]
    value: Tensor
    share: Tensor  # [rows, 1, Q, most, 1]
    weights: Tensor  # [rows, H, Q, most, N] inside paragraphs, before dropout, float32
    factor: Tensor | None  # the same shape: what dropout multiplies the weights by

    def flat(self, weights: Tensor) -> Tensor:
        """[rows, H, Q, most, N] -> [C, Q, most * N] in the type of the products."""
        return weights.flatten(3).flatten(0, 1).to(self.query.dtype)

    def used(self) -> Tensor:
        """The weights that the values get, [C, Q, most * N]; ``weights`` is overwritten."""
        weights = self.weights if self.factor is None else self.weights.mul_(self.factor)
        return self.flat(weights.mul_(self.share))


class _Fusion(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, *inputs: Any) -> Tensor:
        """``inputs``: those of :func:`fuse`, and a seed."""
        ctx.save_for_backward(*inputs[:5])
        ctx.settings = inputs[5:]
        context = torch.empty_like(inputs[0], memory_format=torch.contiguous_format)
        for piece in _pieces(*inputs):
            context[piece.rows] = torch.bmm(piece.used(), piece.value).view_as(context[piece.rows])
        return context

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        query, key, value, share, _ = ctx.saved_tensors
        scale = query.shape[-1] ** -0.5
        gradient = gradient.to(query.dtype)
        d_query = torch.empty_like(query, memory_format=torch.contiguous_format)
        d_key, d_value, d_share = torch.zeros_like(key), torch.zeros_like(value), torch.zeros_like(share)
        for piece in _pieces(*ctx.saved_tensors, *ctx.settings):
            d_context = gradient[piece.rows].flatten(0, 1)
            d_weights = torch.bmm(d_context, piece.value.transpose(1, 2)).view(piece.weights.shape).float()
            if piece.factor is not None:
                d_weights.mul_(piece.factor)
            inner = torch.linalg.vecdot(piece.weights, d_weights)[..., None]  # [rows, H, Q, most, 1]
            d_share[piece.rows, :, : piece.most] = inner.sum(1).squeeze(-1)
            d_scores = piece.flat(d_weights.sub_(inner).mul_(piece.weights).mul_(piece.share))
            place = (piece.rows, slice(None), slice(piece.key.shape[1]))
            d_value[place] = torch.bmm(piece.used().transpose(1, 2), d_context).view_as(d_value[place])
            d_key[place] = torch.bmm(d_scores.transpose(1, 2), piece.query).mul_(scale).view_as(d_key[place])
            d_query[piece.rows] = torch.bmm(d_scores, piece.key).mul_(scale).view_as(d_query[piece.rows])
        return d_query, d_key, d_value, d_share, None, None, None, None


def _pieces(*inputs: Any) -> Iterator[_Piece]:
    """The pieces with their weights; the same dropout each time, as each draws from a generator of its own."""
    query, key, value, share, mask, counts, dropout, seed = inputs
    heads, queries, size = query.shape[1:]
    length = key.shape[2] // share.shape[2]
    lowest = torch.finfo(torch.float32).min / 2  # finite, as whole paragraphs may be padding
    bias = torch.zeros_like(mask, dtype=query.dtype).masked_fill_(~mask, lowest)
    for rows, most in pieces(counts, heads * queries * length, query.device):
        cut = slice(most * length)
        examples = len(counts[rows])
        q, k, v = query[rows].flatten(0, 1), key[rows, :, cut].flatten(0, 1), value[rows, :, cut].flatten(0, 1)
        masked = bias[rows, None, cut].expand(-1, heads, -1).flatten(0, 1)[:, None]
        scores = torch.baddbmm(masked, q, k.transpose(1, 2), alpha=size**-0.5)
        weights = scores.view(examples, heads, queries, most, length).softmax(-1, dtype=torch.float32)
        factor = None
        if dropout:
            keep = draw_keep(weights.shape, dropout, query.device, seed + rows.start, torch.float32)
            factor = keep.mul_(1 / (1 - rounded(dropout)))
        yield _Piece(rows, most, q, k, v, share[rows, None, :, :most, None].float(), weights, factor)
