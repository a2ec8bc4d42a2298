"""Layers whose inner results are made again for backward: less memory, one more forward pass through each layer."""

from collections.abc import Callable
from dataclasses import dataclass, fields, is_dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from raysum.models.batch import Memory, SourceKeys
from raysum.models.kernels.pieces import recompute


def recompute_layers(model: nn.Module) -> None:
    """Let every layer of ``model``, the members of its lists of modules, keep its inputs alone for backward.

    A decoder layer makes its keys of the source again, too. Losses and gradients are the same bit for bit.
    """
    lists = {path: module for path, module in model.named_modules() if isinstance(module, nn.ModuleList)}
    for path, layers in lists.items():
        if any(path.startswith(f"{other}.") for other in lists):
            continue  # inside of a layer
        layer: Any
        for layer in layers:
            cross = getattr(layer, "cross", None)
            layer.__dict__["forward"] = _recomputed(layer, layer.forward, getattr(cross, "read", None))
            if cross is not None:
                cross.__dict__["read"] = _later(cross.read)
            if hasattr(layer, "read"):  # the way of the source through a layer of decoder-only models
                layer.__dict__["read"] = _recomputed(layer, layer.read)


@dataclass(frozen=True)
class _Unread(SourceKeys):
    """In place of the keys of a decoder layer: what it makes them of."""

    memory: Memory


def _later(read: Callable[[Memory], SourceKeys]) -> Callable[[Memory], SourceKeys]:
    def unread(memory: Memory) -> SourceKeys:
        return _Unread(memory.source.layout.counts, memory) if torch.is_grad_enabled() else read(memory)

    return unread


def _recomputed(layer: nn.Module, function: Callable[..., Any], read: Callable[[Memory], Any] | None = None) -> Any:
    """``function`` of a layer, made again in backward; ``read`` makes keys of what is unread.

    Tensors go in and come out one by one, those inside of dataclasses, too: what remembers the function holds none,
    or it would until the loss is forgotten. ``recompute`` wants parameters as arguments; here they are those of modules
    inside of the layer, and ZeRO-3 gathers them when these are called, in backward, too.
    """

    def whole(args: Any, named: Any) -> Any:
        return function(*(_read(arg, read) for arg in args), **named)

    def run(*args: Any, **named: Any) -> Any:
        taken: list[Tensor] = []
        inputs = _mapped((args, named), lambda tensor: _slot(tensor, taken, tensor.requires_grad))
        if not torch.is_grad_enabled() or not (taken or any(p.requires_grad for p in layer.parameters())):
            return whole(args, named)
        outputs: list[Any] = []

        def inner(_: Tensor, *given: Tensor) -> tuple[Tensor, ...]:
            made: list[Tensor] = []
            found = whole(*_mapped(inputs, lambda slot: given[slot] if isinstance(slot, _Slot) else slot))
            outputs[:] = [_mapped(found, lambda tensor: _slot(tensor, made, tensor.is_floating_point()))]
            return tuple(made)

        # Where embeddings are frozen no input has a gradient, and then none of the parameters would get one.
        made = recompute(inner, torch.zeros((), requires_grad=True), *taken, random=True)
        return _mapped(outputs.pop(), lambda slot: made[slot] if isinstance(slot, _Slot) else slot)

    return run


def _read(arg: Any, read: Callable[[Memory], Any] | None) -> Any:
    if not isinstance(arg, _Unread) or read is None:
        return arg
    keys = read(arg.memory)
    return keys if arg.ids is None else replace(keys, ids=arg.ids)


class _Slot(int):
    """The place of a tensor among those that go into or come out of a layer."""


def _slot(tensor: Any, taken: list[Tensor], is_taken: bool) -> Any:
    if not is_taken:
        return tensor
    taken.append(tensor)
    return _Slot(len(taken) - 1)


def _mapped(value: Any, change: Callable[[Any], Any]) -> Any:
    """``value`` with its tensors and slots changed, wherever they are in it; itself where none was."""
    if isinstance(value, Tensor | _Slot):
        return change(value)
    if is_dataclass(value) and not isinstance(value, type):
        parts = {field.name: getattr(value, field.name) for field in fields(value)}
        found = _mapped(parts, change)
        return value if found is parts else replace(value, **found)
    if isinstance(value, dict):
        named = {name: _mapped(part, change) for name, part in value.items()}
        return value if all(named[name] is part for name, part in value.items()) else named
    if type(value) is tuple:
        made = tuple(_mapped(part, change) for part in value)
        return value if all(one is part for one, part in zip(made, value, strict=True)) else made
    return value
