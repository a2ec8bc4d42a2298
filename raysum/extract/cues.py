"""Cue words: the mean value in the training data of sentences with a word, or from a document with such a name.

M sentences of a row, C their cues in sequence, W the size of the table.
"""

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import chain, pairwise
from zlib import crc32

import numpy as np

from raysum.data.rows import Row

CUES = ("words", "best_word", "name", "best_name")
_TOKEN = re.compile(r"\w+|[^\w\s]")
_DIGITS = re.compile(r"\d+")


@dataclass(frozen=True)
class Cues:
    """The words, signs and pairs of them of each sentence or document name, as indices into a table (feature hashing).

    ``places`` [C]; ``counts`` [M], all >= 1. Cues with the same index count as one.
    """

    places: np.ndarray
    counts: np.ndarray

    @classmethod
    def of(cls, texts: Sequence[str], width: int) -> "Cues":
        indices = [_indices(text, width) for text in texts]
        places = np.fromiter(chain.from_iterable(indices), np.int32)
        return cls(places, np.array([len(part) for part in indices], np.int64))

    def values(self, table: np.ndarray) -> np.ndarray:
        """Return [M, 2]: mean and highest value of ``table`` [W] over the cues of each sentence."""
        values, starts = table[self.places], np.cumsum(self.counts) - self.counts
        return np.stack([np.add.reduceat(values, starts) / self.counts, np.maximum.reduceat(values, starts)], 1)


def cues_of(row: Row, width: int) -> tuple[Cues, Cues]:
    """Return the cues of the sentences and of the names of their documents, with all digits replaced by 0."""
    names = [_DIGITS.sub("0", name) for name in row["source"]]
    return Cues.of(row["text"], width), Cues.of([names[number] for number in row["document"]], width)


def cue_features(cues: tuple[Cues, Cues], tables: Sequence[np.ndarray]) -> np.ndarray:
    """Return [M, 13] float32: ``CUES`` of each sentence, the one before and the one after; rank by the first."""
    own = np.concatenate([part.values(table) for part, table in zip(cues, tables, strict=True)], 1)
    rank = np.argsort(np.argsort(own[:, :1], axis=0, kind="stable"), axis=0) / max(len(own) - 1, 1)
    before, after = own[[0, *range(len(own) - 1)]], own[[*range(1, len(own)), -1]]
    return np.concatenate([own, before, after, rank], 1).astype(np.float32)


class CueValues:
    """The values of cues: the mean ``labels`` of sentences with a cue, minus the mean of all sentences.

    ``prior``: the number of average sentences that are added to each cue, so that rare cues have small values.
    """

    def __init__(self, width: int, prior: float, examples: Iterable[tuple[Cues, np.ndarray]]):
        self._prior = prior
        self._sums, self._counts = np.zeros(width), np.zeros(width)
        self._of_all = np.zeros(2)  # sum of labels, and how many
        for cues, labels in examples:
            np.add.at(self._sums, cues.places, np.repeat(labels, cues.counts))
            np.add.at(self._counts, cues.places, 1)
            self._of_all += labels.sum(), len(labels)

    def table(self) -> np.ndarray:
        """Return [W] float32."""
        return self._table(self._sums, self._counts, self._of_all)

    def table_without(self, cues: Cues, labels: np.ndarray) -> np.ndarray:
        """Return [W]: the table of all examples except this one, so that its labels do not leak."""
        sums, counts = self._sums.copy(), self._counts.copy()
        np.subtract.at(sums, cues.places, np.repeat(labels, cues.counts))
        np.subtract.at(counts, cues.places, 1)
        return self._table(sums, counts, self._of_all - (labels.sum(), len(labels)))

    def _table(self, sums: np.ndarray, counts: np.ndarray, of_all: np.ndarray) -> np.ndarray:
        mean = of_all[0] / max(of_all[1], 1)
        known = counts + self._prior
        values = np.divide(sums + self._prior * mean, known, out=np.full(len(sums), mean), where=known > 0) - mean
        return values.astype(np.float32)


def _indices(text: str, width: int) -> set[int]:
    tokens = _TOKEN.findall(text.lower())
    pairs = (f"{first} {second}" for first, second in pairwise(tokens))
    return {crc32(cue.encode()) % width for cue in chain(tokens, pairs)} or {0}
