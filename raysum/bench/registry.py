"""The benchmarks by name, with their settings."""

from collections.abc import Callable

from raysum.bench.decode import DecodeBench, bench_decode
from raysum.bench.efficiency import EfficiencyBench, bench_efficiency
from raysum.bench.prepare import PrepareBench, bench_prepare
from raysum.bench.result import BenchResult
from raysum.bench.rouge import RougeBench, bench_rouge
from raysum.bench.start import StartBench, bench_start
from raysum.bench.stream import StreamBench, bench_stream
from raysum.bench.train import TrainBench, bench_train
from raysum.config.base import Section
from raysum.config.loading import section_of
from raysum.config.problems import did_you_mean
from raysum.errors import UserError

BENCHES: dict[str, tuple[type[Section], Callable[..., BenchResult]]] = {
    "decode": (DecodeBench, bench_decode),
    "efficiency": (EfficiencyBench, bench_efficiency),
    "prepare": (PrepareBench, bench_prepare),
    "rouge": (RougeBench, bench_rouge),
    "start": (StartBench, bench_start),
    "stream": (StreamBench, bench_stream),
    "train": (TrainBench, bench_train),
}


def bench(name: str, overrides: list[str] | None = None) -> BenchResult:
    """Run the benchmark ``name`` with ``key=value`` settings.

    Raises UserError for an unknown name, key, value or preset, or sizes that do not fit in memory.
    """
    if name not in BENCHES:
        raise UserError(f"unknown benchmark {name!r}: {did_you_mean(name, BENCHES)}choose one of {', '.join(BENCHES)}")
    kind, run = BENCHES[name]
    return run(section_of(kind, {}, overrides or []))
