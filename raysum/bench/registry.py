"""The benchmarks by name."""

import json
from dataclasses import dataclass
from typing import Any

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
from raysum.runtime.rendering import Grid, Shown

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


@dataclass(frozen=True)
class BenchSettings(Shown):
    """The settings of a benchmark."""

    bench: str

    def to_dict(self) -> dict[str, Any]:
        return {
            name: {"default": field.get_default(call_default_factory=True), "meaning": field.description or ""}
            for name, field in BENCHES[self.bench].model_fields.items()
        }

    def render(self) -> Grid:
        grid = Grid("setting", "default", "meaning")
        for name, setting in self.to_dict().items():
            grid.add_row(name, json.dumps(setting["default"]), setting["meaning"])
        return grid


def settings_of(name: str) -> BenchSettings:
    """Return the settings of the benchmark ``name``. Raises UserError if it is unknown."""
    _check_name(name)
    return BenchSettings(name)


def _check_name(name: str) -> None:
    if name not in BENCHES:
        raise UserError(f"unknown benchmark {name!r}: {did_you_mean(name, BENCHES)}choose one of {', '.join(BENCHES)}")


def bench(name: str, overrides: list[str] | None = None) -> BenchResult:
    """Run the benchmark ``name`` with ``key=value`` settings.

    Raises UserError for an unknown name, key, value or preset, or sizes that do not fit in memory.
    """
    _check_name(name)
    return section_of(BENCHES[name], {}, overrides or []).run()
