"""Less memory by recomputation in backward: of large arrays, which exist for a few examples at a time, or of layers."""

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint, set_checkpoint_early_stop

_ELEMENTS = {"cpu": 1 << 20}  # of the largest array of a chunk: 4 MiB of float32, which stay in the cache
_ELEMENTS_ELSEWHERE = 1 << 26  # 256 MiB


def max_elements(device: torch.device) -> int:
    """Return the most elements that the largest array of a chunk should have."""
    return _ELEMENTS.get(device.type, _ELEMENTS_ELSEWHERE)


def chunks(counts: Sequence[int], widest: int, per_paragraph: int, device: torch.device) -> Iterator[tuple[slice, int]]:
    """Yield slices of neighbouring examples, and the most paragraphs of an example in each.

    A chunk that is padded to that number stays within ``max_elements``, unless it is a single example. ``counts`` [B]
    are the paragraphs of each example, at most ``widest``; a paragraph takes ``per_paragraph`` elements. torch.compile
    gets one chunk, because its graph must not depend on the counts.
    """
    if torch.compiler.is_compiling():
        yield slice(0, None), widest
        return
    budget = max_elements(device)
    start, most = 0, 0
    for stop, count in enumerate(counts):
        wider = max(most, count)
        if stop > start and (stop + 1 - start) * wider * per_paragraph > budget:
            yield slice(start, stop), most
            start, wider = stop, count
        most = wider
    yield slice(start, len(counts)), most


def by_chunks(function: Callable[..., Any], *arrays: Any, elements: int, random: bool) -> Any:
    """Return ``function(*arrays)``, a tensor or several, computed a few examples at a time by :func:`recompute`.

    ``arrays`` are cut along their first axis, except None and those of length 1, which all examples share. The largest
    inner array of ``function`` has ``elements`` elements of each example.
    """
    if torch.compiler.is_compiling():  # one chunk
        return recompute(function, *arrays, random=random)
    parts = []
    for rows, _ in chunks([1] * len(arrays[0]), 1, elements, arrays[0].device):
        inputs = [array if array is None or len(array) == 1 else array[rows] for array in arrays]
        parts.append(recompute(function, *inputs, random=random))
    return torch.cat(parts) if isinstance(parts[0], Tensor) else tuple(map(torch.cat, zip(*parts, strict=True)))


def recompute(function: Callable[..., Any], *tensors: Tensor | None, random: bool) -> Any:
    """Return ``function(*tensors)`` and recompute its inner results in backward. ``random``: it draws random numbers.

    Parameters must be among ``tensors``: then their own module has gathered them (ZeRO-3), also in backward.
    """
    if not torch.is_grad_enabled():
        return function(*tensors)
    return checkpoint(function, *tensors, use_reentrant=True, preserve_rng_state=random)


def recompute_layers(model: nn.Module) -> None:
    """Let every layer of ``model`` keep only its inputs for backward.

    Losses and gradients are the same bit for bit.
    """
    replace_functions(model, _recomputed)


def replace_functions(model: nn.Module, made: Callable[..., Any]) -> None:
    """Let the layers of ``model`` call ``made(function)`` in place of each of their functions for gradients."""

    def chosen(function: Callable[..., Any]) -> Callable[..., Any]:
        other = made(function)
        return lambda *arguments, **options: (other if torch.is_grad_enabled() else function)(*arguments, **options)

    for layer, name in _layer_functions(model):
        layer.__dict__[name] = chosen(getattr(layer, name))


def _layer_functions(model: nn.Module) -> Iterator[tuple[nn.Module, str]]:
    """Yield the layers of ``model``, members of its lists of modules, with the names of their functions."""
    lists = {path: module for path, module in model.named_modules() if isinstance(module, nn.ModuleList)}
    for path, layers in lists.items():
        if any(path.startswith(f"{other}.") for other in lists):
            continue  # inside a layer
        for layer in layers:
            yield from ((layer, name) for name in ("forward", "project_source") if hasattr(layer, name))


def _recomputed(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return ``function`` with activation checkpointing.

    Recomputation does not stop early, because DeepSpeed's ZeRO-3 hooks release parameters at the end of each module.
    """

    def run(*arguments: Any, **options: Any) -> Any:
        with set_checkpoint_early_stop(False):
            return checkpoint(function, *arguments, use_reentrant=False, **options)

    return run
