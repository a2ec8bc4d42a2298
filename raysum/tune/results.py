"""What a search found: its trials, the best of them, a table."""

from collections.abc import Iterable
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any, TypeVar

from raysum.evaluate.scorers import FIGURES, HEADLINES
from raysum.evaluate.table import cell
from raysum.metrics.statistics import Figure
from raysum.runs.folder import Run
from raysum.runtime.rendering import Shown
from raysum.tune.adoption import Adoption
from raysum.tune.schema import SpaceConfig
from raysum.tune.spaces import label

if TYPE_CHECKING:
    from pandas import DataFrame
    from rich.console import Group

    from raysum.runtime.grid import Grid


# The figures of a trial that tables show.
SHOWN = {name: FIGURES[name] for name in (*HEADLINES, "rouge1", "rouge2", "rougeL", "attention_similarity")} | {
    "valid_loss": Figure("valid loss", 4),
    "step": Figure("step", 0),
    "parameters": Figure("parameters", 0),
    "train_seconds": Figure("training s", 0),
}


@dataclass(frozen=True)
class Trial:
    """One trial: the dotted keys it tried, its metrics, and what went wrong, if anything did."""

    name: str
    config: dict[str, Any]
    metrics: dict[str, float]
    seconds: float
    error: str | None = None


AnyTrial = TypeVar("AnyTrial", bound=Trial)


@dataclass(frozen=True)
class SearchResult(Shown):
    """All trials of a search, best first, failed ones last; ``run`` is what `serve` hosts."""

    space: SpaceConfig
    trials: list[Trial]
    run: Run
    seconds: float
    then: "SearchResult | None" = None  # the search of the best run's decoding, where the space goes on with one
    adopted: Adoption | None = None  # what the run of a decode space took over

    @property
    def best(self) -> Trial:
        return self.trials[0]

    def to_dict(self) -> dict[str, Any]:
        """``best`` (config, metrics, run), ``trials``, ``seconds``; of a decode space what the run ``adopted`` (its
        settings from now on, and the gain of beta); and the same of the search that followed."""
        best = {"config": self.best.config, "metrics": self.best.metrics, "run": str(self.run.path)}
        found = {"best": best, "trials": [asdict(trial) for trial in self.trials], "seconds": round(self.seconds, 1)}
        found |= {"adopted": self.adopted.to_dict()} if self.adopted else {}
        return found | ({"then": self.then.to_dict()} if self.then else {})

    def to_pandas(self) -> "DataFrame":
        """A line a trial, best first: its name, the keys it tried, its metrics, its seconds, its error."""
        import pandas as pd

        lines = [
            {"trial": trial.name, **trial.config, **trial.metrics, "seconds": trial.seconds, "error": trial.error}
            for trial in self.trials
        ]
        return pd.DataFrame(lines)

    def render(self) -> "Grid | Group":
        from rich.console import Group

        return Group(self._trials(), "", self.then.render()) if self.then else self._trials()

    def _trials(self) -> "Grid":
        from raysum.runtime.grid import Grid

        metric, shown = self.space.metric, {name: one for name, one in SHOWN.items() if name in self.best.metrics}
        found = {trial.metrics.get(metric) for trial in self.trials if not trial.error}
        best = self.best.name + f", though all have the same {metric}" * (len(found) == 1 < len(self.trials))
        sure = ", ± half of the 95 % interval" * any(f"{metric}_low" in trial.metrics for trial in self.trials)
        told = f"; {self.adopted}" if str(self.adopted or "") else f", now used by {self.run.path}"
        table = Grid(
            title=f"{self.space.about}: trials by {metric}{sure}",
            caption=f"best: {best}{told} ({self.seconds:.0f} s)",
        )
        table.add_column("trial")
        for heading in (*(figure.label for figure in shown.values()), "seconds"):
            table.add_column(heading, justify="right", no_wrap=True)
        for trial in self.trials:
            named = f"{trial.name}: {label(trial.config)}" if self.space.scheduler == "pbt" else trial.name
            cells = [cell(trial.metrics, name, figure, interval=name == metric) for name, figure in shown.items()]
            table.add_row(f"{named} failed: {trial.error}" if trial.error else named, *cells, f"{trial.seconds:.0f}")
        return table


def ranked(space: SpaceConfig, trials: Iterable[AnyTrial]) -> list[AnyTrial]:
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
