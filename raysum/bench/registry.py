"""The benchmarks by name."""

from raysum.bench.base import Bench, BenchResult
from raysum.bench.checkpoint import CheckpointBench
from raysum.bench.decode import DecodeBench
from raysum.bench.efficiency import EfficiencyBench
from raysum.bench.gpu import GpuBench
from raysum.bench.prepare import PrepareBench
from raysum.bench.rouge import RougeBench
from raysum.bench.serve import ServeBench
from raysum.bench.start import StartBench
from raysum.bench.stream import StreamBench
from raysum.bench.train import TrainBench
from raysum.config.loading import section_of
from raysum.config.problems import did_you_mean
from raysum.errors import UserError

_KINDS = (
    CheckpointBench,
    DecodeBench,
    EfficiencyBench,
    GpuBench,
    PrepareBench,
    RougeBench,
    ServeBench,
    StartBench,
    StreamBench,
    TrainBench,
)
BENCHES: dict[str, type[Bench]] = {kind.NAME: kind for kind in _KINDS}


def bench(name: str, overrides: list[str] | None = None) -> BenchResult:
    """Run the benchmark ``name`` with ``key=value`` settings.

    Raises UserError for an unknown name, key, value or preset, or sizes that do not fit in memory.
    """
    if name not in BENCHES:
        raise UserError(f"unknown benchmark {name!r}: {did_you_mean(name, BENCHES)}choose one of {', '.join(BENCHES)}")
    return section_of(BENCHES[name], {}, overrides or []).run()
