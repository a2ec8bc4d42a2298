"""Layers compiled by torch.compile."""

from torch import nn

from raysum.models.kernels.recomputation import replace_functions
from raysum.runtime.compat import compiled

BACKEND = "inductor"


def compile_layers(model: nn.Module) -> None:
    """Let torch.compile make the kernels of every layer of ``model`` where gradients are needed.

    Layers of one kind share their code, and one code serves batches of all sizes. Names of parameters do not change.
    """
    replace_functions(model, lambda function: compiled(function, BACKEND))
