"""The figure of a benchmark, as a PNG."""

from pathlib import Path

from raysum.bench.isolate import Row
from raysum.errors import UserError


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
    try:
        figure.savefig(file, dpi=120)
    except OSError as error:
        raise UserError(f"cannot write the plot {file}: {error.strerror}; name another file with plot=") from None
