"""Figures of a search."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from raysum.tune.results import Trial
from raysum.tune.schema import SpaceConfig
from raysum.tune.spaces import short

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_BEST, _OTHER = "C3", "C0"
_DPI = 120
_COSTS = {"parameters": "parameters", "train_seconds": "seconds of training"}

# Where the near end of a label may be, in points of length from its dot; the nearest first.
_PLACES = [
    (x * far, y * far)
    for far in (1, 2, 3.5, 5, 7)
    for x, y in ((6, 0), (-6, 0), (0, 7), (0, -7), (5, 6), (-5, 6), (5, -6), (-5, -6))
]


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
    if space.kind == "train":
        figure.draw_without_rendering()  # labels are placed around what stands where
        for axes in figure.axes:
            _label(axes, [_name(trial) for trial in trials])
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
        axes.margins(x=0.16, y=0.1)  # for the labels
        axes.set(xlabel=label)
    panels[0].xaxis.set_major_formatter(EngFormatter(sep=""))
    panels[0].set(ylabel=space.metric)


def _label(axes: "Axes", names: list[str]) -> None:
    """Names beside the dots of a scatter, each where it covers no dot, no label and no edge, if there is room.

    All is in pixels, so the figure must have its final size.
    """
    from matplotlib.transforms import Bbox, IdentityTransform

    (dots,) = axes.collections
    style: dict[str, Any] = {"transform": IdentityTransform(), "color": "0.3"}
    point = axes.figure.dpi / 72
    spots = axes.transData.transform(dots.get_offsets())
    taken = [Bbox.from_extents(*(spot - 4 * point), *(spot + 4 * point)) for spot in spots]
    inside = axes.get_window_extent()
    for name, spot in zip(names, spots, strict=True):
        text = axes.text(0, 0, name, fontsize=8, ha="center", va="center", **style)
        text.set_in_layout(False)
        size = np.array(text.get_window_extent().size)
        boxes = []
        for place in _PLACES:
            middle = spot + point * np.array(place) + np.sign(place) * size / 2
            boxes.append(Bbox.from_extents(*(middle - size / 2), *(middle + size / 2)))
        outside = [not (inside.contains(*box.p0) and inside.contains(*box.p1)) for box in boxes]
        covered = [out + sum(map(box.overlaps, taken)) for out, box in zip(outside, boxes, strict=True)]
        best = covered.index(min(covered))
        text.set_position((boxes[best].p0 + boxes[best].p1) / 2)
        if best >= 8:  # too far to be seen as its dot's
            axes.plot(*zip(spot, spot + point * np.array(_PLACES[best]), strict=True), linewidth=0.5, **style)
        taken.append(boxes[best])


def _name(trial: Trial) -> str:
    """``LLG/PPP``: the values alone; the title says what was searched."""
    return "/".join(short(value) for value in trial.config.values())


def _color(trial: Trial, trials: list[Trial]) -> str:
    return _BEST if trial is trials[0] else _OTHER
