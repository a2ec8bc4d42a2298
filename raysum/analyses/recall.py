"""How much of the summary the best paragraphs hold, by similarity with the title or a trained ranker: HT's Table 1."""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch

from raysum import systems
from raysum.data.dataset import Dataset
from raysum.evaluate.examples import read_examples
from raysum.metrics import rouge
from raysum.metrics.statistics import paired_difference, ratio_interval
from raysum.metrics.tfidf import words
from raysum.models.batch import move
from raysum.prepare.ranking import best_first, rank_scores
from raysum.restore import restore_ranker
from raysum.run import Run
from raysum.runtime.placement import device
from raysum.runtime.progress import bar

_PROTOCOL = "ht-paper"


def recall(
    data: str | Path,
    ranker: str | Path,
    split: str | None = None,
    best: Sequence[int] = (5, 10, 20, 40),
    limit: int | None = None,
) -> pd.DataFrame:
    """ROUGE-L recall (0 to 100) of the references against the ``best`` so many paragraphs of each source together.

    Paragraphs are those that the dataset holds, put in order by the tf-idf cosine with the title, and by the run
    ``ranker``, which scores all of them. The table says most of a dataset that was prepared with far more paragraphs
    than are taken: of a source that has no more, both orders take the same.
    Columns: ``order`` (similarity, ranker, or ranker - similarity), ``best``, ``recall``, ``low``, ``high``, ``p`` (of
    differences) and ``examples``; the mean number of paragraphs is in ``attrs["paragraphs"]``.
    Raises UserError where the ranker has another vocabulary, or the split no references.
    """
    dataset = Dataset.open(data)
    model = restore_ranker(str(ranker), dataset.vocabulary_hash, device())
    source = Run.open(ranker).config.source
    orders: dict[str, list[list[float]]] = {"similarity": [], "ranker": []}
    counts = []
    split = dataset.split(split)
    total = min(limit or dataset.rows(split), dataset.references(split))
    for row in bar(read_examples(dataset, split, limit), total=total, label="recall", unit="example"):
        counts.append(len(row["text"]))
        every = source.model_copy(update={"max_paragraphs": counts[-1]})
        similar = rank_scores("tfidf", words(row["title"]), [words(text) for text in row["text"]])
        for name, scores in (("similarity", similar), ("ranker", ranker_scores(model, row, every))):
            orders[name].append(recalls(row, best_first(scores), best))
    found = {name: np.array(values) for name, values in orders.items()}
    frame = pd.DataFrame(_lines(found, best))
    frame.attrs["paragraphs"] = float(np.mean(counts))
    return frame


@torch.inference_mode()
def ranker_scores(model: Any, row: Any, source: Any) -> np.ndarray:
    """[M] the scores (0 to 1) of the paragraphs of ``row`` as far as ``source`` reads them."""
    kind = systems.kind(model.spec)
    batch = move(kind.collate(kind.pack([row], source)), next(model.parameters()).device)
    scores: np.ndarray = model(batch.titles, batch.source).float().sigmoid().cpu().numpy()
    return scores


def recalls(row: Any, order: np.ndarray, best: Sequence[int]) -> list[float]:
    """ROUGE-L recall of the summary of ``row`` against the first of its paragraphs in ``order``, for each ``best``."""
    texts = [" ".join(row["text"][place] for place in order[:most]) for most in best]
    found: list[float] = rouge.score(texts, [row["summary"]] * len(texts), _PROTOCOL)["rougeL_recall"].tolist()
    return found


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
