"""Which sentences of a source an extractive model should take: those that together are nearest to the summary.

M sentences, G different n-grams of a reference.
"""

from collections import Counter
from collections.abc import Sequence
from itertools import pairwise

import numpy as np

Words = Sequence[str]


def greedy_labels(sentences: Sequence[Words], references: Sequence[Words]) -> np.ndarray:
    """[M] int8, 1 for the sentences taken, as Nallapati et al. (2017) and HIBERT (section 4.1) label them.

    The sentence that raises the F1 of ROUGE-1 plus that of ROUGE-2 most is added, the first of equals, until none
    raises it; of several references the mean counts. N-grams are counted with repeats, in sentences by themselves.
    """
    tables = [_Overlap(sentences, reference, size) for reference in references for size in (1, 2)]
    labels, best = np.zeros(len(sentences), np.int8), 0.0
    while tables:
        gains = np.where(labels, -1.0, sum(table.f1() for table in tables))
        if gains.max(initial=-1.0) <= best + 1e-12:
            break
        chosen = int(gains.argmax())
        best, labels[chosen] = float(gains[chosen]), 1
        for table in tables:
            table.take(chosen)
    return labels


class _Overlap:
    """The n-grams of a reference, those of each sentence among them, and those taken so far."""

    def __init__(self, sentences: Sequence[Words], reference: Words, size: int):
        wanted = Counter(_grams(reference, size))
        place = {gram: number for number, gram in enumerate(wanted)}
        self.wanted = np.array([*wanted.values()], np.int32)  # [G]
        self.found = np.zeros((len(sentences), len(wanted)), np.int32)
        self.lengths = np.array([max(len(words) - size + 1, 0) for words in sentences], np.int64)
        for row, words in zip(self.found, sentences, strict=True):
            for gram in _grams(words, size):
                if (number := place.get(gram)) is not None:
                    row[number] += 1
        self.taken, self.length = np.zeros_like(self.wanted), 0

    def f1(self) -> np.ndarray:
        """[M] with each sentence besides those taken: 2 x the n-grams in common / those of both."""
        common = np.minimum(self.taken + self.found, self.wanted).sum(1)
        return 2 * common / np.maximum(self.length + self.lengths + self.wanted.sum(), 1)

    def take(self, sentence: int) -> None:
        self.taken = self.taken + self.found[sentence]
        self.length += int(self.lengths[sentence])


def _grams(words: Words, size: int) -> list[tuple[str, ...]]:
    return [*pairwise(words)] if size == 2 else [(word,) for word in words]
