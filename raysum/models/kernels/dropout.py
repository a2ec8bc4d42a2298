"""Dropout that is cheap on a CPU, and masks that a seed determines on any device.

One 64-bit word decides four elements. On a CPU, NumPy's SFC64, which torch's generator seeds, draws the words (measured
on [24000, 256], 2 threads: 35 ms instead of torch's 103 ms). The probability is rounded to a multiple of 2^-16, and the
scale uses the rounded value, so the mean is exact.
"""

from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from raysum.models.kernels.device import has_cpu_kernels

_STEPS = 1 << 16
_GOLDEN = 0x9E3779B97F4A7C15 - (1 << 64)  # SplitMix64's constants as signed numbers
_ROUNDS = ((30, 0xBF58476D1CE4E5B9 - (1 << 64)), (27, 0x94D049BB133111EB - (1 << 64)), (31, 1))


def limit_of(rate: float) -> int:
    """Return the number, of 2^16 equally likely ones, below which an element is dropped."""
    return round(rate * _STEPS)


def rounded(rate: float) -> float:
    """Return the probability of dropping: ``rate`` rounded to a multiple of 2^-16."""
    return limit_of(rate) / _STEPS


def draw_seed(device: torch.device) -> Tensor:
    """Return a seed [] for :func:`draw_keep` from the generator of ``device``; checkpoints contain the CPU's state."""
    return torch.randint(1 << 62, (), device=device)


def draw_keep(shape: torch.Size, rate: float, seed: Tensor, dtype: torch.dtype = torch.bool) -> Tensor:
    """Return a mask of ``shape``: 0 with probability ``rounded(rate)``, else 1. The same seed gives the same mask."""
    count = (shape.numel() + 3) // 4
    if has_cpu_kernels(seed.device):
        source = np.random.Generator(np.random.SFC64(int(seed)))
        words = torch.from_numpy(source.integers(-(1 << 63), 1 << 63, count))
    else:
        words = hashed_words(count, seed)
    bits = words.view(torch.int16)[: shape.numel()].view(shape)
    return torch.ge(bits, limit_of(rate) - _STEPS // 2, out=torch.empty(shape, dtype=dtype, device=seed.device))


def hashed_words(count: int, seed: Tensor) -> Tensor:
    """Return int64 [count] on the seed's device: SplitMix64 (Steele et al. 2014) of ``seed``, without a generator."""
    words = seed + torch.arange(1, count + 1, device=seed.device) * _GOLDEN
    for shift, factor in _ROUNDS:
        words = (words ^ ((words >> shift) & ((1 << (64 - shift)) - 1))) * factor  # a logical shift
    return words


def drop(values: Tensor, rate: float, relu: bool = False) -> Tensor:
    """Return ``values`` with a share ``rate`` of elements set to 0 and the others scaled up to keep the mean.

    With ``relu``, ``F.relu`` comes first; on a CPU only the result is then kept for backward.
    """
    if rate == 0 or not has_cpu_kernels(values.device):
        values = F.relu(values) if relu else values
        return F.dropout(values, rate) if rate else values
    keep = draw_keep(values.shape, rate, draw_seed(values.device))
    return _Drop.apply(values, keep, 1 / (1 - rounded(rate)), relu)


class _Drop(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, values: Tensor, keep: Tensor, scale: float, relu: bool) -> Tensor:
        result = keep.to(values.dtype).mul_(scale).mul_(values)
        ctx.scale, ctx.relu = scale, relu
        ctx.save_for_backward(result.relu_() if relu else keep)
        return result

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        (keep,) = ctx.saved_tensors
        keep = keep > 0 if ctx.relu else keep  # the saved result is 0 where the gradient is 0
        return keep.to(gradient.dtype).mul_(ctx.scale).mul_(gradient), None, None, None


class Dropout(nn.Module):
    """``drop`` in training mode, the identity otherwise."""

    def __init__(self, rate: float):
        super().__init__()
        self.rate = rate

    @property
    def active(self) -> float:
        """The current rate: 0 outside training mode."""
        return self.rate if self.training else 0.0

    def forward(self, values: Tensor) -> Tensor:
        return drop(values, self.active)
