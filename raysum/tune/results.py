"""What a search found: its trials, the best of them, a table."""

from collections.abc import Iterable
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from raysum.evaluate.table import FIGURES, cell
from raysum.run import Run
from raysum.tune.spaces import SpaceConfig

if TYPE_CHECKING:
    from rich.table import Table


_SHOWN = ("rouge1", "rouge2", "rougeL", "facts_f1", "attention_similarity", "valid_loss", "step")


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

        shown = [name for name in _SHOWN if name in self.best.metrics]
        table = Table(
            title=f"{self.space.about}: trials by {self.space.metric}, ± half of the 95 % interval",
            caption=f"best: {self.best.name}, now used by {self.run.path} ({self.seconds:.0f} s)",
        )
        table.add_column("trial", min_width=max(len(trial.name) for trial in self.trials))
        for name in (*shown, "seconds"):
            table.add_column(name if name == "seconds" else FIGURES[name][0], justify="right")
        for trial in self.trials:
            label = f"{trial.name} failed: {trial.error}" if trial.error else trial.name
            cells = (cell(trial.metrics, name, interval=name == self.space.metric) for name in shown)
            table.add_row(label, *cells, f"{trial.seconds:.0f}")
        return table


def ranked(space: SpaceConfig, trials: Iterable[Trial]) -> list[Trial]:
    """Best metric first; of equal ones the smaller values (so the smaller beta); failed ones last.

    Trials that a scheduler stopped on some of the examples come after those that were scored on more.
    """
    sign = 1 if space.mode == "min" else -1

    def place(trial: Trial) -> tuple[bool, float, float, list[tuple[float, str]]]:
        values = trial.config.values()
        order = [(value, "") if isinstance(value, int | float) else (0.0, str(value)) for value in values]
        examples, metric = trial.metrics.get("examples", 0), trial.metrics.get(space.metric, 0.0)
        return trial.error is not None, -examples, sign * metric, order

    return sorted(trials, key=place)
