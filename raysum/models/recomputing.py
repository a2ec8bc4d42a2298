"""Activation checkpointing of layers: less memory for one more forward pass through each layer."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint, set_checkpoint_early_stop

from raysum.models.batch import Memory, SourceKeys


def recompute_layers(model: nn.Module) -> None:
    """Let every layer of ``model``, a member of its lists of modules, keep only its inputs for backward.

    A decoder layer also recomputes its keys of the source. Losses and gradients are the same bit for bit.
    """
    lists = {path: module for path, module in model.named_modules() if isinstance(module, nn.ModuleList)}
    for path, layers in lists.items():
        if any(path.startswith(f"{other}.") for other in lists):
            continue  # inside a layer
        layer: Any
        for layer in layers:
            if cross := getattr(layer, "cross", None):
                layer.__dict__["forward"] = _recomputed(layer.forward, cross.project_source)
                cross.__dict__["project_source"] = _deferred(cross.project_source)
            else:
                layer.__dict__["forward"] = _recomputed(layer.forward)
            if hasattr(layer, "project_source"):  # decoder-only models
                layer.__dict__["project_source"] = _recomputed(layer.project_source)


@dataclass(frozen=True)
class _DeferredKeys(SourceKeys):
    """What a decoder layer needs to project its keys of the source."""

    memory: Memory


def _deferred(project: Callable[[Memory], SourceKeys]) -> Callable[[Memory], SourceKeys]:
    """Return ``project``, which with gradients only defers the projection to the layer."""

    def defer(memory: Memory) -> SourceKeys:
        return _DeferredKeys(memory.source.layout.counts, memory) if torch.is_grad_enabled() else project(memory)

    return defer


def _recomputed(function: Callable[..., Any], project: Callable[[Memory], Any] | None = None) -> Any:
    """Return ``function`` with activation checkpointing; ``project`` computes deferred keys inside it.

    Recomputation does not stop early, because DeepSpeed's ZeRO-3 hooks release parameters at the end of each module.
    """

    def keys_of(argument: Any) -> Any:
        if project is None or not isinstance(argument, _DeferredKeys):
            return argument
        keys = project(argument.memory)
        return keys if argument.ids is None else replace(keys, ids=argument.ids)

    def forward(*arguments: Any, **options: Any) -> Any:
        return function(*map(keys_of, arguments), **options)

    def run(*arguments: Any, **options: Any) -> Any:
        if not torch.is_grad_enabled():
            return forward(*arguments, **options)
        with set_checkpoint_early_stop(False):
            return checkpoint(forward, *arguments, use_reentrant=False, **options)

    return run
