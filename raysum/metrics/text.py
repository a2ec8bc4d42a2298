"""Measures of a summary: length, novelty, repetition, copying. Words are lower-cased runs of letters and digits."""

import re
from collections import defaultdict
from itertools import islice, takewhile


def length_ratio(summary: str, reference: str) -> float:
    """Words of the summary for each word of the reference; 0 where the reference has none."""
    return _share(len(_words(summary)), len(_words(reference)))


def novel_ngrams(summary: str, source: str, n: int = 2) -> float:
    """Share of the summary's n-grams that do not occur in the source."""
    known = set(_ngrams(source, n))
    ngrams = _ngrams(summary, n)
    return _share(sum(ngram not in known for ngram in ngrams), len(ngrams))


def repetition(summary: str, n: int = 3) -> float:
    """Share of the summary's n-grams that already occurred in it."""
    ngrams = _ngrams(summary, n)
    return _share(len(ngrams) - len(set(ngrams)), len(ngrams))


def copy_density(summary: str, source: str) -> float:
    """Average length of the copied fragment to which a word of the summary belongs, words outside fragments giving 0.

    The density of Grusky et al. (2018, Newsroom): squared lengths of the fragments, summed, by the words of the
    summary. Fragments are taken greedily from the left, each the longest run of words found in the source.
    """
    words, given = _words(summary), _words(source)
    places = defaultdict(list)
    for place, word in enumerate(given):
        places[word].append(place)
    position, squares = 0, 0
    while position < len(words):
        fragments = (_common(words, position, given, place) for place in places[words[position]])
        longest = max(fragments, default=0)
        squares += longest**2
        position += max(longest, 1)
    return _share(squares, len(words))


def _common(first: list[str], start: int, second: list[str], place: int) -> int:
    """The number of equal words from ``start`` in the first and from ``place`` in the second."""
    pairs = zip(islice(first, start, None), islice(second, place, None), strict=False)
    return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], pairs))


def _words(text: str) -> list[str]:
    return re.findall(r"[^\W_]+", text.lower())


def _ngrams(text: str, n: int) -> list[tuple[str, ...]]:
    words = _words(text)
    return list(zip(*(words[start:] for start in range(n)), strict=False))


def _share(part: float, whole: float) -> float:
    return part / whole if whole else 0.0
