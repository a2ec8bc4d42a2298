"""What a search found: its trials, the best of them, a table and a figure."""

from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from raysum.run import Run
from raysum.tune.spaces import SpaceConfig

if TYPE_CHECKING:
    from rich.table import Table


@dataclass(frozen=True)
class Trial:
    """One trial: the dotted keys it tried, its metrics, and what went wrong, if anything did."""

    name: str
    config: dict[str, Any]
    metrics: dict[str, float]
    seconds: float
    error: str | None = None


@dataclass(frozen=True)
class SearchResult:
    """All trials of a search, best first, failed ones last; ``run`` is what `serve` hosts."""

    space: SpaceConfig
    trials: list[Trial]
    run: Run
    seconds: float

    @property
    def best(self) -> Trial:
        return self.trials[0]

    def to_dict(self) -> dict[str, Any]:
        """``best`` (config, metrics, run), ``trials``, ``seconds``."""
        best = {"config": self.best.config, "metrics": self.best.metrics, "run": str(self.run.path)}
        return {"best": best, "trials": [asdict(trial) for trial in self.trials], "seconds": round(self.seconds, 1)}

    def table(self) -> "Table":
        from rich.table import Table

        metrics = [name for name in self.best.metrics if not name.endswith(("_low", "_high"))]
        table = Table(
            title=f"{self.space.about}: trials by {self.space.metric}, with 95 % intervals",
            caption=f"best: {self.best.name}, now used by {self.run.path}; {self.seconds:.0f} s in all",
        )
        table.add_column("trial")
        for name in (*metrics, "seconds"):
            table.add_column(name, justify="right")
        for trial in self.trials:
            label = f"{trial.name} failed: {trial.error}" if trial.error else trial.name
            table.add_row(label, *(_cell(trial.metrics, name) for name in metrics), f"{trial.seconds:.0f}")
        return table


def ranked(space: SpaceConfig, trials: Iterable[Trial]) -> list[Trial]:
    """Best metric first; of equal ones the smaller values (so the smaller beta); failed ones last."""
    sign = 1 if space.mode == "min" else -1

    def place(trial: Trial) -> tuple[bool, float, list[tuple[bool, float, str]]]:
        values = [(isinstance(value, str), 0 if isinstance(value, str) else value, str(value)) for value in trial.config.values()]
        return trial.error is not None, sign * trial.metrics.get(space.metric, 0.0), values

    return sorted(trials, key=place)


def plot(space: SpaceConfig, trials: Iterable[Trial], file: Path) -> None:
    """The metric of each trial with its 95 % interval, over the value searched if it is one number, else by trial."""
    from matplotlib.figure import Figure

    ended = [trial for trial in trials if trial.error is None]
    numeric = len(space.search) == 1 and all(isinstance(value, float | int) for t in ended for value in t.config.values())
    figure = Figure(figsize=(6.4, 4.0) if numeric else (6.4, 1.2 + 0.35 * len(ended)), layout="constrained")
    axes = figure.subplots()
    middle = [trial.metrics[space.metric] for trial in ended]
    if numeric:
        ended.sort(key=lambda trial: list(trial.config.values()))
    ...


def _cell(metrics: dict[str, float], name: str) -> str:
    if name not in metrics:
        return ""
    value = metrics[name]
    text = str(value) if isinstance(value, int) else f"{value:.2f}" if abs(value) >= 1 else f"{value:.3f}"
    low, high = metrics.get(f"{name}_low"), metrics.get(f"{name}_high")
    return text if low is None or high is None else f"{text} [{low:.2f}, {high:.2f}]"
