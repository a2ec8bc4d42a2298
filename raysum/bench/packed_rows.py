"""Is our attention over packed rows that of the formula, on the GPU that computes it?"""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from raysum.bench.base import Row
from raysum.models.batch import starts
from raysum.models.kernels.packed import attend_packed_lse, has_packed_kernel

KINDS = {"dropout": (0.1, 4096), "windows": (0.0, 40), "windows with dropout": (0.1, 40)}  # rate, reach
_ROWS, _HEADS, _SIZE = (70, 1, 129, 300), 2, 64  # tokens of each row, heads, and their size
_LIMIT = 2e-2  # largest difference in bf16 of a result or gradient, relative to its largest element
_FEW = 0.01  # largest difference of the share that dropout keeps to the one it should keep


def packed_rows_row(kind: str, device: torch.device) -> Row:
    """Return the largest relative difference of results and gradients to those of the formula in fp32.

    Dropout's mask is read from the kernel: attention to unit vectors shows its weights.
    """
    (rate, reach), total = KINDS[kind], sum(_ROWS)
    row: Row = {"preset": kind, "dtype": "bf16", "rate": rate, "reach": reach, "limit": _LIMIT}
    torch.manual_seed(0)
    query, key, value, gradient = torch.randn(4, total, _HEADS, _SIZE, device=device).bfloat16()
    if not has_packed_kernel(query, _SIZE, own=True):
        return row | {"verdict": "there is no kernel here"}
    sizes, numbers = torch.tensor(_ROWS, device=device), torch.arange(total, device=device)
    places, row_of, skipped = (starts(sizes), max(_ROWS)), torch.repeat_interleave(sizes), numbers % 7 == 3
    allowed = (row_of[:, None] == row_of) & ((numbers[:, None] - numbers).abs() <= reach) & ~skipped  # [Q, T]

    def attend(query: Tensor, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
        torch.manual_seed(1)  # of dropout
        return attend_packed_lse(query, key, value, places, places, rate, reach, skipped)

    keys, units = numbers[:, None, None].expand(-1, _HEADS, 1), torch.arange(_SIZE, device=device)
    shown = [attend(query, key, (keys - first == units).to(key))[0] for first in range(0, total, _SIZE)]
    kept = torch.cat(shown, -1)[..., :total].transpose(0, 1) > 0  # [H, Q, T]
    gradients = gradient.float(), torch.randn(_HEADS, total, device=device)
    found = _learned(attend, (query, key, value), gradients)
    expected = _learned(
        lambda *arrays: _formula(kept, allowed, rate, *arrays), (query.float(), key.float(), value.float()), gradients
    )
    parts = [(one.float() - other).abs().max() / other.abs().max() for one, other in zip(found, expected, strict=True)]
    difference = float(torch.stack(parts).max())
    share = float(kept.sum() / (_HEADS * allowed.sum()))
    is_right = difference <= _LIMIT and abs(share - 1 + rate) <= _FEW
    return row | {"kept": share, "largest_difference": difference, "verdict": "right" if is_right else "WRONG"}


def _formula(
    kept: Tensor, allowed: Tensor, rate: float, query: Tensor, key: Tensor, value: Tensor
) -> tuple[Tensor, Tensor]:
    scores = torch.einsum("qhd,khd->hqk", query, key) * _SIZE**-0.5
    scores = torch.where(allowed, scores, torch.finfo(torch.float32).min)
    weights = scores.softmax(-1) * kept / (1 - rate)
    return torch.einsum("hqk,khd->qhd", weights, value), scores.logsumexp(-1)


def _learned(
    function: Callable[..., tuple[Tensor, Tensor]], arrays: Sequence[Tensor], gradients: Sequence[Tensor]
) -> list[Tensor]:
    """Return the results of ``function`` and the gradients of ``arrays``."""
    arrays = [array.detach().requires_grad_() for array in arrays]
    context, lse = function(*arrays)
    found = torch.autograd.grad((context, lse), arrays, (gradients[0].to(context), gradients[1]))
    return [context.detach(), lse.detach(), *found]
