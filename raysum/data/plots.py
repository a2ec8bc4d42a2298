"""Plot the lengths of a dataset's rows."""

from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from raysum.data.dataset import Dataset
from raysum.errors import UserError

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_BARS = 40
_SHOWN = 99.5  # percent of the rows: the few longest ones would leave no room for the others
_OF = ("source tokens", "paragraphs", "target tokens")  # columns of Dataset.lengths


def plot_lengths(data: str | Path, file: str | Path) -> None:
    """Plot histograms of source tokens, paragraphs and target tokens by split; a dotted line is the median.

    ``file`` is a PNG or SVG. Raises UserError if it is neither or cannot be written, or if ``data`` is no dataset.
    """
    from matplotlib.figure import Figure

    dataset = Dataset.open(data)
    if Path(file).suffix.lower() not in (".png", ".svg"):
        raise UserError(f"cannot draw into {file}: name a file that ends with .png or .svg")
    lengths = {split: dataset.lengths(split) for split in dataset.splits}
    figure = Figure(figsize=(11, 1 + 1.8 * len(lengths)), dpi=120, layout="constrained")
    grid = figure.subplots(len(lengths), len(_OF), sharex="col", squeeze=False)
    for column, name in enumerate(_OF):
        edges = _edges([values[:, column] for values in lengths.values()])
        for number, (axes, values) in enumerate(zip(grid[:, column], lengths.values(), strict=True)):
            _histogram(axes, values[:, column], edges, f"C{number}")
        grid[-1, column].set_xlabel(name)
    for axes, (split, values) in zip(grid[:, 0], lengths.items(), strict=True):
        axes.set_ylabel(f"{split}\n% of {len(values):,} rows")
    figure.suptitle(f"The rows of {dataset.path.name} by their lengths", fontsize="medium")
    try:
        figure.savefig(file)
    except OSError as error:
        raise UserError(f"cannot write the plot {file}: {error.strerror}; name another file by --plot") from None


def _edges(lengths: list[np.ndarray]) -> np.ndarray:
    """Return the edges of the bars, the same for all splits."""
    highest = max(np.percentile(values, _SHOWN, method="higher") for values in lengths)
    lowest = min(values.min() for values in lengths)
    wide = -(-(highest - lowest + 1) // _BARS)
    return np.arange(lowest, highest + wide + 1, wide) - 0.5


def _histogram(axes: "Axes", values: np.ndarray, edges: np.ndarray, color: str) -> None:
    axes.hist(values, edges.tolist(), weights=np.full(len(values), 100 / len(values)), color=color, alpha=0.55)
    median = float(np.percentile(values, 50, method="nearest"))  # as in the table of `data show`
    left = 2 * median < edges[0] + edges[-1]
    axes.axvline(median, color="0.2", linestyle=":")
    axes.annotate(
        f" median {median:,.0f} ",
        (median, 0.97),
        xycoords=("data", "axes fraction"),
        ha="left" if left else "right",
        va="top",
        fontsize="small",
    )
    axes.grid(alpha=0.3)
    axes.margins(y=0.2)
    axes.locator_params("x", nbins=6)
    axes.xaxis.set_major_formatter("{x:,.0f}")
