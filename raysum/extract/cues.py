"""Cue words: what a sentence with a word, or in a document with such a name, was worth where a system was trained.

M sentences of a row, C their cues, one after the other, W the size of the table.
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
    """The words, signs and pairs of them of each sentence, or of its document's name, as places in a table of values.

    ``places`` [C]; ``counts`` [M], all >= 1. Two that fall on one place count as one, as in every table of hashes.
    """

    places: np.ndarray
    counts: np.ndarray

    @classmethod
    def of(cls, texts: Sequence[str], width: int) -> "Cues":
        found = [_places(text, width) for text in texts]
        places = np.fromiter(chain.from_iterable(found), np.int32)
        return cls(places, np.array([len(one) for one in found], np.int64))

    def values(self, table: np.ndarray) -> np.ndarray:
        """[M, 2] mean and highest value of ``table`` [W] over the cues of each sentence."""
        found, starts = table[self.places], np.cumsum(self.counts) - self.counts
        return np.stack([np.add.reduceat(found, starts) / self.counts, np.maximum.reduceat(found, starts)], 1)


def cues_of(row: Row, width: int) -> tuple[Cues, Cues]:
    """Return the cues of the sentences and of their documents' names, in which all digits count as 0."""
    names = [_DIGITS.sub("0", name) for name in row["source"]]
    return Cues.of(row["text"], width), Cues.of([names[number] for number in row["document"]], width)


def cue_features(cues: tuple[Cues, Cues], tables: Sequence[np.ndarray]) -> np.ndarray:
    """[M, 13] float32: ``CUES`` of each sentence, of the one before and the one after it, and the rank of the first."""
    own = np.concatenate([part.values(table) for part, table in zip(cues, tables, strict=True)], 1)
    rank = np.argsort(np.argsort(own[:, :1], axis=0, kind="stable"), axis=0) / max(len(own) - 1, 1)
    before, after = own[[0, *range(len(own) - 1)]], own[[*range(1, len(own)), -1]]
    return np.concatenate([own, before, after, rank], 1).astype(np.float32)


class Worth:
    """What cues are worth: the mean ``labels`` of sentences that have them, less the mean of all.

    ``prior``: so many sentences of mean worth are added to each cue's, so that rare ones say little.
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
        """[W] float32"""
        return self._table(self._sums, self._counts, self._of_all)

    def table_without(self, cues: Cues, labels: np.ndarray) -> np.ndarray:
        """[W] the table of all examples but this one, so that its own labels do not speak for it."""
        sums, counts = self._sums.copy(), self._counts.copy()
        np.subtract.at(sums, cues.places, np.repeat(labels, cues.counts))
        np.subtract.at(counts, cues.places, 1)
        return self._table(sums, counts, self._of_all - (labels.sum(), len(labels)))

    def _table(self, sums: np.ndarray, counts: np.ndarray, of_all: np.ndarray) -> np.ndarray:
        mean = of_all[0] / max(of_all[1], 1)
        known = counts + self._prior
        values = np.divide(sums + self._prior * mean, known, out=np.full(len(sums), mean), where=known > 0) - mean
        return values.astype(np.float32)


def _places(text: str, width: int) -> set[int]:
    tokens = _TOKEN.findall(text.lower())
    pairs = (f"{first} {second}" for first, second in pairwise(tokens))
    return {crc32(cue.encode()) % width for cue in chain(tokens, pairs)} or {0}
