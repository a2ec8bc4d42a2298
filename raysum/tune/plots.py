"""Figures of a search."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from raysum.tune.results import Trial
from raysum.tune.schema import SpaceConfig
from raysum.tune.spaces import short

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_BEST, _OTHER = "C3", "C0"
_DPI = 120
_COSTS = {"parameters": "parameters", "train_seconds": "seconds of training"}

_NAMED = 5  # the best so many dots have their names beside them; the table has all


def plot(space: SpaceConfig, trials: list[Trial], file: Path) -> None:
    """A PNG. Trained models: the metric over their parameters, and over their seconds. Decoding: the metric with its
    95 % interval over the value searched, if that is one number, else trial by trial.

    ``trials`` come best first, without failed ones; the best is red.
    """
    from matplotlib.figure import Figure

    values = [value for trial in trials for value in trial.config.values()]
    over_number = len(space.search) == 1 and all(isinstance(value, int | float) for value in values)
    if space.kind == "train":
        figure = Figure(figsize=(11, 4.8), dpi=_DPI, layout="constrained")
        _costs(space, trials, figure.subplots(1, 2, sharey=True))
    elif over_number:
        figure = Figure(figsize=(6.4, 4.0), layout="constrained")
        _over_number(space, trials, figure.subplots())
    else:
        figure = Figure(figsize=(6.4, 1.2 + 0.35 * len(trials)), layout="constrained")
        _one_by_one(space, trials, figure.subplots())
    figure.suptitle(f"{space.about} (red: the best)", fontsize="medium")
    for axes in figure.axes:
        axes.grid(alpha=0.3)
    figure.savefig(file, dpi=_DPI)


def _over_number(space: SpaceConfig, trials: list[Trial], axes: "Axes") -> None:
    (key,) = space.search
    at = sorted((trial.config[key], trial.metrics[space.metric]) for trial in trials)
    axes.plot(*zip(*at, strict=True), color=_OTHER, alpha=0.5)
    for trial in trials:
        axes.plot(
            [trial.config[key]] * 3, _spread(space, trial), color=_color(trial, trials), marker="o", markevery=[1]
        )
    axes.set(xlabel=key, ylabel=space.metric)


def _one_by_one(space: SpaceConfig, trials: list[Trial], axes: "Axes") -> None:
    for line, trial in enumerate(trials):
        axes.plot(_spread(space, trial), [line] * 3, color=_color(trial, trials), marker="o", markevery=[1])
    axes.set_yticks(range(len(trials)), [trial.name for trial in trials])
    axes.invert_yaxis()
    axes.set(xlabel=space.metric)


def _spread(space: SpaceConfig, trial: Trial) -> list[float]:
    middle = trial.metrics[space.metric]
    low, high = (trial.metrics.get(f"{space.metric}_{end}", middle) for end in ("low", "high"))
    return [low, middle, high]


def _costs(space: SpaceConfig, trials: list[Trial], panels: Sequence["Axes"]) -> None:
    from matplotlib.ticker import EngFormatter

    quality = [trial.metrics[space.metric] for trial in trials]
    for axes, (cost, label) in zip(panels, _COSTS.items(), strict=True):
        axes.scatter([trial.metrics[cost] for trial in trials], quality, c=[_color(t, trials) for t in trials], s=22)
        for trial in trials[:_NAMED]:
            place = trial.metrics[cost], trial.metrics[space.metric]
            axes.annotate(_name(trial), place, xytext=(4, 3), textcoords="offset points", fontsize=8, color="0.3")
        axes.margins(x=0.12, y=0.1)
        axes.set(xlabel=label)
    panels[0].xaxis.set_major_formatter(EngFormatter(sep=""))
    panels[0].set(ylabel=space.metric)


def _name(trial: Trial) -> str:
    """``LLG/PPP``: the values alone; the title says what was searched."""
    return "/".join(short(value) for value in trial.config.values())


def _color(trial: Trial, trials: list[Trial]) -> str:
    return _BEST if trial is trials[0] else _OTHER
