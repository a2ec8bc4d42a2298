"""Scores of a run on the valid split: the metric of ``train.best_by``, and the best summary length of an extractor."""

import time
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain, islice

import numpy as np
import torch
from torch import distributed

from raysum.config.decoding import ExtractConfig
from raysum.config.sections import LoadConfig
from raysum.data.dataset import Dataset
from raysum.data.rows import Row, references
from raysum.decode.summarizer import Summarizer
from raysum.evaluate.scorers import FIGURES, score_table, scorer_of
from raysum.extract.selection import take
from raysum.extract.source_texts import SourceTexts
from raysum.extract.systems import TrainedExtractive
from raysum.metrics import rouge
from raysum.metrics.statistics import pairs_of
from raysum.runs.folder import Run
from raysum.runtime.progress import say

# Greedy, without models that are trained later: a beam of five takes about five times as long.
_DECODE = {
    **{"num_beams": 1, "n_best": 1, "citations": "attention"},
    **{"beta": 0.0, "extractive": 0.0, "ranker": None, "keep_paragraphs": None},
}
_SPLIT, _MAX_ROWS, _MAX_SENTENCES = "valid", 300, 30  # rows scored, lengths tried
_PATIENCE = 2  # the search ends after this many lengths in a row that are no better
_MEASURED = ("rouge1", "rouge2", "rougeL")


@dataclass(frozen=True)
class ValidationMetric:
    """The metric ``name`` of the first ``examples`` of the valid split (None: all)."""

    name: str
    data: str
    examples: int | None

    def figures(self, run: Run, step: int) -> dict[str, float]:
        """Return the metric of the checkpoint of ``step`` and the seconds that it took.

        Every rank calls it, scores its share of the examples, and gets the same result.
        """
        began = time.monotonic()
        rows = (row for row in Dataset.open(self.data).read(_SPLIT) if row["summary"].strip())
        share = [*islice(islice(rows, self.examples), distributed.get_rank(), None, distributed.get_world_size())]
        if run.config.model.extracts:  # choose_length repeats the search at the end
            _, value = _best_length(run, share, LoadConfig(checkpoint=str(step)), [self.name])
        else:
            value = self._of_summaries(share, run, step)
        return {run.config.train.best_metric: value, "valid_seconds": round(time.monotonic() - began, 3)}

    def _of_summaries(self, rows: Sequence[Row], run: Run, step: int) -> float:
        summaries = Summarizer.of(run.path, LoadConfig(checkpoint=str(step), decode=_DECODE)).summarize_rows(rows)
        scorer, figure = scorer_of(self.name), FIGURES[self.name]
        pairs = pairs_of(self.name, figure, score_table(rows, summaries, [scorer] if rows and scorer else []))
        above, below = _sums(*pairs.sum(axis=0).tolist())
        if figure.above and not figure.below:
            return above
        return (100 if figure.below else 1) * above / max(below, 1)


def _sums(*values: float) -> list[float]:
    """Return the sums of ``values`` over all ranks, if there are several."""
    sums = torch.tensor(values, dtype=torch.float64, device="cuda" if torch.cuda.is_available() else "cpu")
    if distributed.is_initialized():
        distributed.all_reduce(sums)
    return sums.tolist()


def choose_length(run: Run, dataset: Dataset) -> None:
    """Write into ``run`` the number of sentences with the highest mean F1 of ROUGE-1, 2 and L on the valid split."""
    all_rows = dataset.read(_SPLIT) if _SPLIT in dataset.splits else iter(())
    rows = [*islice((row for row in all_rows if row["summary"].strip()), _MAX_ROWS)]
    if not rows:
        say(f"{run.place}: summaries have 100 words, because no valid split shows a better length")
        return
    if warning := rouge.unread(chain.from_iterable(map(references, rows))):
        say(f"{run.place}: {warning}")
    best, value = _best_length(run, rows, LoadConfig(), _MEASURED)
    run.set_extract({"sentences": best})
    say(f"{run.place} extracts {best} sentences: mean ROUGE F1 {value:.2f} on {len(rows)} clusters of {_SPLIT}")


def _best_length(run: Run, rows: Sequence[Row], load: LoadConfig, names: Sequence[str]) -> tuple[int, float]:
    """Return the number of sentences with the highest mean of the metrics ``names`` over all ranks, and that mean.

    The mean rises and then falls with the number of sentences, which are joined in document order.
    """
    system, means = TrainedExtractive(run, load), list[float]()
    most, targets = ExtractConfig(sentences=_MAX_SENTENCES), [references(row) for row in rows]
    orders = [take(system, SourceTexts(row["text"], row=row), most) for row in rows]
    while len(means) < _MAX_SENTENCES and len(means) - np.argmax(means or [0]) <= _PATIENCE:
        chosen = [sorted(order[: len(means) + 1]) for order in orders]
        texts = [
            "\n".join(" ".join(row["text"][index].split()) for index in indices)
            for row, indices in zip(rows, chosen, strict=True)
        ]
        scores = rouge.score(texts, targets)[[*names]].to_numpy()
        total, count = _sums(float(scores.sum()), scores.size)
        means.append(total / max(count, 1))
    return int(np.argmax(means)) + 1, max(means)
