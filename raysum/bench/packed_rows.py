"""Is our attention over packed rows that of the formula, on the GPU that computes it?"""

from collections.abc import Callable, Sequence
from itertools import accumulate, pairwise

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
    skipped = torch.arange(total, device=device) % 7 == 3
    places = starts(torch.tensor(_ROWS, device=device)), max(_ROWS)

    def attend(query: Tensor, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
        torch.manual_seed(1)  # of dropout
        return attend_packed_lse(query, key, value, places, places, rate, reach, skipped)

    offsets = torch.cat([torch.arange(size, device=device) for size in _ROWS])[:, None, None].expand(-1, _HEADS, 1)
    units = torch.arange(_SIZE, device=device)
    shown = [attend(query, key, (offsets - first == units).to(key))[0] for first in range(0, max(_ROWS), _SIZE)]
    kept, allowed = torch.cat(shown, -1).transpose(0, 1) > 0, _allowed(reach, skipped)  # [H, Q, T]
    gradients = gradient.float(), torch.randn(_HEADS, total, device=device)
    found = _learned(attend, (query, key, value), gradients)
    expected = _learned(
        lambda *arrays: _formula(kept, allowed, rate, *arrays), (query.float(), key.float(), value.float()), gradients
    )
    pairs = zip(found, expected, strict=True)
    difference = max(float((one.float() - other).abs().max() / other.abs().max()) for one, other in pairs)
    share = float(kept.sum() / (_HEADS * sum(int(part.sum()) for part in allowed)))
    is_right = difference <= _LIMIT and abs(share - 1 + rate) <= _FEW
    return row | {"kept": share, "largest_difference": difference, "verdict": "right" if is_right else "WRONG"}


def _allowed(reach: int, skipped: Tensor) -> list[Tensor]:
    """Return for each row [Q, T]: whether a query attends to a key."""
    places = [torch.arange(size, device=skipped.device) for size in _ROWS]
    near = [(row[:, None] - row).abs() <= reach for row in places]
    return [part & ~keys for part, keys in zip(near, skipped.split(list(_ROWS)), strict=True)]


def _formula(
    kept: Tensor, allowed: list[Tensor], rate: float, query: Tensor, key: Tensor, value: Tensor
) -> tuple[Tensor, Tensor]:
    contexts, sums = [], []
    for (first, last), mask in zip(pairwise(accumulate(_ROWS, initial=0)), allowed, strict=True):
        row = slice(first, last)
        scores = torch.einsum("qhd,khd->hqk", query[row], key[row]) * _SIZE**-0.5
        scores = torch.where(mask, scores, torch.finfo(torch.float32).min)
        weights = scores.softmax(-1) * kept[:, row, : last - first] / (1 - rate)
        contexts.append(torch.einsum("hqk,khd->qhd", weights, value[row]))
        sums.append(scores.logsumexp(-1))
    return torch.cat(contexts), torch.cat(sums, -1)


def _learned(
    function: Callable[..., tuple[Tensor, Tensor]], arrays: Sequence[Tensor], gradients: Sequence[Tensor]
) -> list[Tensor]:
    """Return the results of ``function`` and the gradients of ``arrays``."""
    arrays = [array.detach().requires_grad_() for array in arrays]
    context, lse = function(*arrays)
    found = torch.autograd.grad((context, lse), arrays, (gradients[0].to(context), gradients[1]))
    return [context.detach(), lse.detach(), *found]
