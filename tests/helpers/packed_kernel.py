"""torch's attention over packed rows on a CPU, which has no kernel for it: the formula, row by row."""

from collections.abc import Iterator
from contextlib import contextmanager
from unittest import mock

import torch
from torch import Tensor
from torch.nn.attention import varlen

import raysum.models.family.model
import raysum.models.layers


def _rows(starts: Tensor) -> Iterator[slice]:
    edges = starts.tolist()
    return (slice(start, end) for start, end in zip(edges, edges[1:], strict=False))


def _weights(query: Tensor, key: Tensor) -> Tensor:
    """[H, T, T] of the queries and keys [T, H, dh] of a row."""
    scores = torch.einsum("qhd,khd->hqk", query.double(), key.double()) / query.shape[-1] ** 0.5
    return scores.exp() / scores.exp().sum(-1, keepdim=True)


@varlen._varlen_attn.register_kernel("cpu")
def _forward(query, key, value, query_starts, key_starts, most_queries, most_keys, *more):
    assert more[0] is False
    for starts, most, values in ((query_starts, most_queries, query), (key_starts, most_keys, key)):
        assert starts.dtype == torch.int32 and most >= int(starts.diff().max()) and int(starts[-1]) == len(values)
    context = torch.empty_like(query)
    for row, keys in zip(_rows(query_starts), _rows(key_starts), strict=True):
        context[row] = torch.einsum("hqk,khd->qhd", _weights(query[row], key[keys]), value[keys].double()).to(query)
    return context, query.new_zeros(query.shape[1], len(query)).float(), torch.zeros(2, dtype=torch.uint64)


@varlen._varlen_attn_backward.register_kernel("cpu")
def _backward(gradient, query, key, value, context, lse, query_starts, key_starts, *more):
    found = [torch.empty_like(part) for part in (query, key, value)]
    for row, keys in zip(_rows(query_starts), _rows(key_starts), strict=True):
        g, q, k, v = gradient[row].double(), query[row].double(), key[keys].double(), value[keys].double()
        weights = _weights(q, k)
        to_weights = torch.einsum("qhd,khd->hqk", g, v)
        to_scores = weights * (to_weights - (weights * to_weights).sum(-1, keepdim=True)) / q.shape[-1] ** 0.5
        found[0][row] = torch.einsum("hqk,khd->qhd", to_scores, k).to(query)
        found[1][keys] = torch.einsum("hqk,qhd->khd", to_scores, q).to(query)
        found[2][keys] = torch.einsum("hqk,qhd->khd", weights, g).to(query)
    return tuple(found)


@contextmanager
def packed_kernel() -> Iterator[list[int]]:
    """Layers without bias and dropout use the kernel in the block; yield the sizes of their heads, call by call."""
    sizes = list[int]()

    def has_kernel(x: Tensor, size: int, dropout: float) -> bool:
        if dropout:
            return False
        sizes.append(size)
        return True

    with (
        mock.patch.object(raysum.models.layers, "has_packed_kernel", has_kernel),
        mock.patch.object(raysum.models.family.model, "has_packed_kernel", has_kernel),
    ):
        yield sizes
