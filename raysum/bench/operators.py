"""What a computation costs at least: FLOPs and bytes of each of its matrix products, seen as torch runs them."""

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
    """Counts while it is entered: ``flops``, and for each product the pair (FLOPs, bytes read and written).

    Products with int8 weights stand apart, in ``int8``.
    """

    flops: float = 0.0
    products: list[tuple[float, float]] = field(default_factory=list)
    int8: list[tuple[float, float]] = field(default_factory=list)

    def __post_init__(self) -> None:
        super().__init__()

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        count = _COUNTS.get(function.overloadpacket)
        if function.overloadpacket is _int8_linear:
            result, x = function(*args, **(kwargs or {})), args[0]
            weights, moved = x.shape[-1] * result.shape[-1], x.numel() + result.numel()
            self._count(self.int8, 2.0 * x.numel() * result.shape[-1], weights + 4.0 * moved)
            return result
        if count is None:
            with self:  # in inference mode torch hands on whole linear layers, which are made of products
                result = function.decompose(*args, **(kwargs or {}))
            if result is not NotImplemented:
                return result
        result = function(*args, **(kwargs or {}))
        if count is not None:
            output = result if isinstance(result, Tensor) else result[0]
            tensors = [item for item in args if isinstance(item, Tensor)]
            size = sum(item.numel() * item.element_size() for item in [*tensors, output])
            self._count(self.products, count(output, *tensors), float(size))
        return result

    def _count(self, products: list[tuple[float, float]], operations: float, size: float) -> None:
        self.flops += operations
        products.append((operations, size))

    def least_seconds(self, machine: Machine, dtype: str) -> float:
        """For each product the longer of its arithmetic at the matrix rate and its memory traffic, summed.

        A model in int8 has products in fp32 too, those of its attention.
        """
        parts = (self.products, "fp32" if dtype == "int8" else dtype), (self.int8, "int8")
        bandwidth = 1e9 * machine.read_gb_per_s
        return sum(
            max(flops / (1e9 * machine.gflops[rate]), size / bandwidth)
            for products, rate in parts
            for flops, size in products
        )


def _matrix(output: Tensor, *factors: Tensor) -> float:
    return 2.0 * output.numel() * factors[-2].shape[-1]


def _attention(output: Tensor, query: Tensor, key: Tensor, *_: Tensor) -> float:
    """The scores and their product with the values."""
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
