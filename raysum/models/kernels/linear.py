"""How a model that is only run keeps its linear layers on a CPU: laid out for products in fp32, or in int8.

torch's own products of fp32 take a matrix as it comes, by MKL, which is slow on processors of other makers. Measured on
an AMD EPYC (Zen 5), 2 threads, matrices of width 256 to 768: oneDNN's products with matrices laid out ahead run at 430
to 460 GFLOP/s against 195 of 922 rows, and of 4 rows at 37 to 55 GB/s of weights against 12.
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from raysum.models.kernels.int8 import check_int8, int8_linear
from raysum.runtime.private import packed_linear

_LEAST = 1 << 16  # numbers of a matrix that is laid out: a product by oneDNN begins 10 microseconds later


def only_run(model: Any, dtype: str = "fp32") -> Any:
    """``model``, whose linear layers, the tied output included, are replaced as fits ``dtype``; embeddings stay.

    In ``int8``, or in ``fp32`` laid out where it is on a CPU; else nothing changes. It cannot be trained or saved then.
    Raises UserError for int8 where the model is not on a CPU, or torch has no int8 engine for it.
    """
    if dtype == "int8":
        check_int8(next(model.parameters()).device)
        _replace(model, int8_linear)
    elif dtype == "fp32" and next(model.parameters()).device.type == "cpu":
        _replace(model, LaidOut.of)
    return model


class LaidOut(nn.Module):
    """A linear layer [..., inputs] -> [..., outputs] with its matrix laid out."""

    def __init__(self, product: Callable[[Tensor], Tensor]):
        super().__init__()
        self.product = product

    @classmethod
    def of(cls, weight: Tensor, bias: Tensor | None) -> nn.Module | None:
        """None where torch cannot lay it out, or it does not pay."""
        product = packed_linear(weight, bias) if weight.numel() >= _LEAST else None
        return None if product is None else cls(product)

    def forward(self, x: Tensor) -> Tensor:
        return self.product(x)


@torch.no_grad()
def _replace(model: Any, make: Callable[[Tensor, Tensor | None], nn.Module | None]) -> None:
    if getattr(model, "output", model) is None:
        model.output = make(model.embedding.weight, model.embedding.bias)
    for module in list(model.modules()):
        for name, child in module.named_children():
            if isinstance(child, nn.Linear) and (made := make(child.weight, child.bias)) is not None:
                setattr(module, name, made)
