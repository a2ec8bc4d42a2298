"""Paragraph ranking inside one cluster: tf-idf cosine to the title, and LexRank (also the baseline system).

M paragraphs of a cluster.
"""

from collections.abc import Sequence

import numpy as np

from raysum.data.recipe import Ranker
from raysum.text.tfidf import TfIdf, words

_TELEPORT = 0.15  # chance of a jump to any paragraph; Erkan and Radev (2004) take 0.1 to 0.2
_TOLERANCE = 1e-8  # summed change of the scores that ends the power iteration
_MAX_STEPS = 200  # 0.85^200 is below 1e-14: the iteration always ends earlier


def rank_scores(ranker: Ranker, title: Sequence[str], paragraphs: Sequence[Sequence[str]]) -> np.ndarray:
    """[M] scores of the paragraphs (lists of words, like the title), higher = better; all 0 for ``none``.

    If the title shares no word with any paragraph, LexRank replaces tf-idf.
    """
    assert ranker != "learned", "raysum.prepare.learned computes the scores of a learned ranker"
    if ranker == "none" or not paragraphs:
        return np.zeros(len(paragraphs))
    vectors = TfIdf(paragraphs)
    if ranker == "tfidf":
        scores = vectors.cosine(title)
        if scores.any():
            return scores
    return centrality(vectors)


def best_first(scores: np.ndarray) -> np.ndarray:
    """[M] indices by descending score; equal scores keep document order."""
    return np.argsort(-scores, kind="stable")


def positions(groups: np.ndarray) -> np.ndarray:
    """Return [M]: the position of each text in its group. ``groups`` [M] is contiguous."""
    starts = np.flatnonzero(np.diff(groups, prepend=groups[:1] - 1))
    return np.arange(len(groups)) - np.repeat(starts, np.diff([*starts, len(groups)]))


def lexrank(paragraphs: Sequence[str]) -> np.ndarray:
    """[M] LexRank scores of raw texts, summing to 1 (Erkan and Radev, 2004, with cosines as edge weights)."""
    return rank_scores("lexrank", [], [words(paragraph) for paragraph in paragraphs])


def centrality(vectors: TfIdf) -> np.ndarray:
    """[M] the stationary distribution of a walk over similar paragraphs, by power iteration.

    A step is two products with the vectors, without a matrix of cosines: 20,000 paragraphs take 0.1 s.
    """
    strength = vectors.project(vectors.total(np.ones(vectors.size)))  # [M] sums of the cosines
    alone = strength == 0  # paragraphs without words: the walk continues anywhere
    scores = np.full(vectors.size, 1 / vectors.size)
    for _ in range(_MAX_STEPS):
        anywhere = _TELEPORT + (1 - _TELEPORT) * scores[alone].sum()
        leaving = np.divide(scores, strength, out=np.zeros_like(scores), where=~alone)
        updated = anywhere / vectors.size + (1 - _TELEPORT) * vectors.project(vectors.total(leaving))
        change = np.abs(updated - scores).sum()
        scores = updated
        if change < _TOLERANCE:
            break
    return scores
