"""Linear layers on a CPU: oneDNN in fp32; for inference, prepacked matrices or int8.

torch's own fp32 products use MKL, which is slow on processors of other makers. Measured on an AMD EPYC (Zen 5), 2
threads, matrices of width 256 to 3,072: 512 to 4,000 rows at 325 to 460 GFLOP/s instead of 180 to 205, their gradients
at 240 to 430 instead of 180 to 205; with prepacked matrices, 4 rows read them at 37 to 55 GB/s instead of 12.
"""

import warnings
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from raysum.errors import UserError
from raysum.models.kernels.device import has_cpu_kernels
from raysum.runtime.compat import onednn_linear, packed_weight

_LEAST_PACKED = 1 << 16  # elements of a matrix that gains from prepacking
_LEAST_MATRIX = 1 << 18  # elements of a matrix that gains from oneDNN with gradients: 1.0 to 1.3 times as fast
_LEAST_WORK = 1 << 23  # multiplications of a product that gains from oneDNN, which starts 10 microseconds later


class Linear(nn.Linear):
    """torch's layer, computed by :func:`linear`."""

    def forward(self, x: Tensor) -> Tensor:
        return linear(x, self.weight, self.bias)


def linear(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """Return [..., outputs] from x [..., inputs], weight [outputs, inputs] and bias [outputs], as torch's function.

    The kernel depends only on the size of ``weight``, never on that of ``x``, because ranks have batches of different
    sizes and each kernel has its own autograd graph: gradients would be ready in different orders, and ZeRO-2 and
    ZeRO-3 would add those of different parameters. Recomputation also needs one kernel with and without gradients.
    """
    # A trace cannot ask for a size; models that are traced have prepacked their large matrices.
    if torch.jit.is_tracing() or weight.numel() < _LEAST_MATRIX or not _has_onednn(x, weight):
        return F.linear(x, weight, bias)
    return _Linear.apply(x, weight, bias) if torch.is_grad_enabled() else onednn_linear(x, weight, bias)


def product(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """Return the values of :func:`linear` without gradients, by the faster kernel for these sizes."""
    is_large = x.numel() * weight.shape[0] >= _LEAST_WORK and _has_onednn(x, weight)
    return onednn_linear(x, weight, bias) if is_large else F.linear(x, weight, bias)


def _has_onednn(x: Tensor, weight: Tensor) -> bool:
    return (
        has_cpu_kernels(x.device)
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


@torch.no_grad()
def optimize_for_inference(model: Any, dtype: str = "fp32") -> Any:
    """Return ``model`` with its linear layers, also a tied output layer, replaced as ``dtype`` requires.

    ``int8`` quantizes them and embeddings; ``bf16`` rounds them, as autocast does in every step; ``fp32`` prepacks them
    on a CPU. The model cannot be trained or saved afterwards. Raises UserError for int8 if the model is not on a CPU,
    or torch has no int8 engine.
    """
    if dtype == "int8":
        check_int8(next(model.parameters()).device)
    makers = {"fp32": PackedLinear.of, "bf16": bf16_linear, "int8": int8_linear}
    make: Callable[[Tensor, Tensor | None], Any] = makers[dtype]
    if getattr(model, "output", model) is None:
        model.output = make(model.embedding.weight, model.embedding.bias)
    # Linear layers excluded, so that replaced ones can be freed.
    for module in [module for module in model.modules() if not isinstance(module, nn.Linear)]:
        for name, child in module.named_children():
            if isinstance(child, nn.Linear) and (replacement := make(child.weight, child.bias)) is not None:
                setattr(module, name, replacement)
            elif dtype == "int8" and hasattr(child, "int8"):
                setattr(module, name, child.int8())
    if hasattr(model, "trace_steps"):
        model.trace_steps()
    return model


class PackedLinear(nn.Module):
    """A linear layer [..., inputs] -> [..., outputs] with a prepacked matrix, which copies of it share."""

    def __init__(self, product: Callable[[Tensor], Tensor], packed: Any, bias: Tensor | None = None):
        """``product`` uses ``packed``, which a trace finds only in a module, and ``bias``."""
        super().__init__()
        self.forward = product
        for name, value in (("packed", packed), ("bias", bias)):
            if value is None or isinstance(value, Tensor):  # constants of a trace would outlive the model
                self.register_buffer(name, value, persistent=False)
            else:
                setattr(self, name, value)

    def __deepcopy__(self, _: Any) -> "PackedLinear":
        return self

    def _apply(self, *_: Any, **__: Any) -> "PackedLinear":
        """Leave the matrix as it is: its layout is that of one device and precision."""
        return self

    @classmethod
    def of(cls, weight: Tensor, bias: Tensor | None) -> nn.Module | None:
        """Return the layer, or None if torch cannot prepack the matrix or it is too small to gain from it."""
        packed = packed_weight(weight) if weight.numel() >= _LEAST_PACKED else None
        bias = None if bias is None else bias.detach()
        return None if packed is None else cls(lambda x: onednn_linear(x, packed, bias), packed, bias)


def bf16_linear(weight: Tensor, bias: Tensor | None = None) -> PackedLinear:
    """Return the bf16 layer of ``weight`` [outputs, inputs] and ``bias`` [outputs]: the values of autocast.

    In inference mode autocast (torch 2.13) does not keep its bf16 copies of weights.
    """
    weight, bias = weight.detach().bfloat16(), None if bias is None else bias.detach().bfloat16()
    return PackedLinear(lambda x: F.linear(x.bfloat16(), weight, bias), weight, bias)


def check_int8(device: torch.device) -> None:
    """Raise UserError if ``device`` or this build of torch has no int8 layers."""
    if device.type != "cpu":
        raise UserError(f"dtype int8 needs a CPU, but the device is {device.type}: use bf16 there, or device='cpu'")
    if torch.backends.quantized.engine == "none":
        raise UserError("this build of torch has no int8 engine for this processor: use fp32 or bf16")


def int8_linear(weight: Tensor, bias: Tensor | None = None) -> nn.Module:
    """Return the int8 layer of ``weight`` [outputs, inputs], with a scale for each row, and ``bias`` [outputs].

    Its inputs are quantized when it runs, to 7 bits, because sums of 8 bits overflow without VNNI; sums are exact, and
    results are fp32. torch's own layer takes 10 microseconds more of every call.
    """
    scales = _scales(weight).double()
    zeros = torch.zeros(len(weight), dtype=torch.long)
    with warnings.catch_warnings():  # torch 2.13 deprecates these tensors without a replacement
        warnings.filterwarnings("ignore", "torch.quantize_per_tensor", UserWarning)
        quantized = torch.quantize_per_channel(weight.detach(), scales, zeros, 0, torch.qint8)
    packed = torch.ops.quantized.linear_prepack(quantized, bias)
    return PackedLinear(lambda x: torch.ops.quantized.linear_dynamic(x, packed, True), packed)


def _scales(weight: Tensor) -> Tensor:
    """Return the largest absolute value of each row over 127."""
    return weight.abs().amax(1).clamp_min(torch.finfo(weight.dtype).tiny) / 127


class Int8Embedding(nn.Module):
    """Rows of an embedding in int8, with a scale for each, the same as those of :func:`int8_linear`."""

    scales: Tensor
    rows: Tensor

    def __init__(self, weight: Tensor, factor: float):
        """``weight`` [V, D]; embeddings are multiplied by ``factor``."""
        super().__init__()
        scales = _scales(weight.detach())
        self.register_buffer("scales", scales, persistent=False)
        rows = (weight.detach() / scales[:, None]).round_().to(torch.int8)
        self.register_buffer("rows", rows, persistent=False)
        self.factor = factor

    def forward(self, x: Tensor) -> Tensor:
        return self.rows[x] * (self.scales[x] * self.factor)[..., None]
