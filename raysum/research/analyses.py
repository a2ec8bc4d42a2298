"""The measurements of the papers other than ROUGE of summaries: each is a function that returns a data frame.

These are recall of rankers (HT's Table 1), attention (PHT's Table 4, VHT's Table 1), compression (PHT's Table 6), and
attention by the rank of paragraphs (PHT's Figure 2).
"""

from collections.abc import Sequence
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from raysum.config.sections import LoadConfig
from raysum.data.dataset import Dataset
from raysum.decode.summarizer import Summarizer
from raysum.errors import UserError
from raysum.evaluate.config import EvaluateConfig
from raysum.evaluate.evaluation import compare_systems
from raysum.evaluate.examples import check_readable, read_examples
from raysum.evaluate.ranking import learned, recalls, similarity
from raysum.evaluate.systems import Trained
from raysum.evaluate.table import Evaluation
from raysum.metrics.citations import gold_attention
from raysum.metrics.statistics import Figure, difference_of, figure_of
from raysum.models.batch import move
from raysum.prepare.ranking import best_first
from raysum.runs.folder import Run
from raysum.runs.restore import restore
from raysum.runtime.placement import device
from raysum.runtime.progress import bar
from raysum.runtime.storage import read_json, writing
from raysum.stream.collators.base import Kind, kind_of
from raysum.stream.loader import read_rows
from raysum.train.labels import attention_labels

KEPT = (5, 10, 15, 20, 25)  # of the 30 paragraphs that the PHT paper's models read
METRICS = ("rouge1", "rouge2", "rougeL")
PARTS = {"f1": "", "precision": "_precision", "recall": "_recall"}  # and the ends of the columns of scores
_ATTENTION = "attention_similarity"
_AT_ONCE = 16  # rows
_COLORS = ("#2a6fbb", "#c9822b")
_BOX = {"low_whisker": "whislo", "q1": "q1", "median": "med", "q3": "q3", "high_whisker": "whishi"}  # matplotlib's
_BOX |= {"mean": "mean", "outliers": "fliers"}


def recall(
    data: str | Path,
    ranker: str | Path,
    split: str | None = None,
    best: Sequence[int] = (5, 10, 20, 40),
    limit: int | None = None,
) -> pd.DataFrame:
    """ROUGE-L recall (0 to 100) of the references against the ``best`` so many paragraphs of each source together.

    Paragraphs are those of the dataset, in the order of their tf-idf cosine with the title, and of the run ``ranker``,
    which scores all of them. Use a dataset that has far more paragraphs than are taken: if a source has no more, both
    orders take the same.
    Columns: ``order`` (similarity, ranker, or ranker - similarity), ``best``, ``recall``, ``low``, ``high``, ``p`` (of
    differences) and ``examples``; the mean number of paragraphs is in ``attrs["paragraphs"]``.
    Raises UserError if the ranker has another vocabulary, or the split has no references.
    """
    dataset, run = Dataset.open(data), Run.open(ranker)
    check_readable(run, dataset)
    wanted = {str(count): count for count in best}
    scorers = {"similarity": similarity, "ranker": learned(run, EvaluateConfig(data=str(data)), dataset)}
    found: dict[str, list[dict[str, float]]] = {name: [] for name in scorers}
    counts = []
    split = dataset.split(split)
    total = min(limit or dataset.rows(split), dataset.references(split))
    for row in bar(read_examples(dataset, split, limit), total=total, label="recall", unit="example"):
        counts.append(len(row["text"]))
        for name, scores in scorers.items():
            found[name].append(recalls(row, best_first(scores(row)), wanted))
    frames, lines = {name: pd.DataFrame(rows) for name, rows in found.items()}, []
    for name, most in wanted.items():
        figure = Figure(name, 2)
        figures = {order: figure_of(name, figure, frame) for order, frame in frames.items()}
        figures["ranker - similarity"] = difference_of(name, figure, frames["ranker"], frames["similarity"])
        for order, one in figures.items():
            columns = {"recall": name, "low": f"{name}_low", "high": f"{name}_high", "p": f"{name}_p"}
            line = {column: one.get(key) for column, key in columns.items()}
            lines.append({"order": order, "best": most, **line, "examples": len(counts)})
    frame = pd.DataFrame(lines)
    frame.attrs["paragraphs"] = float(np.mean(counts))
    return frame


def attention_table(*evaluations: Evaluation | str | Path) -> pd.DataFrame:
    """How similar each system's attention to the paragraphs is to the origin of the reference.

    A line for each system of ``evaluations``, or of their folders: ``system``, its mean cosine ``attention`` (0 to 1)
    with the bounds of its interval, ``low`` and ``high``, and ``examples``. A system of several, such as lead, is in
    the first one's line alone.
    Raises UserError for a folder without an evaluation, and a system without the scorer ``attention``.
    """
    lines: dict[str, dict[str, float]] = {}
    for one in evaluations:
        known = (
            one.systems if isinstance(one, Evaluation) else read_json(Path(one).expanduser() / "table.json")["systems"]
        )
        for system, figures in known.items():
            if _ATTENTION not in figures:
                raise UserError(
                    f"{system} was evaluated without the scorer attention; repeat it with --scorers attention"
                )
            bounds = {end: figures[f"{_ATTENTION}_{end}"] for end in ("low", "high")}
            lines.setdefault(system, {"attention": figures[_ATTENTION], **bounds, "examples": int(figures["examples"])})
    return pd.DataFrame.from_dict(lines, orient="index").rename_axis("system").reset_index()


