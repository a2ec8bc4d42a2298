"""Layers compiled by torch.compile."""

from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from raysum.models.kernels.recomputation import layer_functions
from raysum.runtime.compat import compiled

BACKEND = "inductor"


def compile_layers(model: nn.Module) -> None:
    """Let torch.compile make the kernels of every layer of ``model`` where gradients are needed.

    Layers of one kind share their code, and one code serves batches of all sizes. Names of parameters do not change.
    """
    for layer, name in layer_functions(model):
        layer.__dict__[name] = _compiled(getattr(layer, name))


def _compiled(function: Callable[..., Any]) -> Callable[..., Any]:
    fast = compiled(function, BACKEND)

    def run(*arguments: Any, **options: Any) -> Any:
        return (fast if torch.is_grad_enabled() else function)(*arguments, **options)

    return run
