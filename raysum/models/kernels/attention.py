"""Scaled dot-product attention, also with dropout on its weights on a CPU, which torch's fused kernel lacks.

Weights exist for a few heads at a time and are recomputed in backward with the same dropout. No [B, H, Q, T] is kept.
"""

from collections.abc import Iterator
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from raysum.models.kernels.dropout import draw_keep, draw_seed, drop, rounded
from raysum.models.kernels.recomputation import by_chunks, max_elements


def attend(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    mask: Tensor | None = None,
    causal: bool = False,
    dropout: float = 0.0,
    bias: Tensor | None = None,
) -> Tensor:
    """Return the scaled dot-product attention [B, H, Q, dh]; rows without keys are 0.

    Queries are [B, H, Q, dh], keys and values [B, H, T, dh]. ``mask`` broadcasts to [B, 1, Q, T]: all heads of an
    example share it. ``bias`` broadcasts to [B, H, Q, T] and is added to the scores.
    """
    if bias is None and (not dropout or query.device.type != "cpu"):
        return F.scaled_dot_product_attention(query, key, value, mask, dropout, causal)
    if causal:
        mask = torch.ones(query.shape[-2], key.shape[-2], dtype=torch.bool, device=query.device).tril()
    mask = torch.ones(1, dtype=torch.bool, device=query.device) if mask is None else mask
    mask = mask[(None,) * (4 - mask.dim())]
    if bias is None:
        assert mask.shape[1] == 1, "all heads of an example share one mask"
        return _Dropped.apply(query, key, value, mask, dropout, draw_seed())
    bias = bias[(None,) * (4 - bias.dim())]
    if torch.is_inference_mode_enabled():
        added = torch.where(mask, bias.float(), torch.finfo(torch.float32).min / 2).to(query.dtype)
        return F.scaled_dot_product_attention(query, key, value, added)
    elements = query.shape[1] * query.shape[2] * key.shape[2]
    arrays = query, key, value, mask, bias
    return by_chunks(partial(_weighted, dropout), *arrays, elements=elements, random=bool(dropout))


def _weighted(dropout: float, *inputs: Tensor) -> Tensor:
    """Return the attention with a bias by its products."""
    query, key, value, mask, bias = inputs
    scores = query @ key.transpose(-1, -2) * query.shape[-1] ** -0.5 + bias.float()
    return drop(masked_softmax(scores, mask), dropout).to(value.dtype) @ value


def masked_softmax(scores: Tensor, mask: Tensor) -> Tensor:
    """Return the softmax of the last axis in float32 where ``mask`` is true, and 0 elsewhere."""
    weights = torch.where(mask, scores.float(), torch.finfo(torch.float32).min).softmax(-1)
    return weights * mask.any(-1, keepdim=True)


def split_heads(x: Tensor, heads: int, parts: int) -> tuple[Tensor, ...]:
    """Return ``parts`` views [B, H, T, dh] of ``x`` [B, T, parts * D]."""
    return x.unflatten(-1, (parts, heads, -1)).permute(2, 0, 3, 1, 4).unbind(0)


def merge_heads(x: Tensor) -> Tensor:
    """Return [B, T, D] from [B, H, T, dh]."""
    return x.transpose(1, 2).flatten(2)


class _Dropped(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, query: Tensor, key: Tensor, value: Tensor, mask: Tensor, rate: float, seed: int) -> Tensor:
        flat = [part.reshape(-1, *part.shape[2:]) for part in (query, key, value)]
        ctx.save_for_backward(*flat, mask)
        ctx.settings = query.shape[1], rate, seed
        context = torch.empty_like(flat[0])
        for rows, weights, keep in _weights(flat[0], flat[1], mask, *ctx.settings):
            context[rows] = torch.bmm(weights.mul_(keep).to(flat[2].dtype), flat[2][rows])
        return context.mul_(1 / (1 - rounded(rate))).view(query.shape)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        query, key, value, mask = ctx.saved_tensors
        _, rate, _ = ctx.settings
        shape = gradient.shape
        gradient = gradient.reshape(query.shape).to(query.dtype) * (1 / (1 - rounded(rate)))
        d_query, d_key, d_value = torch.empty_like(query), torch.empty_like(key), torch.empty_like(value)
        for rows, weights, keep in _weights(query, key, mask, *ctx.settings):
            d_weights = torch.bmm(gradient[rows], value[rows].transpose(1, 2)).float().mul_(keep)
            d_weights.sub_(torch.linalg.vecdot(weights, d_weights)[..., None]).mul_(weights)
            d_scores = d_weights.to(query.dtype)
            used = weights.mul_(keep).to(query.dtype)
            torch.bmm(used.transpose(1, 2), gradient[rows], out=d_value[rows])
            torch.bmm(d_scores, key[rows], out=d_query[rows])
            torch.bmm(d_scores.transpose(1, 2), query[rows], out=d_key[rows])
        for part in (d_query, d_key):
            part.mul_(query.shape[-1] ** -0.5)
        return *(part.view(*shape[:2], *part.shape[1:]) for part in (d_query, d_key, d_value)), None, None, None


def _weights(
    query: Tensor, key: Tensor, mask: Tensor, heads: int, rate: float, seed: int
) -> Iterator[tuple[slice, Tensor, Tensor]]:
    """Yield chunks of the B * H rows: the weights [C, Q, T] before dropout, float32, and 1 where dropout keeps them."""
    count, queries, size = query.shape
    chunk = max(1, max_elements(query.device) // (queries * key.shape[1]))
    lowest = torch.finfo(torch.float32).min / 2  # finite, because a row may have no key
    bias = torch.zeros(mask.shape, dtype=query.dtype, device=query.device).masked_fill_(~mask, lowest)
    is_empty = ~mask.any(-1, keepdim=True)
    has_empty = bool(is_empty.any())
    for start in range(0, count, chunk):
        rows = slice(start, min(start + chunk, count))
        examples = torch.arange(rows.start, rows.stop, device=query.device) // heads
        shared = examples if len(mask) > 1 else slice(1)
        scores = torch.baddbmm(bias[shared, 0], query[rows], key[rows].transpose(1, 2), alpha=size**-0.5)
        weights = scores.softmax(-1, dtype=torch.float32)
        if has_empty:
            weights = weights.masked_fill_(is_empty[shared, 0], 0.0)
        yield rows, weights, draw_keep(weights.shape, rate, query.device, seed + start, torch.float32)
