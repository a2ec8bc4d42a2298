"""Triton kernels of attention over packed rows, forward and backward.

Each row of queries attends to its row of keys. A program computes a block of queries, or the gradients of a block of
keys, of one row and head, and reads its other side block by block. Weights exist in one block at a time (Dao 2023,
"FlashAttention-2"), and no program adds to what another one wrote, so gradients are the same in every run.
"""

# mypy: disable-error-code="no-untyped-def,no-untyped-call"

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

LOG2_E = tl.constexpr(1.4426950408889634)
LN_2 = tl.constexpr(0.6931471805599453)
_OF_BATCHES = ["total", "blocks"]  # one machine code serves all their values


@triton.jit
def _mixed(word):
    """Return 32 bits that all bits of ``word`` change (Wellons 2018, "lowbias32")."""
    word = (word ^ (word >> 16)) * 0x7FEB352D
    word = (word ^ (word >> 15)) * 0x846CA68B
    return word ^ (word >> 16)


@triton.jit
def _streams(seed, queries, head, heads):
    """Return the first word of the random numbers of each query in a head."""
    value = tl.load(seed)
    word = _mixed((value >> 32).to(tl.uint32) ^ (queries * heads + head).to(tl.uint32))
    return _mixed(word ^ value.to(tl.uint32))


@triton.jit
def _factors(streams, keys, LIMIT: tl.constexpr):
    """Return dropout's factors: 0 where 16 random bits are below ``LIMIT``, else what keeps the mean."""
    bits = _mixed(streams + keys.to(tl.uint32) * 0x9E3779B9) >> 16
    return tl.where(bits < LIMIT, 0.0, 1 / (1 - LIMIT / 65536))


@triton.jit
def _loaded(base, first, places, count, stride, columns, SIZE: tl.constexpr):
    """Return [places, columns] of a row that begins at ``first``, 0 beyond its ``count`` places and ``SIZE``."""
    offsets = (first + places).to(tl.int64)[:, None] * stride + columns[None, :]
    return tl.load(base + offsets, mask=(places < count)[:, None] & (columns < SIZE)[None, :], other=0.0)


@triton.jit
def _stored(base, values, first, places, count, stride, columns, SIZE: tl.constexpr):
    offsets = (first + places).to(tl.int64)[:, None] * stride + columns[None, :]
    tl.store(base + offsets, values.to(base.dtype.element_ty), (places < count)[:, None] & (columns < SIZE)[None, :])


@triton.jit
def _row(query_starts, key_starts, blocks):
    """Return a program's row and block: the first place and the number of places of its queries and of its keys."""
    row = tl.program_id(0) // blocks
    first, key_first = tl.load(query_starts + row), tl.load(key_starts + row)
    count, key_count = tl.load(query_starts + row + 1) - first, tl.load(key_starts + row + 1) - key_first
    return first, count, key_first, key_count, tl.program_id(0) % blocks


@triton.jit
def _reached(begin, end, count, REACH: tl.constexpr, STEP: tl.constexpr):
    """Return the limits of the places, of ``count``, that those from ``begin`` to ``end`` reach."""
    low, high = 0, count
    if REACH >= 0:
        low, high = tl.maximum(begin - REACH, 0) // STEP * STEP, tl.minimum(end + REACH, count)
    return low, high


@triton.jit
def _pairs(queries, query_count, keys, key_first, key_count, skipped, REACH: tl.constexpr):
    """Return [queries, keys]: whether a query attends to a key. Both are numbered from the start of their row."""
    is_key = keys < key_count
    if skipped is not None:
        is_key = is_key & (tl.load(skipped + key_first + keys, mask=is_key, other=1) == 0)
    pairs = (queries < query_count)[:, None] & is_key[None, :]
    if REACH >= 0:
        distance = queries[:, None] - keys[None, :]
        pairs = pairs & (distance <= REACH) & (distance >= -REACH)
    return pairs


