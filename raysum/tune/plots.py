"""The PNG of a search, drawn with matplotlib."""

from pathlib import Path
from typing import TYPE_CHECKING

from raysum.tune.results import Trial
from raysum.tune.schema import SpaceConfig
from raysum.tune.spaces import short_value

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_BEST, _OTHER = "C3", "C0"
_COSTS = {"parameters": "parameters", "train_seconds": "seconds of training"}
_NAMED = 5  # this many best dots have a label


def plot(space: SpaceConfig, trials: list[Trial], file: Path) -> None:
    """Draw ``trials`` (best first, without failed ones) into a PNG. The best one is red.

    Train spaces: the metric over parameters and over seconds. Decode spaces: the metric with its 95 % interval over the
    first searched key if it is a number, with a line for each value of a second key of a grid, otherwise by trial.
    """
    from matplotlib.figure import Figure

    figure = Figure(figsize=(11, 4.8), dpi=120, layout="constrained")
    draw = _costs if space.kind == "train" else _intervals
    draw(space, trials, figure)
    figure.suptitle(f"{space.about} (red: the best)", fontsize="medium")
    for axes in figure.axes:
        axes.grid(alpha=0.3)
    figure.savefig(file)


def _intervals(space: SpaceConfig, trials: list[Trial], figure: "Figure") -> None:
    values = [next(iter(trial.config.values())) for trial in trials]
    few = len(space.search) <= (2 if space.searcher == "grid" else 1)
    over_number = few and all(isinstance(value, int | float) for value in values)
    figure.set_size_inches(6.4, 4.0 if over_number else 1.2 + 0.35 * len(trials))
    axes, metrics = figure.subplots(), [trial.metrics[space.metric] for trial in trials]
    others = ["".join(map(short_value, [*trial.config.values()][1:])) for trial in trials]  # a line for each
    colors = dict(zip(sorted({*others}), (_OTHER, "C1", "C2", *["C4"] * len(trials)), strict=False))
    for line, (trial, metric, value) in enumerate(zip(trials, metrics, values, strict=True)):
        low, high = (trial.metrics.get(f"{space.metric}_{end}", metric) for end in ("low", "high"))
        interval, position = [low, metric, high], [value if over_number else line] * 3
        x, y = (position, interval) if over_number else (interval, position)
        color = colors[others[line]] if over_number else _OTHER
        axes.plot(x, y, color=color if line else _BEST, marker="o", markevery=[1], zorder=2 if line else 3)
    if over_number:
        for other, color in colors.items():
            points = sorted((v, m) for v, m, o in zip(values, metrics, others, strict=True) if o == other)
            axes.plot(*zip(*points, strict=True), color=color, alpha=0.5, zorder=1, label=other)
        if len(colors) > 1:
            axes.legend()
        axes.set(xlabel=next(iter(space.search)), ylabel=space.metric)
    else:
        axes.set_yticks(range(len(trials)), [trial.name for trial in trials])
        axes.invert_yaxis()
        axes.set(xlabel=space.metric)


def _costs(space: SpaceConfig, trials: list[Trial], figure: "Figure") -> None:
    from matplotlib.ticker import EngFormatter

    panels, quality = figure.subplots(1, 2, sharey=True), [trial.metrics[space.metric] for trial in trials]
    colors = [_BEST] + [_OTHER] * (len(trials) - 1)
    for axes, (cost, label) in zip(panels, _COSTS.items(), strict=True):
        axes.scatter([trial.metrics[cost] for trial in trials], quality, c=colors, s=22)
        for trial in trials[:_NAMED]:
            point = trial.metrics[cost], trial.metrics[space.metric]
            name = "/".join(map(short_value, trial.config.values()))  # such as LLG/PPP
            axes.annotate(name, point, xytext=(4, 3), textcoords="offset points", fontsize=8, color="0.3")
        axes.margins(x=0.12, y=0.1)
        axes.set(xlabel=label)
    panels[0].xaxis.set_major_formatter(EngFormatter(sep=""))
    panels[0].set(ylabel=space.metric)
