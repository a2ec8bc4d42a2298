"""Figures of a search."""

from pathlib import Path

from raysum.tune.results import Trial
from raysum.tune.spaces import SpaceConfig


def plot(space: SpaceConfig, trials: list[Trial], file: Path) -> None:
    """The metric with its 95 % interval over the value searched, if that is one number, else trial by trial; a PNG.

    ``trials`` come best first, without failed ones; the best is marked.
    """
    from matplotlib.figure import Figure

    values = [value for trial in trials for value in trial.config.values()]
    over_number = len(space.search) == 1 and all(isinstance(value, int | float) for value in values)
    figure = Figure(figsize=(6.4, 4.0 if over_number else 1.2 + 0.35 * len(trials)), layout="constrained")
    axes = figure.subplots()
    axes.grid(alpha=0.3)
    if over_number:
        (key,), points = space.search, values
        line = sorted(range(len(trials)), key=points.__getitem__)
        axes.plot([points[i] for i in line], [trials[i].metrics[space.metric] for i in line], color="C0", alpha=0.5)
        axes.set(xlabel=key, ylabel=space.metric)
    else:
        points = list(range(len(trials)))
        axes.set_yticks(points, [trial.name for trial in trials])
        axes.invert_yaxis()
        axes.set(xlabel=space.metric)
    for point, trial in zip(points, trials, strict=True):
        color = "C3" if trial is trials[0] else "C0"
        metrics, name = trial.metrics, space.metric
        spread = [metrics.get(f"{name}_low", metrics[name]), metrics[name], metrics.get(f"{name}_high", metrics[name])]
        across = [point] * len(spread)
        axes.plot(*((across, spread) if over_number else (spread, across)), color=color, marker="o", markevery=[1])
    figure.suptitle(f"{space.about} (red: the best)", fontsize="medium")
    figure.savefig(file, dpi=120)