def compression(
    run: str | Path,
    data: str | Path,
    split: str | None = None,
    keep: Sequence[int] = KEPT,
    protocol: str = "pht-paper",
    limit: int | None = None,
    **decode: Any,
) -> pd.DataFrame:
    """ROUGE (0 to 100) of ``run`` over a split of ``data``, reading all paragraphs and ``keep`` of each source.

    Kept are those to which the run's attention predictor gives most (``decode.keep_paragraphs``); ``decode`` are other
    settings, of all alike. Columns: ``keep`` (0: all), ``metric``, ``part`` (f1, precision, recall), ``value``,
    ``low``, ``high``, and, of each ``keep`` beside all, ``difference``, ``difference_low``, ``difference_high`` (paired
    bootstrap) and ``p``. How ROUGE was counted is in ``attrs["protocol"]``.
    Raises UserError for a run without a predictor.
    """
    opened, dataset = Run.resolve(run), Dataset.open(data)
    check_readable(opened, dataset)
    summarizer = Summarizer.of(opened.path, LoadConfig(decode=decode))
    settings = {most: summarizer.choose({"keep_paragraphs": most}) for most in (None, *keep)}
    systems = [Trained(str(most or 0), summarizer, chosen) for most, chosen in settings.items()]
    chosen_split = dataset.split(split)
    config = EvaluateConfig(data=dataset.address, split=chosen_split, protocol=protocol, limit=limit, scorers=["rouge"])
    result = compare_systems(systems, dataset, chosen_split, config)
    scores = {int(str(name)): part for name, part in result.scores.groupby("system", sort=False)}
    lines = []
    for most, metric, part in product(scores, METRICS, PARTS):
        name, ends = metric + PARTS[part], ("", "_low", "_high")
        figures = figure_of(name, Figure(name, 2), scores[most])
        line: dict[str, Any] = {"keep": most, "metric": metric, "part": part}
        line |= {column: figures[name + end] for column, end in zip(("value", "low", "high"), ends, strict=True)}
        if most:
            gap = difference_of(name, Figure(name, 2), scores[most], scores[0])
            line |= {f"difference{end}": gap[name + end] for end in ends} | {"p": gap[f"{name}_p"]}
        lines.append(line)
    frame = pd.DataFrame(lines)
    frame.attrs["protocol"] = result.protocol
    return frame


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
    known = np.flatnonzero(dataset.lengths(dataset.split(split))[:, 2])
    if not len(known):
        raise UserError(f"split {split!r} of {dataset.place} has no example with a reference summary to compare with")
    chosen = np.sort(np.random.default_rng(seed).permutation(known)[:limit])
    kind = kind_of(opened.config.model, dataset)
    columns = ("text", "summary", *kind.columns)
    rows: list[Any] = [*read_rows(dataset.address, dataset.split(split), chosen, columns).values()]
    model = _attention(opened, kind, rows)
    gold = [gold_attention(row["summary"], row["text"][: len(own)]) for row, own in zip(rows, model, strict=True)]
    lines = [{"of": of, **line} for of, values in (("model", model), ("reference", gold)) for line in boxes(values)]
    return pd.DataFrame(lines)


def _attention(run: Run, kind: Kind, rows: Sequence[Any]) -> list[np.ndarray]:
    """Return eta [M] of each row, over the paragraphs that are read."""
    target = device()
    model = restore(run, "best", target, "summarizes")
    order = np.argsort([len(row["ids"]) for row in rows], kind="stable")
    found: dict[int, np.ndarray] = {}
    for start in bar(range(0, len(rows), _AT_ONCE), label="attention", unit="batch"):
        numbers = order[start : start + _AT_ONCE].tolist()
        batch = kind.collate(kind.pack([rows[number] for number in numbers], run.config.source))
        _, eta = attention_labels(model, move(batch, target))
        for number, count, label in zip(numbers, batch.source.counts.tolist(), eta.cpu().numpy(), strict=True):
            found[number] = label[:count]
    return [found[number] for number in range(len(rows))]


def boxes(values: Sequence[np.ndarray]) -> list[dict[str, Any]]:
    """Return the box of each rank (Tukey's, whiskers of 1.5 interquartile ranges) from ``values`` [M] by rank."""
    from matplotlib.cbook import boxplot_stats

    lines = []
    for rank in range(max(map(len, values), default=0)):
        own = np.array([one[rank] for one in values if len(one) > rank])
        (box,) = boxplot_stats(own)
        figures = {name: float(box[key]) for name, key in _BOX.items() if name != "outliers"}
        lines.append({"rank": rank + 1, "n": len(own), **figures, "outliers": sorted(box["fliers"].tolist())})
    return lines


def plot_ranks(frame: pd.DataFrame, file: str | Path) -> Path:
    """Draw the frame of :func:`ranks` as a PNG: a box a rank, the model's beside the reference's; diamonds are means.

    Raises UserError if it cannot be written.
    """
    from matplotlib.figure import Figure as Canvas

    most = int(frame["rank"].max())
    canvas = Canvas(figsize=(min(14.0, 4 + 0.5 * most), 4.2), layout="constrained")
    axes = canvas.subplots()
    labels = {"model": "the model's attention", "reference": "the reference's words"}
    shapes = []
    for of, shift, color in zip(labels, (-0.2, 0.2), _COLORS, strict=True):
        boxed = frame[frame["of"] == of]
        drawn = axes.bxp(
            boxed.rename(columns=_BOX).to_dict("records"),
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
        shapes.append(drawn["boxes"][0])
    step = -(-most // 20)
    axes.set_xticks(range(step, most + 1, step))
    axes.set(xlim=(0.4, most + 0.6), xlabel="initial rank of the paragraph", ylabel="share of the attention")
    axes.set_ylim(bottom=0)
    axes.grid(axis="y", alpha=0.3)
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(shapes, [*labels.values()], frameon=False)
    path = Path(file).expanduser()
    with writing(path.absolute().parent):
        canvas.savefig(path, dpi=150)
    return path
