"""Repeated paragraphs: near duplicates within a cluster, and boilerplate across clusters.

M paragraphs of a cluster, each as a list of words.
"""

import hashlib
from collections import defaultdict
from collections.abc import Iterable, Sequence
from itertools import chain, count
from math import ceil

import numpy as np

Words = Sequence[str]
_SHINGLE = 3  # words
_MIN_CLUSTERS = 5  # that contain a boilerplate paragraph
_MAX_MARKS = 2000  # most frequent paragraphs of boilerplate: 40 kB of the recipe


def near_duplicates(paragraphs: Sequence[Words], limit: float) -> list[bool]:
    """[M] whether a paragraph has a Jaccard similarity of at least ``limit`` (0 to 1) to an earlier unique paragraph.

    The similarity is that of their sets of three-word shingles. It is exact, while MinHash estimates: if two sets in a
    common order are so similar, their first 1 - limit elements share one (Chaudhuri et al., 2006). The rarest shingles
    come first, so few pairs are compared.
    """
    index = defaultdict[int, list[int]](list)  # unique paragraphs by each of their first shingles
    unique = dict[int, frozenset[int]]()
    is_duplicate = [False] * len(paragraphs)
    shingles, shared = _shingles(paragraphs)
    for number, own in enumerate(shingles):
        first = own[: len(own) - ceil(limit * len(own) - 1e-9) + 1]
        candidates = first[first.searchsorted(shared) :].tolist()
        if not candidates:
            continue
        own_set = frozenset[int](own.tolist())
        others = dict.fromkeys(chain.from_iterable(map(index.__getitem__, candidates)))  # in order, without repeats
        is_duplicate[number] = any(_similarity(own_set, unique[other]) >= limit for other in others)
        if not is_duplicate[number]:
            unique[number] = own_set
            for shingle in candidates:
                index[shingle].append(number)
    return is_duplicate


def _similarity(first: frozenset[int], second: frozenset[int]) -> float:
    common = len(first & second)
    return common / (len(first) + len(second) - common)


def _shingles(paragraphs: Sequence[Words]) -> tuple[list[np.ndarray], int]:
    """Return [M] the distinct shingles of each paragraph, and the lowest number of a shingle that occurs repeatedly.

    Shingles are numbered from the rarest, and ascend.
    """
    filled = [[*paragraph, *[""] * (_SHINGLE - len(paragraph))] for paragraph in paragraphs]
    numbers: dict[str, int] = defaultdict(count().__next__)  # a new word takes the next number
    words = np.array([*map(numbers.__getitem__, chain.from_iterable(filled))], np.uint64)
    ends, scale = np.cumsum([*map(len, filled)], dtype=np.int64), np.uint64(len(numbers))
    starts = np.delete(np.arange(len(words)), np.concatenate([ends - 1, ends - 2]))
    # Exact up to two million different words; with more, 64 bits make collisions very unlikely.
    codes = (words[starts] * scale + words[starts + 1]) * scale + words[starts + 2]
    values, positions, counts = np.unique(codes, return_inverse=True, return_counts=True)
    order = np.argsort(counts, kind="stable")
    ranks = np.empty(len(values), np.int64)
    ranks[order] = np.arange(len(values))
    owner = np.searchsorted(ends, starts, "right")
    cells = np.sort(owner * len(values) + ranks[positions])  # np.unique takes five times as long
    owner, own = np.divmod(cells[np.diff(cells, prepend=-1) > 0], len(values))
    parts = np.split(own, np.cumsum(np.bincount(owner, minlength=len(paragraphs)))[:-1])
    return parts, int(np.searchsorted(counts[order], 2))


def mark(paragraph: Words) -> str:
    """Return the hash of a paragraph's words."""
    return hashlib.blake2b(" ".join(paragraph).encode(), digest_size=8).hexdigest()


def paragraph_marks(cluster: Iterable[Words]) -> np.ndarray:
    """Return the distinct marks of a cluster's paragraphs, as numbers."""
    return np.unique(np.array([int(mark(words), 16) for words in cluster], np.uint64))


def boilerplate(clusters: Iterable[np.ndarray], share: float) -> list[str]:
    """Return the marks that are in at least a ``share`` (0 to 1) of the clusters, and in at least five clusters.

    ``clusters`` gives the result of :func:`paragraph_marks` for each. The most frequent come first, at most 2,000.
    """
    parts = list(clusters)
    marks, counts = np.unique(np.concatenate([np.empty(0, np.uint64), *parts]), return_counts=True)
    order = np.argsort(-counts, kind="stable")[:_MAX_MARKS]
    return [f"{marks[at]:016x}" for at in order if counts[at] >= max(_MIN_CLUSTERS, share * len(parts))]
