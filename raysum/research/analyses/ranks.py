"""Attention to paragraphs by the rank that they came with: the PHT paper's Figure 2."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from raysum.data.dataset import Dataset
from raysum.errors import UserError
from raysum.evaluate.examples import check_readable
from raysum.metrics.citations import gold_attention
from raysum.models.batch import move
from raysum.runs.folder import Run
from raysum.runs.restore import restore_generator
from raysum.runtime.placement import device
from raysum.runtime.progress import bar
from raysum.runtime.storage import writing
from raysum.stream.collators.base import Kind, kind_of
from raysum.stream.reader import read_rows
from raysum.train.labels import attention_labels

_REACH = 1.5  # interquartile ranges from the box to the end of a whisker, at most (Tukey)
_AT_ONCE = 16  # rows
_COLORS = ("#2a6fbb", "#c9822b")
_THEIRS = {"median": "med", "low_whisker": "whislo", "high_whisker": "whishi", "outliers": "fliers"}  # matplotlib's


def ranks(run: str | Path, data: str | Path, split: str = "train", limit: int = 10_000, seed: int = 0) -> pd.DataFrame:
    """The attention of ``run`` to the paragraphs of each rank, and the reference's, over a split of ``data``.

    That of the model is teacher-forced with the reference (PHT eq. 15), that of the reference by tf-idf (section
    7.1.1); both sum to one over the paragraphs that the model reads of a row. ``limit`` rows are drawn by ``seed``.
    Columns: ``of`` (model or reference), ``rank`` (from 1), ``n``, ``low_whisker``, ``q1``, ``median``, ``q3``,
    ``high_whisker``, ``mean``, and ``outliers``, a list of what is beyond the whiskers.
    Raises UserError for a run without attention to paragraphs, or that cannot read ``data``, and for a split without
    references.
    """
    opened, dataset = Run.resolve(run), Dataset.open(data)
    check_readable(opened, dataset)
    if not opened.config.model.attends_to_paragraphs:
        raise UserError(f"{run} pays no attention to paragraphs; name a run that summarizes")
    kind = kind_of(opened.config.model, dataset)
    rows = _drawn(dataset, dataset.split(split), ("text", "summary", *kind.columns), limit, seed)
    found: dict[str, list[np.ndarray]] = {"model": [], "reference": []}
    for row, attention in zip(rows, _attention(opened, kind, rows), strict=True):
        gold = gold_attention(row["summary"], row["text"][: len(attention)])
        found["model"].append(attention)
        found["reference"].append(gold)
    return pd.DataFrame([{"of": of, **line} for of, values in found.items() for line in boxes(values)])


def _drawn(dataset: Dataset, split: str, columns: tuple[str, ...], limit: int, seed: int) -> list[Any]:
    """Rows with a reference, in file order."""
    known = np.flatnonzero(dataset.lengths(split)[:, 2])
    if not len(known):
        raise UserError(f"split {split!r} of {dataset.place} has no example with a reference summary to compare with")
    chosen = np.sort(np.random.default_rng(seed).permutation(known)[:limit])
    return [*read_rows(dataset.address, split, chosen, columns).values()]


def _attention(run: Run, kind: Kind, rows: Sequence[Any]) -> list[np.ndarray]:
    """Eta [M] of each row, over the paragraphs that are read."""
    place = device()
    model = restore_generator(run, "best", place)
    order = np.argsort([len(row["ids"]) for row in rows], kind="stable")
    found: dict[int, np.ndarray] = {}
    for start in bar(range(0, len(rows), _AT_ONCE), label="attention", unit="batch"):
        numbers = order[start : start + _AT_ONCE].tolist()
        batch = kind.collate(kind.pack([rows[number] for number in numbers], run.config.source))
        _, eta = attention_labels(model, move(batch, place))
        for number, count, label in zip(numbers, batch.source.counts.tolist(), eta.cpu().numpy(), strict=True):
            found[number] = label[:count]
    return [found[number] for number in range(len(rows))]


def boxes(values: Sequence[np.ndarray]) -> list[dict[str, Any]]:
    """The box of each rank, of ``values`` that are each [M] by rank.

    Whiskers end at the last value within 1.5 times the height of the box, as in any box plot since Tukey's, and no
    sooner than the box.
    """
    lines = []
    for rank in range(max(map(len, values), default=0)):
        own = np.array([one[rank] for one in values if len(one) > rank])
        q1, median, q3 = np.quantile(own, (0.25, 0.5, 0.75))
        reach = _REACH * (q3 - q1)
        inside = own[(own >= q1 - reach) & (own <= q3 + reach)]
        low, high = min(inside.min(), q1), max(inside.max(), q3)
        lines.append(
            {
                "rank": rank + 1,
                "n": len(own),
                "low_whisker": float(low),
                "q1": float(q1),
                "median": float(median),
                "q3": float(q3),
                "high_whisker": float(high),
                "mean": float(own.mean()),
                "outliers": sorted(own[(own < low) | (own > high)].tolist()),
            }
        )
    return lines


def plot_ranks(frame: pd.DataFrame, file: str | Path) -> Path:
    """Draw what :func:`ranks` found as a PNG: a box a rank, the model's beside the reference's.

    Raises UserError where it cannot be written.
    """
    from matplotlib.figure import Figure

    most = int(frame["rank"].max())
    figure = Figure(figsize=(min(14.0, 4 + 0.5 * most), 4.2), layout="constrained")
    axes = figure.subplots()
    names = {"model": "the model's attention", "reference": "the reference's words"}
    shapes = [
        _draw(axes, frame[frame["of"] == of], shift, color)
        for of, shift, color in zip(names, (-0.2, 0.2), _COLORS, strict=True)
    ]
    step = -(-most // 20)
    axes.set_xticks(range(step, most + 1, step))
    axes.set(xlim=(0.4, most + 0.6), xlabel="initial rank of the paragraph", ylabel="share of the attention")
    axes.set_ylim(bottom=0)
    axes.grid(axis="y", alpha=0.3)
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(shapes, [*names.values()], frameon=False)
    place = Path(file).expanduser()
    with writing(place):
        figure.savefig(place, dpi=150)
    return place


def _draw(axes: Any, boxed: pd.DataFrame, shift: float, color: str) -> Any:
    """Boxes of one color, ``shift`` beside their ranks; diamonds are means. Returns a box for the legend."""
    drawn = axes.bxp(
        boxed.rename(columns=_THEIRS).to_dict("records"),
        positions=(boxed["rank"] + shift).tolist(),
        widths=0.34,
        manage_ticks=False,
        showmeans=True,
        patch_artist=True,
        boxprops={"facecolor": f"{color}40", "edgecolor": color},
        medianprops={"color": color, "linewidth": 2},
        meanprops={"marker": "D", "markersize": 3.5, "markerfacecolor": "white", "markeredgecolor": color},
        whiskerprops={"color": color},
        capprops={"color": color},
        flierprops={"marker": ".", "markersize": 2.5, "markeredgecolor": color, "alpha": 0.35},
    )
    return drawn["boxes"][0]
