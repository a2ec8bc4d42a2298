"""Linear layers in int8, for CPUs: weights by row ahead, inputs as they come. Sums are exact, results are fp32."""

import warnings
from typing import Any

import torch
from torch import Tensor

from raysum.errors import UserError


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
