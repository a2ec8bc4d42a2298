"""Linear layers on a CPU: by oneDNN in fp32, and in models that are only run laid out ahead, or in int8.

torch's own products of fp32 take MKL, which is slow on processors of other makers. Measured on an AMD EPYC (Zen 5), 2
threads, matrices of width 256 to 3,072: 512 to 4,000 rows at 325 to 460 GFLOP/s against 180 to 205, their gradients at
240 to 430 against 180 to 205; with matrices laid out ahead 4 rows read them at 37 to 55 GB/s against 12.
"""

import warnings
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from raysum.errors import UserError
from raysum.runtime.compat import onednn_linear, packed_linear

_LEAST_LAID_OUT = 1 << 16  # numbers of a matrix from which laying it out pays
_LEAST_MATRIX = 1 << 18  # numbers of a matrix from which oneDNN pays with gradients: 1.0 to 1.3 times as fast
_LEAST_WORK = 1 << 23  # multiplications of a product from which oneDNN pays, which begins 10 microseconds later


class Linear(nn.Linear):
    """torch's layer, computed by :func:`linear`."""

    def forward(self, x: Tensor) -> Tensor:
        return linear(x, self.weight, self.bias)


def linear(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """x [..., inputs], weight [outputs, inputs], bias [outputs] -> [..., outputs], like torch's function.

    The kernel depends on the size of ``weight`` alone, never on that of ``x``. Each kernel has an autograd graph of its
    own, and ranks have batches of different sizes: if their graphs differed, gradients would be ready in different
    orders, and ZeRO-2 and ZeRO-3 would add those of different parameters. Recomputation needs the same choice with and
    without gradients.
    """
    if weight.numel() < _LEAST_MATRIX or not _has_onednn(x, weight):
        return F.linear(x, weight, bias)
    return _Linear.apply(x, weight, bias) if torch.is_grad_enabled() else onednn_linear(x, weight, bias)


def product(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """The values of :func:`linear` without gradients, by the faster kernel for these sizes."""
    pays = x.numel() * weight.shape[0] >= _LEAST_WORK and _has_onednn(x, weight)
    return onednn_linear(x, weight, bias) if pays else F.linear(x, weight, bias)


def _has_onednn(x: Tensor, weight: Tensor) -> bool:
    return (
        x.device.type == "cpu"
        and x.dtype == weight.dtype == torch.float32
        and torch.backends.mkldnn.is_available()
        and not torch.is_autocast_enabled("cpu")
    )


class _Linear(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        ctx.save_for_backward(x, weight)
        return onednn_linear(x, weight, bias)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        x, weight = ctx.saved_tensors
        rows = gradient.flatten(0, -2)
        x_needed, weight_needed, bias_needed = ctx.needs_input_grad
        return (
            product(gradient, weight.t()) if x_needed else None,
            product(rows.t(), x.flatten(0, -2).t()) if weight_needed else None,
            rows.sum(0) if bias_needed else None,
        )


def only_run(model: Any, dtype: str = "fp32") -> Any:
    """``model``, whose linear layers, the tied output included, are replaced as fits ``dtype``; embeddings stay.

    In ``int8``, or in ``fp32`` laid out where it is on a CPU; else nothing changes. It cannot be trained or saved then.
    Raises UserError for int8 where the model is not on a CPU, or torch has no int8 engine for it.
    """
    if dtype == "int8":
        check_int8(next(model.parameters()).device)
        _replace(model, int8_linear)
    elif dtype == "fp32":
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
        product = packed_linear(weight, bias) if weight.numel() >= _LEAST_LAID_OUT else None
        return None if product is None else cls(product)

    def forward(self, x: Tensor) -> Tensor:
        return self.product(x)


@torch.no_grad()
def _replace(model: Any, make: Callable[[Tensor, Tensor | None], nn.Module | None]) -> None:
    if getattr(model, "output", model) is None:
        model.output = make(model.embedding.weight, model.embedding.bias)
    parents = [module for module in model.modules() if not isinstance(module, nn.Linear)]  # replaced ones are let go
    for module in parents:
        for name, child in module.named_children():
            if isinstance(child, nn.Linear) and (made := make(child.weight, child.bias)) is not None:
                setattr(module, name, made)


def check_int8(device: torch.device) -> None:
    """Raises UserError where there are no such layers."""
    if device.type != "cpu":
        raise UserError(f"dtype int8 is for CPUs, and this is {device.type}; use bf16 there, or device='cpu'")
    if torch.backends.quantized.engine == "none":
        raise UserError("this build of torch has no int8 engine for this processor; use fp32 or bf16")


def int8_linear(weight: Tensor, bias: Tensor | None = None) -> Any:
    """The layer of ``weight`` [outputs, inputs], whose every row has a scale of its own, and ``bias`` [outputs]."""
    from torch.ao.nn.quantized.dynamic import Linear

    scales = weight.abs().amax(1).clamp_min(torch.finfo(weight.dtype).tiny).double() / 127
    zeros = torch.zeros(len(weight), dtype=torch.long)
    with warnings.catch_warnings():  # torch 2.13 announces that these tensors will go; no other torch op does this yet
        warnings.filterwarnings("ignore", "torch.quantize_per_tensor", UserWarning)
        layer = Linear(weight.shape[1], weight.shape[0])
        layer.set_weight_bias(torch.quantize_per_channel(weight.detach(), scales, zeros, 0, torch.qint8), bias)
    return layer
