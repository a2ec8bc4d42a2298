"""The wording of a summary: copied, new and repeated parts. Words are those of ``tfidf.words``."""

from collections import defaultdict
from collections.abc import Sequence
from itertools import chain

from raysum.text.tfidf import words

_END = ""  # separates the texts of the source: it equals no word


def wording(summary: str, texts: Sequence[str]) -> dict[str, float]:
    """Return the measures of one summary of ``texts``, without those that need a longer summary.

    ``novel1`` to ``novel4``: the share (0 to 100) of its n-grams, with repetitions, that occur in none of the texts
    (See et al., 2017, figure 6). ``repeated``: the share (0 to 100) of its trigrams that repeat an earlier one
    (1 - distinct / all: seq-rep-3 of Welleck et al., 2020). Extractive fragments are runs of words that also occur in a
    text: ``coverage`` is the share (0 to 100) of the words in a fragment, ``density`` the mean length of each word's
    fragment, or 0 without one (Grusky et al., 2018, equations 1 and 2).
    """
    summary_words = words(summary)
    source = [*chain.from_iterable([*words(text), _END] for text in texts)]
    measures: dict[str, float] = {}
    for size in range(1, min(4, len(summary_words)) + 1):
        known, own = {*_ngrams(source, size)}, _ngrams(summary_words, size)
        measures[f"novel{size}"] = 100 * sum(ngram not in known for ngram in own) / len(own)
    if trigrams := _ngrams(summary_words, 3):
        measures["repeated"] = 100 * (1 - len({*trigrams}) / len(trigrams))
    if summary_words:
        lengths = fragments(summary_words, source)
        measures["coverage"] = 100 * sum(lengths) / len(summary_words)
        measures["density"] = sum(length**2 for length in lengths) / len(summary_words)
    return measures


def fragments(summary_words: Sequence[str], source: Sequence[str]) -> list[int]:
    """Return the lengths of the extractive fragments of a summary in order: F(A, S) of Grusky et al. (2018), figure 3.

    A greedy search takes the longest run of the source that begins with the next word. As in the paper, it continues
    in the source after each run, even if a longer run begins within it.
    """
    positions = defaultdict(list)
    for position, word in enumerate(source):
        positions[word].append(position)
    lengths, start = [], 0
    while start < len(summary_words):
        longest = after = 0
        for position in positions.get(summary_words[start], ()):
            if position >= after:
                length = _run(summary_words, start, source, position)
                longest, after = max(longest, length), position + length
        if longest:
            lengths.append(longest)
        start += max(longest, 1)
    return lengths


def _run(summary_words: Sequence[str], start: int, source: Sequence[str], position: int) -> int:
    most = min(len(summary_words) - start, len(source) - position)
    ends = (length for length in range(1, most) if summary_words[start + length] != source[position + length])
    return next(ends, most)


def _ngrams(summary_words: Sequence[str], size: int) -> list[tuple[str, ...]]:
    return [*zip(*(summary_words[start:] for start in range(size)), strict=False)]
