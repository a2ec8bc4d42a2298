"""Attention over packed rows on a CPU, which has no kernels for it: the formula, row by row."""

from collections.abc import Iterator
from contextlib import contextmanager
from unittest import mock

import torch
from torch import Tensor
from torch.nn.attention import varlen

import raysum.models.family.model
import raysum.models.family.packed_words
import raysum.models.family.window
import raysum.models.layers
from raysum.models.kernels import packed


def _rows(starts: Tensor) -> Iterator[slice]:
    edges = starts.tolist()
    return (slice(start, end) for start, end in zip(edges, edges[1:], strict=False))


def _allowed(queries, keys, reach, skipped):
    """[Q, T] of a row: whether a query attends to a key."""
    distances = (torch.arange(queries)[:, None] - torch.arange(keys)).abs()
    allowed = distances <= (reach if reach >= 0 else keys + queries)
    return allowed if skipped is None else allowed & ~skipped


def attention(query, key, value, query_starts, key_starts, reach=-1, skipped=None, factors=None):
    """Context [Q, H, dh] and log-sum-exp [H, Q]; dropout multiplies the weights by ``factors`` [H, Q, T]."""
    contexts, sums = [], []
    for row, keys in zip(_rows(query_starts), _rows(key_starts), strict=True):
        scores = torch.einsum("qhd,khd->hqk", query[row], key[keys]) / query.shape[-1] ** 0.5
        allowed = _allowed(*scores.shape[1:], reach, None if skipped is None else skipped[keys])
        masses = scores.exp() * allowed
        total = masses.sum(-1)
        weights = masses / (total + ~allowed.any(-1))[..., None]
        if factors is not None:
            weights = weights * factors[:, row, : weights.shape[2]]
        contexts.append(torch.einsum("hqk,khd->qhd", weights, value[keys]))
        sums.append(torch.where(allowed.any(-1), total, 1.0).log().masked_fill(~allowed.any(-1), -torch.inf))
    return torch.cat(contexts), torch.cat(sums, -1)


def attention_gradients(
    gradient, lse_gradient, query, key, value, query_starts, key_starts, reach=-1, skipped=None, factors=None
):
    """The gradients of query, key and value for those of both results of :func:`attention`."""
    found = [torch.empty_like(part) for part in (query, key, value)]
    for row, keys in zip(_rows(query_starts), _rows(key_starts), strict=True):
        g, q, k, v = gradient[row], query[row], key[keys], value[keys]
        scores = torch.einsum("qhd,khd->hqk", q, k) / q.shape[-1] ** 0.5
        allowed = _allowed(*scores.shape[1:], reach, None if skipped is None else skipped[keys])
        masses = scores.exp() * allowed
        weights = masses / (masses.sum(-1) + ~allowed.any(-1))[..., None]
        kept = 1.0 if factors is None else factors[:, row, : weights.shape[2]]
        to_weights = torch.einsum("qhd,khd->hqk", g, v) * kept
        inner = (weights * to_weights).sum(-1, keepdim=True) - lse_gradient[:, row, None]
        to_scores = weights * (to_weights - inner) / q.shape[-1] ** 0.5
        found[0][row] = torch.einsum("hqk,khd->qhd", to_scores, k)
        found[1][keys] = torch.einsum("hqk,qhd->khd", to_scores, q)
        found[2][keys] = torch.einsum("hqk,qhd->khd", weights * kept, g)
    return found


def _checked(query, key, query_starts, key_starts, most_queries, most_keys):
    for starts, most, values in ((query_starts, most_queries, query), (key_starts, most_keys, key)):
        assert starts.dtype == torch.int32 and most >= int(starts.diff().max()) and int(starts[-1]) == len(values)


@varlen._varlen_attn.register_kernel("cpu")
def _flash(query, key, value, query_starts, key_starts, most_queries, most_keys, *more):
    assert more[0] is False
    _checked(query, key, query_starts, key_starts, most_queries, most_keys)
    context, lse = attention(query.double(), key.double(), value.double(), query_starts, key_starts)
    return context.to(query), lse.float(), torch.zeros(2, dtype=torch.uint64)


@varlen._varlen_attn_backward.register_kernel("cpu")
def _flash_backward(gradient, query, key, value, context, lse, query_starts, key_starts, *more):
    arrays = (gradient, torch.zeros_like(lse), query, key, value)
    found = attention_gradients(*(part.double() for part in arrays), query_starts, key_starts)
    return tuple(part.to(query) for part in found)


def _settings(query, key, query_starts, key_starts, most_queries, most_keys, limit, reach, skipped, seed):
    """What :func:`attention` needs. The masks of dropout are others than those of the kernel on a GPU."""
    _checked(query, key, query_starts, key_starts, most_queries, most_keys)
    if seed is None:
        return query_starts, key_starts, reach, skipped
    generator, rate = torch.Generator().manual_seed(int(seed)), limit / 2**16
    keep = torch.rand(query.shape[1], len(query), most_keys, generator=generator) >= rate
    return query_starts, key_starts, reach, skipped, keep / (1 - rate)


@packed._attention.register_kernel("cpu")
def _own(query, key, value, *given):
    settings = _settings(query, key, *given)
    context, lse = attention(query.double(), key.double(), value.double(), *settings)
    return context.to(query), lse.to(torch.promote_types(query.dtype, torch.float32))


@packed._attention_backward.register_kernel("cpu")
def _own_backward(gradient, lse_gradient, context, lse, query, key, value, *given):
    arrays = (gradient, lse_gradient, query, key, value)
    found = attention_gradients(*(part.double() for part in arrays), *_settings(query, key, *given))
    return tuple(part.to(query) for part in found)


@contextmanager
def packed_kernel() -> Iterator[list[int]]:
    """Layers use the kernels in the block; yield the sizes of their heads, layer by layer."""
    sizes = list[int]()

    def has_kernel(x: Tensor, size: int, own: bool = False) -> bool:
        sizes.append(size)
        return True

    with (
        mock.patch.object(raysum.models.layers, "has_packed_kernel", has_kernel),
        mock.patch.object(raysum.models.family.model, "has_packed_kernel", has_kernel),
        mock.patch.object(raysum.models.family.packed_words, "has_packed_kernel", has_kernel),
        mock.patch.object(raysum.models.family.window, "has_packed_kernel", has_kernel),
    ):
        yield sizes
