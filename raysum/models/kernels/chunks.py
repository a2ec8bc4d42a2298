"""Bounded memory: large intermediate arrays exist for a few examples at a time and are recomputed in backward."""

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch.utils.checkpoint import checkpoint

_ELEMENTS = {"cpu": 1 << 20}  # of the largest array of a chunk: 4 MiB of float32, which stay in the cache
_ELEMENTS_ELSEWHERE = 1 << 26  # 256 MiB


def max_elements(device: torch.device) -> int:
    """Return the most elements that the largest array of a chunk should have."""
    return _ELEMENTS.get(device.type, _ELEMENTS_ELSEWHERE)


def chunks(counts: Sequence[int], per_paragraph: int, device: torch.device) -> Iterator[tuple[slice, int]]:
    """Yield slices of neighbouring examples, and the most paragraphs of an example in each.

    A chunk that is padded to that number stays within ``max_elements``, unless it is a single example. ``counts`` [B]
    are the paragraphs of each example; a paragraph takes ``per_paragraph`` elements.
    """
    budget = max_elements(device)
    start, most = 0, 0
    for stop, count in enumerate(counts):
        wider = max(most, count)
        if stop > start and (stop + 1 - start) * wider * per_paragraph > budget:
            yield slice(start, stop), most
            start, wider = stop, count
        most = wider
    yield slice(start, len(counts)), most


def recompute(function: Callable[..., Any], *tensors: torch.Tensor | None, random: bool) -> Any:
    """Return ``function(*tensors)`` and recompute its inner results in backward. ``random``: it draws random numbers.

    Parameters must be among ``tensors``: then their own module has gathered them (ZeRO-3), also in backward.
    """
    if not torch.is_grad_enabled():
        return function(*tensors)
    return checkpoint(function, *tensors, use_reentrant=True, preserve_rng_state=random)