@triton.jit(do_not_specialize=_OF_BATCHES)
def forward(
    query, key, value, query_starts, key_starts, skipped, seed, context, lse,
    query_stride, query_head, key_stride, key_head, value_stride, value_head, total, blocks, scale,
    HEADS: tl.constexpr, SIZE: tl.constexpr, LIMIT: tl.constexpr, REACH: tl.constexpr,
    D: tl.constexpr, Q: tl.constexpr, K: tl.constexpr,
):  # fmt: skip
    """Store the attention and the log-sum-exp of the scores of a block of queries."""
    first, count, key_first, key_count, block = _row(query_starts, key_starts, blocks)
    head, begin = tl.program_id(1), block * Q
    if begin >= count:
        return
    queries, columns = begin + tl.arange(0, Q), tl.arange(0, D)
    q = _loaded(query + head * query_head, first, queries, count, query_stride, columns, SIZE)
    streams = _streams(seed, first + queries, head, HEADS)[:, None] if LIMIT else 0
    low, high = _reached(begin, begin + Q, key_count, REACH, K)
    highest = tl.full([Q], float("-inf"), tl.float32)
    mass = tl.zeros([Q], tl.float32)
    sums = tl.zeros([Q, D], tl.float32)
    for start in range(low, high, K):
        keys = start + tl.arange(0, K)
        k = _loaded(key + head * key_head, key_first, keys, key_count, key_stride, columns, SIZE)
        v = _loaded(value + head * value_head, key_first, keys, key_count, value_stride, columns, SIZE)
        pairs = _pairs(queries, count, keys, key_first, key_count, skipped, REACH)
        scores = tl.dot(q, tl.trans(k), input_precision="ieee") * (scale * LOG2_E)
        scores = tl.where(pairs, scores, float("-inf"))
        higher = tl.maximum(highest, tl.max(scores, 1))
        base = tl.where(higher == float("-inf"), 0.0, higher)  # no key so far
        weights, shrink = tl.exp2(scores - base[:, None]), tl.exp2(highest - base)
        mass = mass * shrink + tl.sum(weights, 1)
        if LIMIT:
            weights = weights * _factors(streams, keys[None, :], LIMIT)
        sums = sums * shrink[:, None] + tl.dot(weights.to(v.dtype), v, input_precision="ieee")
        highest = higher
    mass = tl.where(mass == 0, 1.0, mass)  # a query without keys has no sums, and -inf is its highest score
    sums = sums / mass[:, None]
    _stored(context + head * SIZE, sums, first, queries, count, HEADS * SIZE, columns, SIZE)
    tl.store(lse + head * total + first + queries, (highest + tl.log2(mass)) * LN_2, queries < count)


@triton.jit(do_not_specialize=_OF_BATCHES)
def backward_queries(
    query, key, value, query_starts, key_starts, skipped, seed, gradient, lse_gradient, context, lse, inner, d_query,
    query_stride, query_head, key_stride, key_head, value_stride, value_head, total, blocks, scale,
    HEADS: tl.constexpr, SIZE: tl.constexpr, LIMIT: tl.constexpr, REACH: tl.constexpr,
    D: tl.constexpr, Q: tl.constexpr, K: tl.constexpr,
):  # fmt: skip
    """Store the gradients of a block of queries, and ``inner``, which the gradients of their scores have in common."""
    first, count, key_first, key_count, block = _row(query_starts, key_starts, blocks)
    head, begin = tl.program_id(1), block * Q
    if begin >= count:
        return
    queries, columns = begin + tl.arange(0, Q), tl.arange(0, D)
    q = _loaded(query + head * query_head, first, queries, count, query_stride, columns, SIZE)
    g = _loaded(gradient + head * SIZE, first, queries, count, HEADS * SIZE, columns, SIZE)
    c = _loaded(context + head * SIZE, first, queries, count, HEADS * SIZE, columns, SIZE)
    at = head * total + first + queries
    common = tl.sum(g.to(tl.float32) * c.to(tl.float32), 1) - tl.load(lse_gradient + at, queries < count, other=0.0)
    tl.store(inner + at, common, queries < count)
    base = tl.load(lse + at, queries < count, other=0.0) * LOG2_E
    streams = _streams(seed, first + queries, head, HEADS)[:, None] if LIMIT else 0
    low, high = _reached(begin, begin + Q, key_count, REACH, K)
    sums = tl.zeros([Q, D], tl.float32)
    for start in range(low, high, K):
        keys = start + tl.arange(0, K)
        k = _loaded(key + head * key_head, key_first, keys, key_count, key_stride, columns, SIZE)
        v = _loaded(value + head * value_head, key_first, keys, key_count, value_stride, columns, SIZE)
        pairs = _pairs(queries, count, keys, key_first, key_count, skipped, REACH)
        scores = tl.dot(q, tl.trans(k), input_precision="ieee") * (scale * LOG2_E)
        weights = tl.where(pairs, tl.exp2(scores - base[:, None]), 0.0)
        d_weights = tl.dot(g, tl.trans(v), input_precision="ieee")
        if LIMIT:
            d_weights = d_weights * _factors(streams, keys[None, :], LIMIT)
        d_scores = weights * (d_weights - common[:, None])
        sums += tl.dot(d_scores.to(k.dtype), k, input_precision="ieee")
    _stored(d_query + head * SIZE, sums * scale, first, queries, count, HEADS * SIZE, columns, SIZE)


