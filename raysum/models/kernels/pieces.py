"""Bounded pieces: large intermediate arrays are made for a few examples at a time and made again for backward."""

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch.utils.checkpoint import checkpoint

# Elements of the largest array of one piece: on a CPU what stays in the cache (4 MiB of float32), else 256 MiB.
_ELEMENTS = {"cpu": 1 << 20}
_ELEMENTS_ELSEWHERE = 1 << 26


def largest(device: torch.device) -> int:
    """Elements that the largest array of one piece should not exceed."""
    return _ELEMENTS.get(device.type, _ELEMENTS_ELSEWHERE)


def pieces(counts: Sequence[int], per_paragraph: int, device: torch.device) -> Iterator[tuple[slice, int]]:
    """Slices of neighbouring examples and the most paragraphs of one of them, padded to which the piece stays bounded.

    ``counts`` [B] paragraphs of each example, ``per_paragraph`` elements a paragraph takes.
    """
    budget = largest(device)
    start, widest = 0, 0
    for stop, count in enumerate(counts):
        wider = max(widest, count)
        if stop > start and (stop + 1 - start) * wider * per_paragraph > budget:
            yield slice(start, stop), widest
            start, wider = stop, count
        widest = wider
    yield slice(start, len(counts)), widest


def recompute(function: Callable[..., Any], *tensors: torch.Tensor | None, random: bool) -> Any:
    """``function(*tensors)``, whose inner results are made again for backward; ``random`` when it draws numbers.

    Parameters must come as arguments: their own module has gathered them then (ZeRO-3), at backward too.
    """
    if not torch.is_grad_enabled():
        return function(*tensors)
    return checkpoint(function, *tensors, use_reentrant=True, preserve_rng_state=random)
