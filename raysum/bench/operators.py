"""The minimum cost of a computation: FLOPs and bytes of each of its matrix products."""

from collections.abc import Callable
from dataclasses import dataclass, field
from math import prod
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from raysum.bench.machine import Machine

_aten = torch.ops.aten
_int8_linear = torch.ops.quantized.linear_dynamic


@dataclass
class Costs(TorchDispatchMode):
    """While entered, count ``flops``, and for each product the pair (FLOPs, bytes read and written).

    Products with int8 weights are counted separately, in ``int8``.
    """

    flops: float = 0.0
    products: list[tuple[float, float]] = field(default_factory=list)
    int8: list[tuple[float, float]] = field(default_factory=list)

    def __post_init__(self) -> None:
        super().__init__()

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        operator, named = function.overloadpacket, kwargs or {}
        if operator not in _COUNTS and operator is not _int8_linear:
            with self:  # in inference mode torch dispatches whole linear layers, which consist of products
                result = function.decompose(*args, **named)
            return function(*args, **named) if result is NotImplemented else result
        result = function(*args, **named)
        output = result if isinstance(result, Tensor) else result[0]
        tensors = [item for item in args if isinstance(item, Tensor)]
        size = float(sum(item.numel() * item.element_size() for item in [*tensors, output]))
        if operator is _int8_linear:  # its packed weight takes one byte per element
            flops, size = 2.0 * tensors[0].numel() * output.shape[-1], size + tensors[0].shape[-1] * output.shape[-1]
            self.int8.append((flops, size))
        else:
            flops = _COUNTS[operator](output, *tensors)
            self.products.append((flops, size))
        self.flops += flops
        return result

    def least_seconds(self, machine: Machine, dtype: str) -> float:
        """Return the sum over products of the longer of arithmetic at the matrix rate and memory traffic.

        An int8 model also has fp32 products, those of its attention.
        """
        parts = (self.products, "fp32" if dtype == "int8" else dtype), (self.int8, "int8")
        return 1e-9 * sum(
            max(flops / machine.gflops[rate], size / machine.read_gb_per_s)
            for products, rate in parts
            for flops, size in products
        )


def _matrix(output: Tensor, *factors: Tensor) -> float:
    return 2.0 * output.numel() * factors[-2].shape[-1]


def _attention(output: Tensor, query: Tensor, key: Tensor, *_: Tensor) -> float:
    """Return the FLOPs of the scores and of their product with the values."""
    return 4.0 * prod(query.shape) * key.shape[-2]


_COUNTS: dict[Any, Callable[..., float]] = {
    _aten.mm: _matrix,
    _aten.addmm: _matrix,
    torch.ops.mkldnn._linear_pointwise: _matrix,
    _aten.bmm: _matrix,
    _aten.baddbmm: _matrix,
    _aten._scaled_dot_product_flash_attention_for_cpu: _attention,
    _aten._scaled_dot_product_flash_attention: _attention,
    _aten._scaled_dot_product_efficient_attention: _attention,
    _aten._scaled_dot_product_cudnn_attention: _attention,
}
