"""Packed values put into padded arrays, without keeping a copy of them for backward."""

from typing import Any

import torch
from torch import Tensor


def scatter_padded(values: Tensor, index: Tensor, rows: int, columns: int) -> Tensor:
    """[S, ...] -> [rows, columns, ...]: packed values put at ``index`` of the flat array, zeros elsewhere."""
    return _Scattered.apply(values, index, rows * columns).view(rows, columns, *values.shape[1:])


class _Scattered(torch.autograd.Function):
    """``index_copy`` into zeros; that of torch keeps ``values`` for backward, which needs none of them."""

    @staticmethod
    def forward(ctx: Any, values: Tensor, index: Tensor, size: int) -> Tensor:
        ctx.save_for_backward(index)
        return values.new_zeros(size, *values.shape[1:]).index_copy_(0, index, values)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None]:
        (index,) = ctx.saved_tensors
        return gradient.index_select(0, index), None, None
