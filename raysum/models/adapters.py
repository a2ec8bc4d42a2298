"""Low-rank adapters: a training that moves little of a model, and leaves one without adapters behind."""

import math
from collections.abc import Collection, Iterator, Mapping
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from raysum.errors import UserError
from raysum.models.kernels.dropout import Dropout
from raysum.models.kernels.linear import Linear
from raysum.models.specs.backbone import Adapters
from raysum.systems import Spec, build

_PARTS_OF = {"attention": {"attention", "cross"}, "ffn": {"ffn", "intermediate"}}  # in the names of modules
_DOWN, _UP = "adapter_down", "adapter_up"


class Adapted(Linear):
    """A linear layer with an adapter; of matrices side by side (``layer.parts``) each has one of its own.

    B is 0 at first, so that nothing is changed.
    """

    def __init__(self, layer: nn.Linear, settings: Adapters):
        nn.Module.__init__(self)
        self.in_features, self.out_features = layer.in_features, layer.out_features
        self.weight, self.bias = layer.weight, layer.bias
        self.parts: int = getattr(layer, "parts", 1)
        self.adapter_down = nn.Parameter(layer.weight.new_empty(self.parts * settings.rank, layer.in_features))
        self.adapter_up = nn.Parameter(layer.weight.new_zeros(layer.out_features, settings.rank))
        nn.init.kaiming_uniform_(self.adapter_down, a=math.sqrt(5))  # as a linear layer of torch starts
        self.scale, self.dropout = settings.alpha / settings.rank, Dropout(settings.dropout)

    def forward(self, x: Tensor) -> Tensor:
        low = F.linear(self.dropout(x), self.adapter_down)
        return super().forward(x) + F.linear(low, self._joined(self.adapter_up))

    def merged(self, weight: Tensor, down: Tensor, up: Tensor) -> Tensor:
        """The matrix that alone does what ``weight`` and the adapter do."""
        return weight + self._joined(up) @ down

    def _joined(self, up: Tensor) -> Tensor:
        """B of all parts [outputs, parts * rank], 0 where a part meets what another has read; scaled."""
        return self.scale * torch.block_diag(*up.chunk(self.parts))


def adapt(model: nn.Module, settings: Adapters, new: Collection[str]) -> None:
    """Give ``model`` adapters and freeze the rest, but for the parameters named ``new``.

    Raises UserError where no matrix would get one.
    """
    chosen = [*_chosen(model, settings, new)]
    if not chosen:
        raise UserError(
            f"adapters.rank={settings.rank} is too much for every matrix of adapters.matrices={settings.matrices} that "
            "the start has; take a smaller one, or other matrices"
        )
    for name, parameter in model.named_parameters():
        is_embedding = any("embedding" in part or part == "output" for part in name.split(".")[:2])
        if name not in new and not (settings.embeddings and is_embedding):
            parameter.requires_grad_(False)
    for path, layer in chosen:
        parent, _, name = path.rpartition(".")
        setattr(model.get_submodule(parent), name, Adapted(layer, settings))


def _chosen(model: nn.Module, settings: Adapters, new: Collection[str]) -> Iterator[tuple[str, nn.Linear]]:
    """The layers that get an adapter: not the output layer, which is read as a matrix, and none that has fewer
    parameters than its adapter."""
    for path, layer in model.named_modules():
        if type(layer).forward is not Linear.forward or path == "output" or f"{path}.weight" in new:
            continue
        if settings.matrices != "all" and not _PARTS_OF[settings.matrices] & {*path.split(".")}:
            continue
        parts = getattr(layer, "parts", 1)
        if settings.rank * (parts * layer.in_features + layer.out_features) < layer.weight.numel():
            yield path, layer


def is_adapter(name: str) -> bool:
    """Whether a parameter of that name is one."""
    return name.endswith((_DOWN, _UP))


def merged(model: nn.Module, weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """``weights``, all parameters of ``model``, as those of a model without adapters, in their order."""
    plain = {name: value for name, value in weights.items() if not is_adapter(name)}
    for path, layer in model.named_modules():
        if isinstance(layer, Adapted):
            parts: Any = (weights[f"{path}.{part}"] for part in ("weight", _DOWN, _UP))
            plain[f"{path}.weight"] = layer.merged(*parts)
    return plain


def trained_share(spec: Spec, settings: Adapters, new: Collection[str]) -> str:
    """How many parameters of a model with adapters are trained, for people. Raises UserError as :func:`adapt`."""
    with torch.device("meta"):
        model = build(spec)
        adapt(model, settings, new)
    trained, total = (sum(p.numel() for p in model.parameters() if p.requires_grad or every) for every in (False, True))
    return f"{trained:,} of {total:,} parameters are trained ({trained / total:.1%})"
