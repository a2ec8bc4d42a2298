"""How a summary is worded: what of it is copied, new, or said twice. Words are those of ``tfidf.words``."""

from collections import defaultdict
from collections.abc import Sequence
from itertools import chain

from raysum.text.tfidf import words

_END = ""  # after each text of the source: no word, so that nothing runs over it


def wording(summary: str, texts: Sequence[str]) -> dict[str, float]:
    """What is measured of one summary of ``texts``; without what it is too short for.

    ``novel1`` to ``novel4``: of its n-grams, each as often as it occurs, the share (0 to 100) that stands in none of
    the texts (See et al., 2017, figure 6). ``repeated``: of its trigrams, the share (0 to 100) that stood in it before
    (1 - different / all: seq-rep-3 of Welleck et al., 2020). Of its extractive fragments, which are runs of words that
    stand so in a text, ``coverage``: the share of its words (0 to 100) that is in one, and ``density``: the mean over
    its words of the length of the fragment that the word is in, 0 in none (Grusky et al., 2018, equations 1 and 2).
    """
    said = words(summary)
    source = [*chain.from_iterable([*words(text), _END] for text in texts)]
    found: dict[str, float] = {}
    for size in range(1, min(4, len(said)) + 1):
        known, own = {*_ngrams(source, size)}, _ngrams(said, size)
        found[f"novel{size}"] = 100 * sum(ngram not in known for ngram in own) / len(own)
    if trigrams := _ngrams(said, 3):
        found["repeated"] = 100 * (1 - len({*trigrams}) / len(trigrams))
    if said:
        lengths = fragments(said, source)
        found["coverage"] = 100 * sum(lengths) / len(said)
        found["density"] = sum(length**2 for length in lengths) / len(said)
    return found


def fragments(said: Sequence[str], source: Sequence[str]) -> list[int]:
    """The lengths of the extractive fragments of ``said``, in its order: F(A, S) of Grusky et al. (2018), figure 3.

    Greedy from the first word on: the longest run of the source that begins with the next word. As there, the source is
    gone on with after a run that was found, also where a longer one begins within it.
    """
    places = defaultdict(list)
    for place, word in enumerate(source):
        places[word].append(place)
    lengths, start = [], 0
    while start < len(said):
        longest = after = 0
        for place in places.get(said[start], ()):
            if place >= after:
                length = _run(said, start, source, place)
                longest, after = max(longest, length), place + length
        if longest:
            lengths.append(longest)
        start += max(longest, 1)
    return lengths


def _run(said: Sequence[str], start: int, source: Sequence[str], place: int) -> int:
    length = 1
    while (
        start + length < len(said) and place + length < len(source) and said[start + length] == source[place + length]
    ):
        length += 1
    return length


def _ngrams(said: Sequence[str], size: int) -> list[tuple[str, ...]]:
    return [*zip(*(said[start:] for start in range(size)), strict=False)]
