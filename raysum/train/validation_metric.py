"""Score the summaries of a checkpoint on the valid split by the metric that ``train.best_by`` names."""

import time
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import islice

import torch
from torch import distributed

from raysum.config.sections import LoadConfig
from raysum.data.dataset import Dataset
from raysum.data.rows import Row, references
from raysum.decode.sentences import SentenceScorer
from raysum.decode.summarizer import Summarizer
from raysum.evaluate.scorers import FIGURES, score, scorer_of
from raysum.metrics import rouge
from raysum.metrics.statistics import pairs_of
from raysum.prepare.ranking import best_first
from raysum.runs.folder import Run
from raysum.train.summary_length import best_length, taken

# Greedily, without what is trained after the model: a beam of five takes some five times as long.
_DECODE = {
    **{"num_beams": 1, "n_best": 1, "citations": "attention"},
    **{"beta": 0.0, "extractive": 0.0, "ranker": None, "keep_paragraphs": None},
}


@dataclass(frozen=True)
class ValidationMetric:
    """The metric ``name`` of the first ``examples`` of the valid split (None: all)."""

    name: str
    data: str
    examples: int | None

    def figures(self, run: Run, step: int) -> dict[str, float]:
        """The figure of the checkpoint of ``step``, and the seconds that it took. Every rank calls it, and gets the
        same: each decodes its share of the examples."""
        began = time.monotonic()
        rows = (row for row in Dataset.open(self.data).read("valid") if row["summary"].strip())
        mine = [*islice(islice(rows, self.examples), distributed.get_rank(), None, distributed.get_world_size())]
        measured = self._taken if run.config.model.extracts else self._written
        value = measured(mine, run, step)
        return {run.config.train.judged_by: value, "valid_seconds": round(time.monotonic() - began, 3)}

    def _written(self, rows: Sequence[Row], run: Run, step: int) -> float:
        summaries = Summarizer.of(run.path, LoadConfig(checkpoint=str(step), decode=_DECODE)).summarize_rows(rows)
        scorer, figure = scorer_of(self.name), FIGURES[self.name]
        pairs = pairs_of(self.name, figure, score(rows, summaries, [scorer] if rows and scorer else []))
        above, below = _sums(*pairs.sum(axis=0).tolist())
        if figure.above and not figure.below:
            return above
        return (100 if figure.below else 1) * above / max(below, 1)

    def _taken(self, rows: Sequence[Row], run: Run, step: int) -> float:
        """As many sentences of each cluster as are worth most: the number is chosen anew when the training ends."""
        scorer = SentenceScorer(run, LoadConfig(checkpoint=str(step)))
        orders = [best_first(scorer.scores(row)) for row in rows]
        return best_length(lambda count: self._rouge(taken(rows, orders, count), rows))[1]

    def _rouge(self, texts: Sequence[str], rows: Sequence[Row]) -> float:
        scores = rouge.score(texts, [references(row) for row in rows])[self.name]
        total, count = _sums(float(scores.sum()), len(rows))
        return total / max(count, 1)


def _sums(*values: float) -> list[float]:
    """Return the sums of ``values`` over all ranks."""
    sums = torch.tensor(values, dtype=torch.float64, device="cuda" if torch.cuda.is_available() else "cpu")
    distributed.all_reduce(sums)
    return sums.tolist()
