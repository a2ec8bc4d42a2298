"""Low-rank adapters, which train few parameters of a model; the saved model has none."""

import math
from collections.abc import Collection, Iterator, Mapping
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from raysum.errors import UserError
from raysum.models.family.spec import Adapters
from raysum.models.kernels.dropout import Dropout
from raysum.models.kernels.linear import Linear
from raysum.systems import Spec, build

_MODULES = {"attention": {"attention", "cross"}, "ffn": {"ffn", "intermediate"}}  # by parts of module names
_DOWN, _UP = "adapter_down", "adapter_up"


class AdaptedLinear(Linear):
    """A linear layer with an adapter, or one for each of several matrices side by side (``layer.parts``).

    B starts at 0, so the layer starts unchanged.
    """

    def __init__(self, layer: nn.Linear, settings: Adapters):
        nn.Module.__init__(self)
        self.in_features, self.out_features = layer.in_features, layer.out_features
        self.weight, self.bias = layer.weight, layer.bias
        self.parts: int = getattr(layer, "parts", 1)
        self.adapter_down = nn.Parameter(layer.weight.new_empty(self.parts * settings.rank, layer.in_features))
        self.adapter_up = nn.Parameter(layer.weight.new_zeros(layer.out_features, settings.rank))
        nn.init.kaiming_uniform_(self.adapter_down, a=math.sqrt(5))  # as torch initializes linear layers
        self.scale, self.dropout = settings.alpha / settings.rank, Dropout(settings.dropout)

    def forward(self, x: Tensor) -> Tensor:
        low = F.linear(self.dropout(x), self.adapter_down)
        return super().forward(x) + F.linear(low, self._joined(self.adapter_up))

    def merged(self, weight: Tensor, down: Tensor, up: Tensor) -> Tensor:
        """Return the matrix that computes the same as ``weight`` with the adapter."""
        return weight + self._joined(up) @ down

    def _joined(self, up: Tensor) -> Tensor:
        """Return B of all parts [outputs, parts * rank], scaled, and 0 where a part would use another part's input."""
        return self.scale * torch.block_diag(*up.chunk(self.parts))


def adapt(model: nn.Module, settings: Adapters, new: Collection[str]) -> None:
    """Give ``model`` adapters and freeze all other parameters except those named ``new``.

    Raises UserError if no matrix can have one.
    """
    layers = [*_adaptable(model, settings, new)]
    if not layers:
        where = f"all matrices of adapters.matrices={settings.matrices}"
        raise UserError(
            f"adapters.rank={settings.rank} is too large for {where}: set a smaller rank, or other matrices"
        )
    for name, parameter in model.named_parameters():
        is_embedding = any("embedding" in part or part == "output" for part in name.split(".")[:2])
        if name not in new and not (settings.embeddings and is_embedding):
            parameter.requires_grad_(False)
    for path, layer in layers:
        parent, _, name = path.rpartition(".")
        setattr(model.get_submodule(parent), name, AdaptedLinear(layer, settings))


def _adaptable(model: nn.Module, settings: Adapters, new: Collection[str]) -> Iterator[tuple[str, nn.Linear]]:
    """Yield the layers that get an adapter, with their paths.

    The output layer is excluded, because it is used as a matrix, and layers smaller than their adapter.
    """
    for path, layer in model.named_modules():
        if type(layer).forward is not Linear.forward or path == "output" or f"{path}.weight" in new:
            continue
        if settings.matrices != "all" and not _MODULES[settings.matrices] & {*path.split(".")}:
            continue
        parts = getattr(layer, "parts", 1)
        if settings.rank * (parts * layer.in_features + layer.out_features) < layer.weight.numel():
            yield path, layer


def is_adapter(name: str) -> bool:
    """Return whether ``name`` is a parameter of an adapter."""
    return name.endswith((_DOWN, _UP))


def merge_adapters(model: nn.Module, weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return ``weights``, all parameters of ``model``, as those of a model without adapters, in their order."""
    plain = {name: value for name, value in weights.items() if not is_adapter(name)}
    for path, layer in model.named_modules():
        if isinstance(layer, AdaptedLinear):
            parts: Any = (weights[f"{path}.{part}"] for part in ("weight", _DOWN, _UP))
            plain[f"{path}.weight"] = layer.merged(*parts)
    return plain


def trained_share(spec: Spec, settings: Adapters, new: Collection[str]) -> str:
    """Return how many parameters of a model with adapters are trained, as text. Raises UserError as ``adapt`` does."""
    with torch.device("meta"):
        model = build(spec)
        adapt(model, settings, new)
    trained, total = (sum(p.numel() for p in model.parameters() if p.requires_grad or every) for every in (False, True))
    return f"{trained:,} of {total:,} parameters are trained ({trained / total:.1%})"
