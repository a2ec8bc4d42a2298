"""Figures of benchmarks, as PNGs."""

from pathlib import Path
from typing import Any

from raysum.bench.isolate import Row
from raysum.errors import UserError


def plot_curves(theirs: dict[int, dict[str, float]], runs: list[Row], rate: float, file: Path) -> None:
    """Validation losses of ``theirs`` and of each of ``runs`` over steps, and over seconds at ``rate`` GFLOP/s."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9, 3.8), layout="constrained")
    by_step, by_second = figure.subplots(1, 2, sharey=True)
    known = [step for step in theirs if step]
    losses = [theirs[step]["loss"] for step in known]
    by_step.plot(known, losses, color="black", label="published code")
    by_second.plot([theirs[step]["seconds"] for step in known], losses, color="black")
    for number, run in enumerate(runs):
        steps, found = list(run["losses"]), list(run["losses"].values())
        by_step.plot(steps, found, color="C0", alpha=0.7, label="raysum, a line a seed" if number == 0 else None)
        by_second.plot([run["seconds"][step] for step in steps], found, color="C0", alpha=0.7)
    by_step.set(xlabel="step", ylabel="validation loss (nats a token)")
    by_second.set(xlabel=f"seconds of training at {rate:.0f} GFLOP/s")
    by_step.legend()
    for axes in (by_step, by_second):
        axes.grid(alpha=0.3)
    _save(figure, file)


def plot_growth(rows: list[Row], file: Path) -> None:
    """Time and peak memory of a training step over paragraphs, both axes logarithmic; a line a preset and dtype."""
    from matplotlib.figure import Figure
    from matplotlib.ticker import ScalarFormatter

    figure = Figure(figsize=(9, 3.8), layout="constrained")
    panels = zip(figure.subplots(1, 2), ("ms_per_step", "peak_rss_mb"), ("ms a step", "peak memory, MB"), strict=True)
    for axes, key, label in panels:
        for line in dict.fromkeys((row["preset"], row["dtype"]) for row in rows):
            points = [row for row in rows if (row["preset"], row["dtype"]) == line]
            across = [row["paragraphs"] for row in points]
            axes.plot(across, [row[key] for row in points], marker="o", label=" ".join(line))
        axes.set(xscale="log", yscale="log", xlabel="paragraphs an example", ylabel=label)
        axes.set_xticks(sorted({row["paragraphs"] for row in rows}), minor=False)
        axes.minorticks_off()
        axes.xaxis.set_major_formatter(ScalarFormatter())
        axes.yaxis.set_major_formatter(ScalarFormatter())
        axes.grid(alpha=0.3)
    axes.legend()
    _save(figure, file)


def _save(figure: Any, file: Path) -> None:
    try:
        figure.savefig(file, dpi=120)
    except OSError as error:
        raise UserError(f"cannot write the plot {file}: {error.strerror}; name another file with plot=") from None
