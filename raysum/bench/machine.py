"""The limits of a machine (matrix rate by dtype, memory bandwidth), and the least time of a computation on it."""

import platform
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from math import prod
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from raysum.models.kernels.linear import PackedLinear, int8_linear
from raysum.runtime.placement import device
from raysum.runtime.processes import cores

DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16}
_CPU_SIDE, _GPU_SIDE = 2048, 8192  # rows of square matrices; larger ones are not faster
_LEAST_SIDE, _LONGEST = 256, 1.0  # on a CPU, a product that would take more seconds has fewer rows
_READ = 512 << 20  # bytes to sum: much larger than any cache
_INT8_LINEAR = "quantized::linear_dynamic"
_SECONDS = 1.0  # of repetition for each figure; the fastest counts


@dataclass(frozen=True)
class Machine:
    """The measured limits; each rate is the best repetition within one second.

    ``gflops``: 1e9 operations per second in products of square matrices by dtype, prepacked on a CPU;
    ``read_gb_per_s``: 1e9 bytes per second when summing 512 MiB.
    """

    processor: str
    cores: int
    threads: int
    device: str
    torch: str
    gflops: dict[str, float]
    read_gb_per_s: float

    def __str__(self) -> str:
        rates = ", ".join(f"{rate:,.0f} GFLOP/s {dtype}" for dtype, rate in self.gflops.items())
        return (
            f"{self.processor}, {self.cores} cores, {self.threads} threads, {self.device}, torch {self.torch}; "
            f"matrix products {rates}; reads {self.read_gb_per_s:.0f} GB/s"
        )


def measure(threads: int, dtypes: list[str]) -> Machine:
    """Measure the machine with ``threads`` threads, in this process."""
    torch.set_num_threads(threads)
    target = device()
    values = torch.ones(_READ // 4, device=target)
    return Machine(
        processor=torch.cuda.get_device_name() if target.type == "cuda" else _processor(),
        cores=cores(),
        threads=threads,
        device=target.type,
        torch=torch.__version__,
        gflops={dtype: _rate(dtype, target) for dtype in dtypes},
        read_gb_per_s=round(1e-9 * _READ / fastest(values.sum), 1),
    )


def _rate(dtype: str, target: torch.device) -> float:
    """Return 1e9 operations per second in products of square matrices."""
    side = _GPU_SIDE
    if target.type == "cpu":
        few = fastest(_product(dtype, _LEAST_SIDE, target), seconds=0.1)
        side = _CPU_SIDE
        while side > _LEAST_SIDE and few * (side / _LEAST_SIDE) ** 3 > _LONGEST:
            side //= 2
    return round(2e-9 * side**3 / fastest(_product(dtype, side, target)), 1)


def fastest(work: Callable[[], Any], seconds: float = _SECONDS) -> float:
    """Return the seconds of the fastest run of ``work`` within about ``seconds``, after a warm-up."""
    work()
    runs: list[float] = []
    end = time.perf_counter() + seconds
    while not runs or time.perf_counter() < end:
        runs.append(timed(work))
    return min(runs)


def timed(work: Callable[[], Any]) -> float:
    """Return the seconds of one run of ``work``, including the device's part."""
    _wait()
    start = time.perf_counter()
    work()
    _wait()
    return time.perf_counter() - start


def cpu_timed(work: Callable[..., Any], *arguments: Any) -> tuple[float, Any]:
    """Return the CPU seconds of this process in ``work(*arguments)``, which other processes hardly affect, and its
    result."""
    start = time.process_time()
    result = work(*arguments)
    return time.process_time() - start, result


def _wait() -> None:
    if torch.cuda.is_available():
        torch.cuda.synchronize()


def _product(dtype: str, side: int, target: torch.device) -> Callable[[], torch.Tensor]:
    left, right = torch.randn(2, side, side, device=target)
    if dtype == "int8":
        layer = int8_linear(right)
        return lambda: layer(left)
    if dtype == "fp32" and (packed := PackedLinear.of(right, None)) is not None:
        return lambda: packed(left)
    left, right = left.to(DTYPES[dtype]), right.to(DTYPES[dtype])
    return lambda: left @ right


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor() or platform.machine()
    names = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(names, platform.machine())


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
        operator, named = function.name().partition(".")[0], kwargs or {}
        if operator not in _COUNTS and operator != _INT8_LINEAR:
            with self:  # in inference mode torch dispatches whole linear layers, which consist of products
                result = function.decompose(*args, **named)
            return function(*args, **named) if result is NotImplemented else result
        result = function(*args, **named)
        output = result if isinstance(result, Tensor) else result[0]
        tensors = [item for item in args if isinstance(item, Tensor)]
        size = float(sum(item.numel() * item.element_size() for item in [*tensors, output]))
        if operator == _INT8_LINEAR:  # its packed weight takes one byte per element
            flops, size = 2.0 * tensors[0].numel() * output.shape[-1], size + tensors[0].shape[-1] * output.shape[-1]
            self.int8.append((flops, size))
        else:
            flops = _COUNTS[operator](output, *(args if operator == _OWN_ATTENTION else tensors))
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


def _packed_attention(
    output: Tensor, query: Tensor, key: Tensor, value: Tensor, *starts: Tensor, most: int | None = None
) -> float:
    """Return the same of packed rows [S, H, dh]; ``starts`` are those of the queries' and of the keys' rows.

    A query attends to at most ``most`` keys of its row.
    """
    keys = starts[1].diff().clamp_max(starts[1][-1] if most is None else most)
    return 4.0 * prod(query.shape[1:]) * float((starts[0].diff().double() * keys).sum())


def _own_attention(output: Tensor, query: Tensor, *given: Any) -> float:
    """Return the same of :func:`kernels.packed.attend_packed_lse`; at its edges a window counts as whole."""
    reach = given[7]
    return _packed_attention(output, query, *given[:4], most=None if reach < 0 else 2 * reach + 1)


_OWN_ATTENTION = "raysum::packed_attention"
_COUNTS: dict[str, Callable[..., float]] = {
    "aten::mm": _matrix,
    "aten::addmm": _matrix,
    "mkldnn::_linear_pointwise": _matrix,
    "aten::bmm": _matrix,
    "aten::baddbmm": _matrix,
    "aten::_scaled_dot_product_flash_attention_for_cpu": _attention,
    "aten::_scaled_dot_product_flash_attention": _attention,
    "aten::_scaled_dot_product_efficient_attention": _attention,
    "aten::_scaled_dot_product_cudnn_attention": _attention,
    "torch_attn::_varlen_attn": _packed_attention,
    _OWN_ATTENTION: _own_attention,
}
