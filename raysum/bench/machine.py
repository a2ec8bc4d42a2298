"""What a machine can do at most: its rate of matrix products by dtype, and how fast it reads memory."""

import platform
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from raysum.models.kernels.linear import int8_linear
from raysum.runtime.compat import packed_linear
from raysum.runtime.placement import device
from raysum.runtime.processes import cores

DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16}
_CPU_SIDE, _GPU_SIDE = 2048, 8192  # of the square matrices that are multiplied: larger ones are no faster
_READ = 512 << 20  # bytes that are summed: far more than any cache holds
_SECONDS = 1.0  # of repetition for each figure; the fastest repetition counts


@dataclass(frozen=True)
class Machine:
    """``gflops``: 1e9 operations a second in products of square matrices, on a CPU laid out ahead, by dtype;
    ``read_gb_per_s``: 1e9 bytes a second when 512 MiB are summed. Both the best of one second's repetitions.
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
    """Measure the machine with so many ``threads``, in this process."""
    torch.set_num_threads(threads)
    place = device()
    side = _CPU_SIDE if place.type == "cpu" else _GPU_SIDE
    values = torch.ones(_READ // 4, device=place)
    return Machine(
        processor=torch.cuda.get_device_name() if place.type == "cuda" else _processor(),
        cores=cores(),
        threads=threads,
        device=place.type,
        torch=torch.__version__,
        gflops={dtype: round(2e-9 * side**3 / fastest(_product(dtype, side, place)), 1) for dtype in dtypes},
        read_gb_per_s=round(1e-9 * _READ / fastest(values.sum), 1),
    )


def fastest(work: Callable[[], Any]) -> float:
    """Seconds of the fastest run of ``work`` within about ``_SECONDS``, after one that does not count."""
    work()
    found: list[float] = []
    end = time.perf_counter() + _SECONDS
    while not found or time.perf_counter() < end:
        found.append(timed(work))
    return min(found)


def timed(work: Callable[[], Any]) -> float:
    """Seconds of one run of ``work``, the device's part included."""
    _wait()
    start = time.perf_counter()
    work()
    _wait()
    return time.perf_counter() - start


def _wait() -> None:
    if torch.cuda.is_available():
        torch.cuda.synchronize()


def _product(dtype: str, side: int, place: torch.device) -> Callable[[], torch.Tensor]:
    left, right = torch.randn(2, side, side, device=place)
    if dtype == "int8":
        layer = int8_linear(right)
        return lambda: layer(left)
    if dtype == "fp32" and (laid_out := packed_linear(right, None)):
        return lambda: laid_out(left)
    left, right = left.to(DTYPES[dtype]), right.to(DTYPES[dtype])
    return lambda: left @ right


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor() or platform.machine()
    names = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(names, platform.machine())
