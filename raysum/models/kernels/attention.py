"""Scaled dot-product attention, also with dropout on its weights on a CPU, where torch's fused kernel has none.

The weights exist for a few heads at a time and are made again in backward, the same dropout drawn from a generator of
their own, so that no [B, H, Q, T] array is kept. Measured in training steps of 4 examples, fp32, 2 threads, against
the same products through autograd: see the README.
"""

from collections.abc import Iterator
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from raysum.models.kernels.dropout import draw_keep, draw_seed, drop, rounded
from raysum.models.kernels.pieces import largest, pieces, recompute


def attend(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    mask: Tensor | None = None,
    causal: bool = False,
    dropout: float = 0.0,
    bias: Tensor | None = None,
) -> Tensor:
    """Scaled dot-product attention, [B, H, Q, dh] over [B, H, T, dh]; a row without keys gives zeros.

    ``mask`` broadcasts to [B, 1, Q, T]: all heads of an example have one. ``bias``, which broadcasts to [B, H, Q, T],
    is added to the scores.
    """
    if bias is None and (not dropout or query.device.type != "cpu"):
        return F.scaled_dot_product_attention(query, key, value, mask, dropout, causal)
    seed = draw_seed() if bias is None else 0
    if causal:
        mask = torch.ones(query.shape[-2], key.shape[-2], dtype=torch.bool, device=query.device).tril()
    if bias is not None:
        return _biased(query, key, value, mask, bias, dropout)
    if mask is not None:
        mask = mask[(None,) * (4 - mask.dim())]
        assert mask.shape[1] == 1, "all heads of an example have one mask"
    return _Dropped.apply(query, key, value, mask, dropout, seed)


def _biased(query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, bias: Tensor, dropout: float) -> Tensor:
    if mask is None:
        mask = torch.ones((), dtype=torch.bool, device=query.device)
    mask, bias = (one[(None,) * (4 - one.dim())] for one in (mask, bias))
    if torch.is_inference_mode_enabled():
        added = torch.where(mask, bias.float(), torch.finfo(torch.float32).min / 2).to(query.dtype)
        return F.scaled_dot_product_attention(query, key, value, added)
    parts = []
    for rows, _ in pieces([1] * len(query), query.shape[1] * query.shape[2] * key.shape[2], query.device):
        own = [one[rows] if len(one) > 1 else one for one in (query, key, value, mask, bias)]
        parts.append(recompute(partial(_weighted, dropout), *own, random=bool(dropout)))
    return torch.cat(parts)


def _weighted(dropout: float, *inputs: Tensor) -> Tensor:
    query, key, value, mask, bias = inputs
    scores = query @ key.transpose(-1, -2) * query.shape[-1] ** -0.5 + bias.float()
    return drop(masked_softmax(scores, mask), dropout).to(value.dtype) @ value


def masked_softmax(scores: Tensor, mask: Tensor) -> Tensor:
    """Softmax of the last axis in float32 where ``mask`` is true, 0 elsewhere and in rows without a true one."""
    weights = torch.where(mask, scores.float(), torch.finfo(torch.float32).min).softmax(-1)
    return weights * mask.any(-1, keepdim=True)


def split_heads(x: Tensor, heads: int, parts: int) -> tuple[Tensor, ...]:
    """[B, T, parts * D] -> ``parts`` views [B, H, T, dh]."""
    return x.unflatten(-1, (parts, heads, -1)).permute(2, 0, 3, 1, 4).unbind(0)


def merge_heads(x: Tensor) -> Tensor:
    """[B, H, T, dh] -> [B, T, D]."""
    return x.transpose(1, 2).flatten(2)


class _Dropped(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, rate: float, seed: int
    ) -> Tensor:
        flat = [part.reshape(-1, *part.shape[2:]) for part in (query, key, value)]
        ctx.save_for_backward(*flat, *([] if mask is None else [mask]))
        ctx.settings = query.shape[1], rate, seed
        context = torch.empty_like(flat[0])
        for rows, weights, keep in _weights(flat[0], flat[1], mask, *ctx.settings):
            context[rows] = torch.bmm(weights.mul_(keep).to(flat[2].dtype), flat[2][rows])
        return context.mul_(1 / (1 - rounded(rate))).view(query.shape)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        query, key, value, *masks = ctx.saved_tensors
        _, rate, _ = ctx.settings
        scale = query.shape[-1] ** -0.5
        shape = gradient.shape
        gradient = gradient.reshape(query.shape).to(query.dtype) * (1 / (1 - rounded(rate)))
        d_query, d_key, d_value = torch.empty_like(query), torch.empty_like(key), torch.empty_like(value)
        for rows, weights, keep in _weights(query, key, masks[0] if masks else None, *ctx.settings):
            d_weights = torch.bmm(gradient[rows], value[rows].transpose(1, 2)).float().mul_(keep)
            d_weights.sub_(torch.linalg.vecdot(weights, d_weights)[..., None]).mul_(weights)
            d_scores = d_weights.to(query.dtype)
            used = weights.mul_(keep).to(query.dtype)
            torch.bmm(used.transpose(1, 2), gradient[rows], out=d_value[rows])
            torch.bmm(d_scores, key[rows], out=d_query[rows])
            torch.bmm(d_scores.transpose(1, 2), query[rows], out=d_key[rows])
        d_query.mul_(scale)
        d_key.mul_(scale)
        parts = (part.view(*shape[:2], *part.shape[1:]) for part in (d_query, d_key, d_value))
        return (*parts, None, None, None)


def _weights(
    query: Tensor, key: Tensor, mask: Tensor | None, heads: int, rate: float, seed: int
) -> Iterator[tuple[slice, Tensor, Tensor]]:
    """Pieces of the B * H rows: their weights [C, Q, T] before dropout, in float32, and 1 where dropout keeps them."""
    count, queries, size = query.shape
    piece = max(1, largest(query.device) // (queries * key.shape[1]))
    bias = dead = None
    if mask is not None:
        lowest = torch.finfo(torch.float32).min / 2  # finite: a row may have no key
        bias = torch.zeros(mask.shape, dtype=query.dtype, device=query.device).masked_fill_(~mask, lowest)
        empty = ~mask.any(-1, keepdim=True)
        dead = empty if bool(empty.any()) else None
    for start in range(0, count, piece):
        rows = slice(start, min(start + piece, count))
        examples = torch.arange(rows.start, rows.stop, device=query.device) // heads
        added = query.new_zeros(1) if bias is None else bias[examples if len(bias) > 1 else slice(1), 0]
        scores = torch.baddbmm(added, query[rows], key[rows].transpose(1, 2), alpha=size**-0.5)
        weights = scores.softmax(-1, dtype=torch.float32)
        if dead is not None:
            weights = weights.masked_fill_(dead[examples if len(dead) > 1 else slice(1), 0], 0.0)
        yield rows, weights, draw_keep(weights.shape, rate, query.device, seed + start, torch.float32)
