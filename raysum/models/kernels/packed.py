"""Attention over packed rows on a GPU: torch's FlashAttention, and kernels of our own with dropout and windows.

Q packed queries and S packed keys, row after row, H heads of dh. Each row of queries attends to its row of keys.
"""

import warnings
from functools import cache
from typing import Any

import torch
from torch import Tensor, distributed

from raysum.errors import UserError
from raysum.models.kernels.dropout import draw_seed, limit_of

Places = tuple[Tensor, int]  # the first token of each row, and all tokens, [rows + 1] int32; tokens of the longest row


def equal_places(rows: int, tokens: int, device: torch.device) -> Places:
    """Return the places of rows of ``tokens`` tokens each."""
    return torch.arange(rows + 1, device=device, dtype=torch.int32) * tokens, tokens


def has_packed_kernel(x: Tensor, size: int, own: bool = False) -> bool:
    """Return whether packed rows serve heads of ``size`` of an ``x``: in bf16 or fp16 on a GPU since Ampere.

    ``own``: with dropout or windows, which torch's kernel lacks. Compiled layers keep padded rows. The answer depends
    on the model, its precision and its device, never on a batch, so all ranks have one kernel. The meta device answers
    as the GPU for which it plans. Raises UserError if one of several ranks cannot build its kernels.
    """
    if size % 8 or size > 256 or torch.compiler.is_compiling():
        return False
    device = torch.device("cuda") if x.is_meta and torch.cuda.is_available() else x.device
    if x.dtype not in (torch.bfloat16, torch.float16) or not _has_flash_attention(device):
        return False
    return not own or _builds_own_kernels(device, x.dtype, size)


@cache
def _builds_own_kernels(device: torch.device, dtype: torch.dtype, size: int) -> bool:
    """Return whether Triton can build the kernels, for which it needs a C compiler and Python's header files.

    Otherwise rows are padded, with a warning. Ranks must not do so alone: gradients of V become ready in another order.
    """
    one = torch.zeros(1, 1, size, dtype=dtype, device=device)
    place, lse = torch.arange(2, dtype=torch.int32, device=device), torch.zeros(1, 1, device=device)
    settings = (one, one, one, place, place, 1, 1, 1, 1, place[:1] > 0, place.sum())
    try:
        _attention(*settings)
        _attention_backward(one, lse, one, lse, *settings)
    except torch.OutOfMemoryError:
        raise
    except Exception as error:  # of compilers, of many kinds
        cause = str(error).strip() or type(error).__name__
        if distributed.is_available() and distributed.is_initialized() and distributed.get_world_size() > 1:
            needed = "install a C compiler and Python's header files on every host"
            raise UserError(f"Triton cannot build the kernels of attention ({cause}); {needed}") from error
        warnings.warn(f"attention with dropout and windows pads its rows, because Triton fails: {cause}", stacklevel=1)
        return False
    return True


@cache
def _has_flash_attention(device: torch.device) -> bool:
    if device.type != "cuda" or torch.version.hip:
        return False
    return torch.backends.cuda.is_flash_attention_available() and torch.cuda.get_device_capability(device) >= (8, 0)


def attend_packed(
    query: Tensor, key: Tensor, value: Tensor, queries: Places, keys: Places, dropout: float = 0.0
) -> Tensor:
    """Return the attention [Q, H, dh] of packed queries [Q, H, dh] to keys and values [S, H, dh] of their row."""
    if dropout:
        return attend_packed_lse(query, key, value, queries, keys, dropout)[0]
    from torch.nn.attention.varlen import varlen_attn  # its import loads the compiler

    context = varlen_attn(query, key, value, queries[0], keys[0], queries[1], keys[1])
    assert isinstance(context, Tensor), "without the log-sum-exp"
    return context


def attend_packed_lse(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    queries: Places,
    keys: Places,
    dropout: float = 0.0,
    reach: int | None = None,
    skipped: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """Return the same and the log-sum-exp of scores [H, Q] float32, with gradients of both.

    A query attends to keys at most ``reach`` places away, and to no key in ``skipped`` [S]. Without any key its
    attention is 0 and its log-sum-exp -inf. Dropout does not change the log-sum-exp.
    """
    seed = draw_seed(query.device) if dropout else None
    limits = limit_of(dropout), -1 if reach is None else reach
    return _attention(query, key, value, queries[0], keys[0], queries[1], keys[1], *limits, skipped, seed)


@torch.library.custom_op("raysum::packed_attention", mutates_args=(), device_types="cuda")
def _attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    query_starts: Tensor,
    key_starts: Tensor,
    most_queries: int,
    most_keys: int,
    limit: int,
    reach: int,
    skipped: Tensor | None,
    seed: Tensor | None,
) -> tuple[Tensor, Tensor]:
    from raysum.models.kernels import packed_triton as kernels

    context, lse = _empty(query, key, value)
    starts = query_starts, key_starts, most_queries, most_keys
    kernels.launch(kernels.forward, (query, key, value), starts, limit, reach, skipped, seed, context, lse)
    return context, lse


@_attention.register_fake
def _empty(query: Tensor, key: Tensor, value: Tensor, *_: Any) -> tuple[Tensor, Tensor]:
    lse = query.new_empty(query.shape[1], len(query), dtype=torch.float32)
    return torch.empty_like(query, memory_format=torch.contiguous_format), lse


@torch.library.custom_op("raysum::packed_attention_backward", mutates_args=(), device_types="cuda")
def _attention_backward(
    gradient: Tensor,
    lse_gradient: Tensor,
    context: Tensor,
    lse: Tensor,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    query_starts: Tensor,
    key_starts: Tensor,
    most_queries: int,
    most_keys: int,
    limit: int,
    reach: int,
    skipped: Tensor | None,
    seed: Tensor | None,
) -> tuple[Tensor, Tensor, Tensor]:
    from raysum.models.kernels import packed_triton as kernels

    inner, found = torch.empty_like(lse), _empty_gradients(gradient, lse_gradient, context, lse, query, key, value)
    gradients = gradient.contiguous(), lse_gradient.contiguous()
    common = (query, key, value), (query_starts, key_starts, most_queries, most_keys), limit, reach, skipped, seed
    kernels.launch(kernels.backward_queries, *common, *gradients, context, lse, inner, found[0])
    kernels.launch(kernels.backward_keys, *common, gradients[0], lse, inner, *found[1:])
    return found


@_attention_backward.register_fake
def _empty_gradients(
    gradient: Tensor, lse_gradient: Tensor, context: Tensor, lse: Tensor, *parts: Any
) -> tuple[Tensor, ...]:
    return tuple(torch.empty_like(part, memory_format=torch.contiguous_format) for part in parts[:3])


def _keep_inputs(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
    ctx.save_for_backward(*output, *inputs[:5], *inputs[9:])
    ctx.settings = inputs[5:9]


def _differentiate(ctx: Any, gradient: Tensor, lse_gradient: Tensor) -> tuple[Tensor | None, ...]:
    *arrays, skipped, seed = ctx.saved_tensors
    found = _attention_backward(gradient, lse_gradient, *arrays, *ctx.settings, skipped, seed)
    return *found, *[None] * 8


_attention.register_autograd(_differentiate, setup_context=_keep_inputs)
