"""Paragraph ranking inside one cluster: tf-idf cosine to the title, and LexRank (also the baseline system).

M paragraphs, T different words of the cluster.
"""

from collections import defaultdict
from collections.abc import Sequence
from itertools import chain, count
from typing import TYPE_CHECKING

import numpy as np

from raysum.data.clean import words
from raysum.data.recipe import Ranker

if TYPE_CHECKING:
    from scipy.sparse import csr_array

_TELEPORT = 0.15  # chance of a jump to any paragraph; Erkan and Radev (2004) take 0.1 to 0.2
_TOLERANCE = 1e-8  # summed change of the scores at which the power iteration ends
_MOST_STEPS = 200  # 0.85^200 is below 1e-14: the iteration has ended long before


class TfIdf:
    """tf-idf vectors of the paragraphs of one cluster, each of length 1.

    The document frequencies are those of the cluster's own paragraphs: so a word's weight says how well it tells these
    paragraphs apart, the same cluster ranks the same in any corpus, and inference needs no corpus statistics.
    The numbers are those of scikit-learn's TfidfVectorizer (smoothed idf, cosine norm), whose fit costs 2.5 ms for a
    small cluster where this costs 0.2 ms.
    """

    def __init__(self, paragraphs: Sequence[Sequence[str]]):
        self.size = len(paragraphs)
        self._columns: dict[str, int] = defaultdict(count().__next__)  # a new word takes the next number
        flat = np.fromiter(map(self._columns.__getitem__, chain.from_iterable(paragraphs)), np.int64)
        width = max(len(self._columns), 1)
        rows = np.repeat(np.arange(self.size), [len(paragraph) for paragraph in paragraphs])
        cells, counts = np.unique(rows * width + flat, return_counts=True)
        self.rows, self.cells = np.divmod(cells, width)
        document_frequency = np.bincount(self.cells, minlength=width)
        self.idf = np.log((1 + self.size) / (1 + document_frequency)) + 1
        values = counts * self.idf[self.cells]
        norms = np.sqrt(np.bincount(self.rows, values**2, minlength=self.size))
        self.values = values / norms[self.rows]

    def cosine(self, query: Sequence[str]) -> np.ndarray:
        """[M] cosine of each paragraph with the words of ``query``; 0 where they share none."""
        known = [self._columns[word] for word in query if word in self._columns]
        vector = np.bincount(np.array(known, np.int64), minlength=len(self.idf)) * self.idf
        length = np.linalg.norm(vector)
        if not length:
            return np.zeros(self.size)
        return np.bincount(self.rows, self.values * vector[self.cells], minlength=self.size) / length

    def matrix(self) -> "csr_array":
        """[M, T] the vectors. Their product, ``matrix @ matrix.T`` [M, M], holds the cosines of all pairs: it fills up
        where paragraphs share words, so only for a bounded number of them."""
        from scipy.sparse import csr_array

        return csr_array((self.values, (self.rows, self.cells)), shape=(self.size, len(self.idf)))


def rank_scores(ranker: Ranker, title: Sequence[str], paragraphs: Sequence[Sequence[str]]) -> np.ndarray:
    """[M] scores of the paragraphs (given as words, like the title), higher = better; all 0 for ``none``.

    A title that shares no word with any paragraph (or is empty) says nothing about their order: LexRank then decides.
    """
    if ranker == "none" or not paragraphs:
        return np.zeros(len(paragraphs))
    vectors = TfIdf(paragraphs)
    if ranker == "tfidf":
        scores = vectors.cosine(title)
        if scores.any():
            return scores
    return _centrality(vectors)


def best_first(scores: np.ndarray) -> np.ndarray:
    """[M] indices by falling score; equal scores keep document order."""
    return np.argsort(-scores, kind="stable")


def lexrank(paragraphs: Sequence[str]) -> np.ndarray:
    """[M] LexRank scores of raw texts, summing to 1 (Erkan and Radev, 2004, with cosines as edge weights)."""
    return rank_scores("lexrank", [], [words(paragraph) for paragraph in paragraphs])


def _centrality(vectors: TfIdf) -> np.ndarray:
    """The stationary distribution of a walk over similar paragraphs, by power iteration.

    The cosines are never multiplied out: a step is two products with the vectors, and 20,000 paragraphs a second.
    """
    matrix = vectors.matrix()
    columns = matrix.T
    strength = matrix @ columns.sum(axis=1)  # [M] sums of the cosines
    alone = strength == 0  # no word at all: from there the walk goes anywhere
    scores = np.full(vectors.size, 1 / vectors.size)
    for _ in range(_MOST_STEPS):
        anywhere = _TELEPORT + (1 - _TELEPORT) * scores[alone].sum()
        leaving = np.divide(scores, strength, out=np.zeros_like(scores), where=~alone)
        updated = anywhere / vectors.size + (1 - _TELEPORT) * (matrix @ (columns @ leaving))
        change = np.abs(updated - scores).sum()
        scores = updated
        if change < _TOLERANCE:
            break
    return scores
