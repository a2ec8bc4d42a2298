"""Results of a search: its trials, the best one, the settings that the run adopts, a table."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from operator import add
from typing import Any, NamedTuple

import pandas as pd
from rich.console import Group

from raysum.config.decoding import DecodeConfig
from raysum.evaluate.scorers import HEADLINES
from raysum.evaluate.table import cell
from raysum.metrics.statistics import Interval, difference_of
from raysum.runs.folder import Run
from raysum.runtime.rendering import Grid, Shown
from raysum.tune.objective import COSTS, metric_figure
from raysum.tune.schema import SpaceConfig
from raysum.tune.spaces import BETA, WHEN, Job, label

_KEYS = ("name", "config", "metrics", "seconds", "error")  # of a trial in JSON
_SHOWN = (*HEADLINES, "rouge1", "rouge2", "rougeL", "attention_similarity", *COSTS)  # in tables


class TrialReport(NamedTuple):
    """Metrics of a trial after ``minutes`` of the search and ``amount`` examples or steps."""

    minutes: float
    amount: float
    metrics: dict[str, float]


@dataclass(frozen=True)
class Trial:
    """One trial: the values of the searched keys, its last metrics, and its error if it failed.

    Its ``state`` is running, ended, failed, or stopped with the search. ``until`` are the minutes of the search at its
    last report. ``curve`` has its validations by step, or its metric by the number of examples.
    """

    name: str
    config: dict[str, Any]
    metrics: dict[str, float]
    seconds: float
    error: str | None = None
    state: str = "ended"
    reports: Sequence[TrialReport] = ()
    until: float = 0.0
    curve: Mapping[float, float] = field(default_factory=dict)


@dataclass(frozen=True)
class Adoption:
    """The new values of the searched keys in a run, and the ``gain`` of the best trial's beta over the beta ``over``.

    ``gain`` is None if the beta does not change. All other settings of the two are equal.
    """

    settings: dict[str, Any]
    gain: Interval | None = None
    over: float = 0.0

    @property
    def is_noise(self) -> bool:
        """Whether the paired bootstrap interval of the gain includes values at or below 0."""
        return self.gain is not None and not self.gain.low > 0

    def to_dict(self) -> dict[str, Any]:
        gain = self.gain and {**self.gain._asdict(), "over": self.over}
        return {"settings": self.settings, "gain": gain}

    def __str__(self) -> str:
        """Return the gain and the decision; empty if there is no gain."""
        if self.gain is None:
            return ""
        gain = "gain {:+.2f} [{:+.2f}, {:+.2f}] over beta {:g}".format(*self.gain, self.over)
        ends = f"within noise, the run keeps beta {self.settings[BETA]:g}" if self.is_noise else "adopted by the run"
        return f"{gain}: {ends}"


def decide_adoption(job: Job, trials: Sequence[Trial], present: DecodeConfig) -> Adoption:
    """Return the settings that a run with the decoding settings ``present`` adopts from ``trials`` (best first).

    A beta above 0 must be significantly better than beta 0, and beta 0 better than the run's present beta. If no trial
    has scored the settings to compare with, they are decoded now.
    """
    from raysum.tune.decoding import trial_scores  # loads Ray

    best = trials[0]
    own = {key: getattr(present, key.removeprefix("decode.")) for key in (BETA, WHEN) if key in best.config}
    over = 0.0 if best.config.get(BETA) else present.beta
    if BETA not in best.config or best.config[BETA] == over:
        return Adoption(best.config)
    metric, control = job.space.config.metric, best.config | own | {BETA: over}
    same = (trial.name for trial in trials if trial.config == control and not trial.error)
    name = next(same, f"{best.name},beta={over:g}")
    scores = [trial_scores(job, *each) for each in ((best.name, best.config), (name, control))]
    if job.space.config.goal == "min":
        scores.reverse()  # the gain is how much the metric falls
    difference = difference_of(metric, metric_figure(metric), *scores)
    gain = Interval(*(difference[metric + end] for end in ("", "_low", "_high")))
    adoption = Adoption(best.config, gain, over)
    return Adoption(best.config | own, gain, over) if adoption.is_noise else adoption


@dataclass(frozen=True)
class SearchResult(Shown):
    """All trials of a search, best first, failed ones last; `serve` hosts ``run``."""

    space: SpaceConfig
    trials: list[Trial]
    run: Run
    seconds: float
    then: "SearchResult | None" = None  # the search of the best run's decoding, if the space has ``then``
    adopted: Adoption | None = None  # the settings that the run of a decode space adopted

    @property
    def best(self) -> Trial:
        return self.trials[0]

    def to_dict(self) -> dict[str, Any]:
        """Return ``best`` (config, metrics, run), ``trials``, ``seconds``, and ``adopted`` and ``then`` if any."""
        best = {"config": self.best.config, "metrics": self.best.metrics, "run": str(self.run.path)}
        trials = [{key: getattr(trial, key) for key in _KEYS} for trial in self.trials]
        values = {"best": best, "trials": trials, "seconds": round(self.seconds, 1)}
        values |= {"adopted": self.adopted.to_dict()} if self.adopted else {}
        return values | ({"then": self.then.to_dict()} if self.then else {})

    def to_pandas(self) -> pd.DataFrame:
        """Return a row for each trial, best first: name, searched keys, metrics, seconds, error."""
        lines = [
            {"trial": trial.name, **trial.config, **trial.metrics, "seconds": trial.seconds, "error": trial.error}
            for trial in self.trials
        ]
        return pd.DataFrame(lines)

    def render(self) -> Grid | Group:
        return Group(self._trials(), "", self.then.render()) if self.then else self._trials()

    def _trials(self) -> Grid:
        metric = self.space.metric
        values = {trial.metrics.get(metric) for trial in self.trials if not trial.error}
        with_metric = sum(not trial.error for trial in self.trials)
        best = self.best.name + f", though all have the same {metric}" * (len(values) == 1 < with_metric)
        interval = ", ± half of the 95 % interval" * any(f"{metric}_low" in trial.metrics for trial in self.trials)
        adoption = f"; {self.adopted}" if str(self.adopted or "") else f", now used by {self.run.path}"
        table = trial_table(self.space, self.trials)
        table["seconds"] = [f"{trial.seconds:.0f}" for trial in self.trials]
        with_settings = self.space.is_population
        names = [f"{trial.name}: {label(trial.config)}" if with_settings else trial.name for trial in self.trials]
        failed = (f" failed: {trial.error}" if trial.error else "" for trial in self.trials)
        return Grid.of(
            table.set_axis([*map(add, names, failed)]).rename_axis("trial"),
            title=f"{self.space.about}: trials by {metric}{interval}",
            caption=f"best: {best}{adoption} ({self.seconds:.0f} s)",
        )


def trial_table(space: SpaceConfig, trials: Sequence[Trial]) -> pd.DataFrame:
    """Return the texts of the metrics that any trial has, a row for each trial. That of the space has its interval."""
    names = dict.fromkeys((space.metric, *_SHOWN))
    known = {name: metric_figure(name) for name in names if any(name in trial.metrics for trial in trials)}
    lines = [[cell(t.metrics, name, each, name == space.metric) for name, each in known.items()] for t in trials]
    return pd.DataFrame(lines, [label(trial.config) for trial in trials], [each.label for each in known.values()])


def ranked(space: SpaceConfig, trials: Sequence[Trial]) -> list[Trial]:
    """Return the trials with the best metric first and those without one last; ties prefer smaller values.

    Trials that a scheduler stopped early come after those that were scored on more examples. Of the tries of a failed
    trial only the last one is included.
    """
    sign = 1 if space.goal == "min" else -1
    last = {label(trial.config): trial for trial in trials}

    def rank(trial: Trial) -> tuple[bool, float, float, list[tuple[float, str]]]:
        values = trial.config.values()
        order = [(value, "") if isinstance(value, int | float) else (0.0, str(value)) for value in values]
        examples, metric = trial.metrics.get("examples", 0), trial.metrics.get(space.metric, 0.0)
        return not trial.metrics, -examples, sign * metric, order if trial.metrics else []

    kept = [t for t in trials if t.state in ("ended", "running") or last[label(t.config)] is t]
    return sorted(kept, key=rank)
