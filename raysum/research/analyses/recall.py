"""How much of the summary the best paragraphs hold, by similarity with the title or a trained ranker: HT's Table 1 for
any numbers of paragraphs, of any dataset."""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from raysum.data.dataset import Dataset
from raysum.evaluate.config import EvaluateConfig
from raysum.evaluate.examples import check_readable, read_examples
from raysum.evaluate.ranking import learned, recalls, similarity
from raysum.metrics.statistics import paired_difference, ratio_interval
from raysum.prepare.ranking import best_first
from raysum.runs.folder import Run
from raysum.runtime.progress import bar


def recall(
    data: str | Path,
    ranker: str | Path,
    split: str | None = None,
    best: Sequence[int] = (5, 10, 20, 40),
    limit: int | None = None,
) -> pd.DataFrame:
    """ROUGE-L recall (0 to 100) of the references against the ``best`` so many paragraphs of each source together.

    Paragraphs are those that the dataset holds, put in order by the tf-idf cosine with the title, and by the run
    ``ranker``, which scores all of them. The table says most of a dataset that has far more paragraphs than are taken:
    of a source that has no more, both orders take the same.
    Columns: ``order`` (similarity, ranker, or ranker - similarity), ``best``, ``recall``, ``low``, ``high``, ``p`` (of
    differences) and ``examples``; the mean number of paragraphs is in ``attrs["paragraphs"]``.
    Raises UserError where the ranker has another vocabulary, or the split no references.
    """
    dataset, run = Dataset.open(data), Run.open(ranker)
    check_readable(run, dataset)
    wanted = {str(count): count for count in best}
    scorers = {"similarity": similarity, "ranker": learned(run, EvaluateConfig(data=str(data)), dataset)}
    orders: dict[str, list[list[float]]] = {name: [] for name in scorers}
    counts = []
    split = dataset.split(split)
    total = min(limit or dataset.rows(split), dataset.references(split))
    for row in bar(read_examples(dataset, split, limit), total=total, label="recall", unit="example"):
        counts.append(len(row["text"]))
        for name, scores in scorers.items():
            orders[name].append([*recalls(row, best_first(scores(row)), wanted).values()])
    found = {name: np.array(values) for name, values in orders.items()}
    frame = pd.DataFrame(_lines(found, best))
    frame.attrs["paragraphs"] = float(np.mean(counts))
    return frame


def _lines(found: Mapping[str, np.ndarray], best: Sequence[int]) -> Iterator[dict[str, Any]]:
    """The figures of what was ``found``, [examples, len(best)] by order."""
    parts = ("recall", "low", "high", "p")
    for number, most in enumerate(best):
        pairs = {name: np.stack([values[:, number], np.ones(len(values))], 1) for name, values in found.items()}
        figures: dict[str, Sequence[float]] = {name: ratio_interval(values) for name, values in pairs.items()}
        figures["ranker - similarity"] = paired_difference(pairs["ranker"], pairs["similarity"])
        for name, values in figures.items():
            line = dict(zip(parts, values, strict=False))
            yield {"order": name, "best": most, **line, "examples": len(found["ranker"])}