@triton.jit(do_not_specialize=_OF_BATCHES)
def backward_keys(
    query, key, value, query_starts, key_starts, skipped, seed, gradient, lse, inner, d_key, d_value,
    query_stride, query_head, key_stride, key_head, value_stride, value_head, total, blocks, scale,
    HEADS: tl.constexpr, SIZE: tl.constexpr, LIMIT: tl.constexpr, REACH: tl.constexpr,
    D: tl.constexpr, Q: tl.constexpr, K: tl.constexpr,
):  # fmt: skip
    """Store the gradients of a block of keys and values."""
    first, count, key_first, key_count, block = _row(query_starts, key_starts, blocks)
    head, begin = tl.program_id(1), block * K
    if begin >= key_count:
        return
    keys, columns = begin + tl.arange(0, K), tl.arange(0, D)
    k = _loaded(key + head * key_head, key_first, keys, key_count, key_stride, columns, SIZE)
    v = _loaded(value + head * value_head, key_first, keys, key_count, value_stride, columns, SIZE)
    low, high = _reached(begin, begin + K, count, REACH, Q)
    key_sums, value_sums = tl.zeros([K, D], tl.float32), tl.zeros([K, D], tl.float32)
    for start in range(low, high, Q):
        queries = start + tl.arange(0, Q)
        q = _loaded(query + head * query_head, first, queries, count, query_stride, columns, SIZE)
        g = _loaded(gradient + head * SIZE, first, queries, count, HEADS * SIZE, columns, SIZE)
        at = head * total + first + queries
        base = tl.load(lse + at, queries < count, other=0.0) * LOG2_E
        common = tl.load(inner + at, queries < count, other=0.0)
        pairs = _pairs(queries, count, keys, key_first, key_count, skipped, REACH)
        scores = tl.dot(q, tl.trans(k), input_precision="ieee") * (scale * LOG2_E)
        weights = tl.where(pairs, tl.exp2(scores - base[:, None]), 0.0)
        d_weights = tl.dot(g, tl.trans(v), input_precision="ieee")
        used = weights
        if LIMIT:
            streams = _streams(seed, first + queries, head, HEADS)[:, None]
            factors = _factors(streams, keys[None, :], LIMIT)
            used, d_weights = weights * factors, d_weights * factors
        value_sums += tl.dot(tl.trans(used.to(g.dtype)), g, input_precision="ieee")
        d_scores = weights * (d_weights - common[:, None])
        key_sums += tl.dot(tl.trans(d_scores.to(q.dtype)), q, input_precision="ieee")
    _stored(d_key + head * SIZE, key_sums * scale, key_first, keys, key_count, HEADS * SIZE, columns, SIZE)
    _stored(d_value + head * SIZE, value_sums, key_first, keys, key_count, HEADS * SIZE, columns, SIZE)


def launch(
    kernel: Any,
    arrays: tuple[Tensor, Tensor, Tensor],
    starts: tuple[Tensor, Tensor, int, int],
    limit: int,
    reach: int,
    skipped: Tensor | None,
    seed: Tensor | None,
    *more: Tensor,
) -> None:
    """Run a kernel. ``more`` are its own inputs and outputs, without gaps."""
    query, key, value = (part if part.stride(-1) == 1 else part.contiguous() for part in arrays)
    query_starts, key_starts, *longest = starts
    assert query.dtype == key.dtype == value.dtype and query_starts.is_contiguous() and key_starts.is_contiguous()
    heads, size = query.shape[1:]
    settings = blocks_of(size)
    by_keys = kernel is backward_keys
    blocks = triton.cdiv(longest[by_keys], settings["K" if by_keys else "Q"])
    marks = None if skipped is None else skipped.contiguous().view(torch.uint8)
    strides = [part.stride(axis) for part in (query, key, value) for axis in (0, 1)]
    with torch.cuda.device_of(query):
        kernel[(len(query_starts) - 1) * blocks, heads](
            query, key, value, query_starts, key_starts, marks, seed, *more,
            *strides, len(query), blocks, size**-0.5, HEADS=heads, SIZE=size, LIMIT=limit, REACH=reach, **settings,
        )  # fmt: skip


def blocks_of(size: int) -> dict[str, int]:
    """Return the columns that heads of ``size`` take, the queries and keys of a block, and how a program loads them."""
    columns = max(16, triton.next_power_of_2(size))
    queries, keys = (64, 64) if columns <= 64 else (64, 32) if columns == 128 else (32, 32)
    loads = {"num_warps": 4 if columns <= 64 else 8, "num_stages": 3 if columns <= 128 else 2}
    return {"D": columns, "Q": queries, "K": keys, **loads}
