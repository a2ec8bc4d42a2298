"""ROUGE as the package ``rouge-score`` 0.1.2 counts it with its stemmer: the same numbers, some fifty times as fast.

Words are runs of a-z and 0-9 of the lower-cased text, stemmed from four letters on. N-grams count as often as they
occur. L is the longest common subsequence of all words, and Lsum the union of those of each reference line with each
predicted one (Lin, 2004, section 3.2), a word at most as often as both texts have it.

Subsequences are counted with a bit a word (Hyyrö, 2004): for each word of the reference one addition of whole numbers
updates a row of the table, for all predicted lines at once.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import chain
from typing import TypeVar

from raysum.metrics.stemming import Stems

_SPACED = bytes(byte if chr(byte) in "abcdefghijklmnopqrstuvwxyz0123456789\n" else 32 for byte in range(256))
_STEMS = Stems()
_Item = TypeVar("_Item")


class Text:
    """The words of each line of ``text`` that is not empty, all ``words``, and how often each and each pair occurs."""

    def __init__(self, text: str):
        plain = text.lower().encode("ascii", "replace").translate(_SPACED).decode()
        self.lines = [[*map(_STEMS.__getitem__, line.split())] for line in plain.split("\n") if line]
        self.words = [*chain.from_iterable(self.lines)]
        self.counts = Counter(self.words)
        self.pairs = Counter(zip(self.words, self.words[1:], strict=False))


def scores(prediction: Text, reference: Text) -> dict[str, tuple[float, float, float]]:
    """F1, precision and recall, from 0 to 1, of ``rouge1``, ``rouge2``, ``rougeL`` and ``rougeLsum``."""
    found, wanted = len(prediction.words), len(reference.words)
    sequence, union = _subsequences(prediction, reference)
    return {
        "rouge1": _ratios(_common(prediction.counts, reference.counts), found, wanted),
        "rouge2": _ratios(_common(prediction.pairs, reference.pairs), found - 1, wanted - 1),
        "rougeL": _ratios(sequence, found, wanted),
        "rougeLsum": _ratios(union, found, wanted),
    }


def _ratios(common: int, found: int, wanted: int) -> tuple[float, float, float]:
    precision, recall = common / max(found, 1), common / max(wanted, 1)
    return 2 * precision * recall / (precision + recall) if common else 0.0, precision, recall


def _common(one: Mapping[_Item, int], other: Mapping[_Item, int]) -> int:
    return sum([min(one[item], other[item]) for item in one.keys() & other.keys()])


def _subsequences(prediction: Text, reference: Text) -> tuple[int, int]:
    """How many words the longest common subsequence has, and how many the union of those of the lines.

    A bit of ``row`` is 0 where the subsequence that ends there is longer than that which ends before it. The lower bits
    are the predicted words by lines, between which one bit is empty: what carries out of a line lands there, and is
    cleared. The upper bits are the same words as one line, so that both tables are updated by the same additions.
    """
    places: dict[str, int] = {}  # of each word that both texts have
    lasts, lines, size, wanted = 0, 0, 0, reference.counts
    for line in prediction.lines:
        for place, word in enumerate(line, size):
            if word in wanted:
                places[word] = places.get(word, 0) | 1 << place
        lines |= (1 << len(line)) - 1 << size
        lasts |= 1 << size + len(line) >> 1 & lines
        size += len(line) + 1
    places = {word: bits | bits << size for word, bits in places.items()}
    whole = (1 << size) - 1 << size
    every, row = lines | whole, whole
    several = len(prediction.lines) > 1 or len(reference.lines) > 1
    union: list[str] = []
    for line in reference.lines:
        row, steps = row | lines, []
        for word in line:
            if word in places:
                match = places[word]
                carried = row & match
                total = row + carried
                steps.append((word, match, match | (row ^ carried ^ total) >> 1))
                row = (total | row - carried) & every
        if several:
            union += _backwards(steps, lasts, lines)
    length = (row & whole ^ whole).bit_count()
    return length, _common(prediction.counts, Counter(union)) if several else length


def _backwards(steps: Sequence[tuple[str, int, int]], lasts: int, lines: int) -> list[str]:
    """The words of a reference line that are in its subsequence with any predicted line.

    ``steps``: each word, the bits where it stands, and those where it stands or is in a longer subsequence than any
    without it. ``lasts``: the last bit of each of the predicted ``lines``.
    Of several longest subsequences that which rouge-score reads out from the end: it takes the last word of either
    line where they are the same, and else passes over that of the reference, if as long a one is left without it.
    """
    found = []
    for word, match, longer in reversed(steps):
        if taken := lasts & longer:
            found.append(word)
            lasts ^= taken
            while taken:
                last = taken & -taken
                taken ^= last
                lasts |= 1 << (match & (last | last - 1)).bit_length() >> 2
            lasts &= lines
    return found
