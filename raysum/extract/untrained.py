"""Whether a trained extractor is better than the systems without training, on validation clusters."""

from collections.abc import Sequence

import numpy as np
from pydantic import BaseModel

from raysum.config.decoding import ExtractConfig
from raysum.data.rows import Row, references
from raysum.extract.summarizer import extracted_summary
from raysum.extract.systems import Extractive, training_free
from raysum.metrics import rouge
from raysum.metrics.statistics import paired_difference
from raysum.prepare.row_builder import as_sentences

MOST_COMPARED = 200  # validation clusters


class UntrainedSystem(BaseModel):
    """The ROUGE-2 of a system without training, and the difference of the extractor to it with its 95 % interval."""

    rouge2: float
    difference: float
    low: float
    high: float


class UntrainedComparison(BaseModel):
    """The ROUGE-2 of an extractor in summaries of at most ``words``, and that of the ``others`` by name."""

    clusters: int
    words: int
    rouge2: float
    others: dict[str, UntrainedSystem]

    @property
    def best(self) -> str:
        """The best system without training."""
        return max(self.others, key=lambda name: self.others[name].rouge2)

    @property
    def is_ahead(self) -> bool:
        """Whether the extractor is significantly better than the best of the others."""
        return self.others[self.best].low > 0

    def sentence(self, name: str) -> str:
        """Return the result about the extractor ``name``, and which system to use."""
        best = self.others[self.best]
        how = f"{self.clusters} validation clusters, at most {self.words} words"
        figures = f"{self.rouge2:.1f} and {best.rouge2:.1f} ROUGE-2"
        interval = f"95 % interval of the difference {best.low:.1f} to {best.high:.1f}; {how}"
        if self.is_ahead:
            rival = f"{self.best}, the best system without training"
            return f"{name} is ahead of {rival}, by {best.difference:.1f}: {figures} ({interval})."
        use = f"use {self.best}: `raysum serve {self.best} --set words={self.words}`"
        return f"{name} is not ahead of {self.best}, which needs no training: {figures} ({interval}); {use}"


def compare_untrained(system: Extractive, settings: ExtractConfig, rows: Sequence[Row]) -> UntrainedComparison:
    """Compare the summaries of ``rows`` by ``system`` with those of the systems without training, as they are served.

    The rows have a reference; ``settings`` have the limit of words.
    """
    sentences, targets = [*map(as_sentences, rows)], [references(row) for row in rows]

    def rouge2(each: Extractive, by: ExtractConfig) -> np.ndarray:
        texts = [extracted_summary(each, by, row).summary for row in sentences]
        return rouge.score(texts, targets)["rouge2"].to_numpy()

    own, others = rouge2(system, settings), dict[str, UntrainedSystem]()
    for each in training_free():
        scores = rouge2(each, ExtractConfig(words=settings.words))
        pairs = [np.stack([values, np.ones(len(rows))], axis=1) for values in (own, scores)]
        difference, low, high, _ = paired_difference(*pairs)
        others[each.name] = UntrainedSystem(rouge2=scores.mean(), difference=difference, low=low, high=high)
    return UntrainedComparison(clusters=len(rows), words=settings.words or 0, rouge2=own.mean(), others=others)
