"""Paragraphs that are there again: near duplicates within a cluster, and boilerplate over many clusters.

M paragraphs of a cluster, each given as its words.
"""

import hashlib
from collections import defaultdict
from collections.abc import Iterable, Sequence
from itertools import chain, count
from math import ceil

import numpy as np

Words = Sequence[str]
_SHINGLE = 3  # words
_FEWEST = 5  # clusters in which boilerplate stands, at least
_MOST = 2000  # paragraphs of boilerplate, the commonest: 40 kB of the recipe


def near_duplicates(paragraphs: Sequence[Words], limit: float) -> list[bool]:
    """[M] whether a paragraph has a Jaccard similarity of ``limit`` (0 to 1) or more, by its shingles of three words,
    to an earlier one that is not itself such a duplicate.

    This is exact, where MinHash estimates: of two sets so similar, put in any one order, the first 1 - limit of each
    have an element in common (Chaudhuri et al., 2006). The rarest shingles come first, so few pairs are compared.
    """
    index = defaultdict[int, list[int]](list)  # by shingle: paragraphs that stay and have it among their first
    staying = dict[int, frozenset[int]]()
    again = [False] * len(paragraphs)
    shingles, shared = _shingles(paragraphs)
    for number, own in enumerate(shingles):
        first = own[: len(own) - ceil(limit * len(own) - 1e-9) + 1]
        told = first[first.searchsorted(shared) :].tolist()
        if not told:
            continue
        mine = frozenset[int](own.tolist())
        others = dict.fromkeys(chain.from_iterable(map(index.__getitem__, told)))
        again[number] = any(_similarity(mine, staying[other]) >= limit for other in others)
        if not again[number]:
            staying[number] = mine
            for shingle in told:
                index[shingle].append(number)
    return again


def _similarity(one: frozenset[int], other: frozenset[int]) -> float:
    common = len(one & other)
    return common / (len(one) + len(other) - common)


def _shingles(paragraphs: Sequence[Words]) -> tuple[list[np.ndarray], int]:
    """[M] the different shingles of each paragraph, ascending, by numbers from the rarest on; and the number from which
    on they are in more than one place."""
    filled = [[*one, *[""] * (_SHINGLE - len(one))] for one in paragraphs]
    numbers: dict[str, int] = defaultdict(count().__next__)  # a new word takes the next number
    words = np.array([*map(numbers.__getitem__, chain.from_iterable(filled))], np.uint64)
    ends, scale = np.cumsum([*map(len, filled)], dtype=np.int64), np.uint64(len(numbers))
    starts = np.delete(np.arange(len(words)), np.concatenate([ends - 1, ends - 2]))
    # Exact up to two million different words; beyond them numbers of 64 bits hardly ever meet.
    found = (words[starts] * scale + words[starts + 1]) * scale + words[starts + 2]
    values, places, counts = np.unique(found, return_inverse=True, return_counts=True)
    order = np.argsort(counts, kind="stable")
    ranks = np.empty(len(values), np.int64)
    ranks[order] = np.arange(len(values))
    owner = np.searchsorted(ends, starts, "right")
    cells = np.sort(owner * len(values) + ranks[places])  # np.unique takes five times as long
    owner, own = np.divmod(cells[np.diff(cells, prepend=-1) > 0], len(values))
    parts = np.split(own, np.cumsum(np.bincount(owner, minlength=len(paragraphs)))[:-1])
    return parts, int(np.searchsorted(counts[order], 2))


def mark(paragraph: Words) -> str:
    """What tells a paragraph from others of other words."""
    return hashlib.blake2b(" ".join(paragraph).encode(), digest_size=8).hexdigest()


def boilerplate(clusters: Iterable[Iterable[Words]], share: float) -> list[str]:
    """The marks of the paragraphs that stand in ``share`` (0 to 1) of the clusters or more, and in five, the commonest
    first: at most 2,000."""
    parts = [np.unique(np.array([int(mark(one), 16) for one in cluster], np.uint64)) for cluster in clusters]
    marks, counts = np.unique(np.concatenate([np.empty(0, np.uint64), *parts]), return_counts=True)
    order = np.argsort(-counts, kind="stable")[:_MOST]
    return [f"{marks[at]:016x}" for at in order if counts[at] >= max(_FEWEST, share * len(parts))]
