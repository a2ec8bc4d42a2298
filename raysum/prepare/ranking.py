"""Paragraph ranking inside one cluster: tf-idf cosine to the title, and LexRank (also the baseline system).

M paragraphs of a cluster.
"""

from collections.abc import Sequence

import numpy as np

from raysum.data.recipe import Ranker
from raysum.text.tfidf import TfIdf, words

_TELEPORT = 0.15  # chance of a jump to any paragraph; Erkan and Radev (2004) take 0.1 to 0.2
_TOLERANCE = 1e-8  # summed change of the scores at which the power iteration ends
_MOST_STEPS = 200  # 0.85^200 is below 1e-14: the iteration has ended long before


def rank_scores(ranker: Ranker, title: Sequence[str], paragraphs: Sequence[Sequence[str]]) -> np.ndarray:
    """[M] scores of the paragraphs (given as words, like the title), higher = better; all 0 for ``none``.

    A title that shares no word with any paragraph (or is empty) says nothing about their order: LexRank then decides.
    """
    assert ranker != "learned", "its scores are those of raysum.prepare.learned"
    if ranker == "none" or not paragraphs:
        return np.zeros(len(paragraphs))
    vectors = TfIdf(paragraphs)
    if ranker == "tfidf":
        scores = vectors.cosine(title)
        if scores.any():
            return scores
    return centrality(vectors)


def best_first(scores: np.ndarray) -> np.ndarray:
    """[M] indices by falling score; equal scores keep document order."""
    return np.argsort(-scores, kind="stable")


def lexrank(paragraphs: Sequence[str]) -> np.ndarray:
    """[M] LexRank scores of raw texts, summing to 1 (Erkan and Radev, 2004, with cosines as edge weights)."""
    return rank_scores("lexrank", [], [words(paragraph) for paragraph in paragraphs])


def centrality(vectors: TfIdf) -> np.ndarray:
    """The stationary distribution of a walk over similar paragraphs, by power iteration.

    The cosines are never multiplied out, a step is two products with the vectors: 20,000 paragraphs take 0.1 s.
    """
    strength = vectors.project(vectors.total(np.ones(vectors.size)))  # [M] sums of the cosines
    alone = strength == 0  # no word at all: from there the walk goes anywhere
    scores = np.full(vectors.size, 1 / vectors.size)
    for _ in range(_MOST_STEPS):
        anywhere = _TELEPORT + (1 - _TELEPORT) * scores[alone].sum()
        leaving = np.divide(scores, strength, out=np.zeros_like(scores), where=~alone)
        updated = anywhere / vectors.size + (1 - _TELEPORT) * vectors.project(vectors.total(leaving))
        change = np.abs(updated - scores).sum()
        scores = updated
        if change < _TOLERANCE:
            break
    return scores
