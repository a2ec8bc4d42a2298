"""ROUGE as the package ``rouge-score`` 0.1.2 counts it with its stemmer: the same numbers, some fifty times as fast.

Words are runs of a-z and 0-9 of the lower-cased text, stemmed from four letters on. N-grams count as often as they
occur. L is the longest common subsequence of all words, and Lsum the union of those of each reference line with each
predicted one (Lin, 2004, section 3.2), a word at most as often as both texts have it.

Subsequences are counted with a bit a word (Hyyrö, 2004): for each word of the reference one addition of whole numbers
updates a row of the table, for all predicted lines at once.
"""

from collections.abc import Sequence
from itertools import chain, count
from typing import NamedTuple

import numpy as np

from raysum.metrics.stemming import stem

_PLAIN = bytes(byte if chr(byte) in "abcdefghijklmnopqrstuvwxyz0123456789\n" else 32 for byte in range(256))
_END = "|"  # of a line; no word has it
_MOST = 1_000_000  # words that are known, in some 150 MB
_AT_ONCE = 500  # predictions, which bounds the memory
Line = list[int]  # of words by their numbers


class _Numbers(dict[str, int]):
    """The number of each word's stem, found when it is asked for first; words of three letters or fewer are stems."""

    def __init__(self) -> None:
        self._next = count(1).__next__
        self._stems: dict[str, int] = {}
        super().__init__({_END: 0})

    def __missing__(self, word: str) -> int:
        found = stem(word) if len(word) > 3 else word
        number = self[word] = self._stems.setdefault(found, self._next())
        return number


_numbers = _Numbers()


def _known_numbers() -> _Numbers:
    """Those of the words met so far, unless they are too many to keep."""
    global _numbers
    if len(_numbers) > _MOST:
        _numbers = _Numbers()
    return _numbers


def _plain(text: str) -> str:
    """Its words and line ends, and spaces for all else."""
    return text.lower().encode("ascii", "replace").translate(_PLAIN).decode()


class _Counts(NamedTuple):
    """How often n-grams occur in texts: ``keys``, a text's number times ``scale`` and the n-gram's, ascending."""

    keys: np.ndarray
    counts: np.ndarray
    scale: int

    @classmethod
    def of(cls, texts: np.ndarray, grams: np.ndarray, scale: int) -> "_Counts":
        return cls(*np.unique(texts * scale + grams, return_counts=True), scale)

    def common(self, others: "_Counts", owner: np.ndarray) -> np.ndarray:
        """[R] how many n-grams each of the R ``others`` shares with the text of these that ``owner`` [R] names."""
        other, gram = np.divmod(others.keys, self.scale)
        wanted = owner[other] * self.scale + gram
        place = np.searchsorted(self.keys, wanted)
        there = np.flatnonzero(np.append(self.keys, -1)[place] == wanted)
        shared = np.minimum(self.counts[place[there]], others.counts[there])
        return np.bincount(other[there], shared, minlength=len(owner))


class _Texts:
    """T texts: the ``lines`` of each that have words, all their ``words``, how many each text has (``sizes`` [T])."""

    def __init__(self, texts: Sequence[str], numbers: _Numbers):
        flat = [*map(numbers.__getitem__, _plain("\n".join(texts)).replace("\n", f" {_END} ").split())]
        values = np.array(flat, np.int64)
        ends = np.flatnonzero(values == 0)
        line_text = np.repeat(np.arange(len(texts)), [text.count("\n") + 1 for text in texts])
        self.lines: list[list[Line]] = [[] for _ in texts]
        starts = [0, *(ends + 1).tolist()]
        for text, start, end in zip(line_text.tolist(), starts, [*ends.tolist(), len(flat)], strict=True):
            if start < end:
                self.lines[text].append(flat[start:end])
        self._text = np.delete(line_text[np.cumsum(values == 0)], ends)
        self.words = np.delete(values, ends)
        self.sizes = np.bincount(self._text, minlength=len(texts))

    def counts(self, scale: int) -> tuple[_Counts, _Counts]:
        """Those of words, and of pairs of words, whose numbers are below ``scale``."""
        pairs = np.flatnonzero(self._text[1:] == self._text[:-1])
        grams = self.words[pairs] * scale + self.words[pairs + 1]
        return _Counts.of(self._text, self.words, scale), _Counts.of(self._text[pairs], grams, scale**2)


def scores(predictions: Sequence[str], references: Sequence[Sequence[str]]) -> np.ndarray:
    """[R, 3, 4] F1, precision and recall, from 0 to 1, of ``rouge1``, ``rouge2``, ``rougeL`` and ``rougeLsum``.

    R are all ``references``, those of each prediction one after the other.
    """
    parts = range(0, len(predictions), _AT_ONCE)
    found = [_scores(predictions[at : at + _AT_ONCE], references[at : at + _AT_ONCE]) for at in parts]
    return np.concatenate([np.empty((0, 3, 4)), *found])


def rouge2_recalls(texts: Sequence[str], reference: str) -> np.ndarray:
    """[T] ROUGE-2 recall, from 0 to 1, of the ``reference`` by each of ``texts``, as in :func:`scores`, where these are
    many: the reference is read once, and of the texts nothing is counted but what it has."""
    numbers = _known_numbers()
    lines = _plain("\n".join(text.replace("\n", " ") for text in (reference, *texts)))
    values = np.array([*map(numbers.__getitem__, lines.replace("\n", f" {_END} ").split())], np.int64)
    ends = values == 0
    text = np.cumsum(ends)
    starts = np.flatnonzero(~(ends[:-1] | ends[1:]))
    keys = values[starts] * len(numbers) + values[starts + 1]
    size = np.searchsorted(starts, text.searchsorted(1))  # of the reference
    wanted, counts = np.unique(keys[:size], return_counts=True)
    if not size:
        return np.zeros(len(texts))
    place = wanted.searchsorted(keys[size:]).clip(max=len(wanted) - 1)
    found = np.flatnonzero(wanted[place] == keys[size:])
    cells, often = np.unique((text[starts[size:][found]] - 1) * len(wanted) + place[found], return_counts=True)
    owner, pair = np.divmod(cells, len(wanted))
    return np.bincount(owner, np.minimum(often, counts[pair]), minlength=len(texts)) / size


def _scores(predictions: Sequence[str], references: Sequence[Sequence[str]]) -> np.ndarray:
    owner = np.repeat(np.arange(len(predictions)), [*map(len, references)])
    numbers = _known_numbers()
    found, wanted = _Texts(predictions, numbers), _Texts([*chain.from_iterable(references)], numbers)
    scale = 1 + max(found.words.max(initial=0), wanted.words.max(initial=0))
    (words, pairs), (wanted_words, wanted_pairs) = found.counts(scale), wanted.counts(scale)
    sequences = [
        _subsequences(found.lines[own], lines) for own, lines in zip(owner.tolist(), wanted.lines, strict=True)
    ]
    longest = np.array([length for length, _ in sequences], np.int64)
    of, union = _flat([some for _, some in sequences])
    common = [
        words.common(wanted_words, owner),
        pairs.common(wanted_pairs, owner),
        longest,
        words.common(_Counts.of(of, union, scale), owner),
    ]
    less = np.array([0, 1, 0, 0])
    return _ratios(np.stack(common, 1), found.sizes[owner][:, None] - less, wanted.sizes[:, None] - less)


def _flat(rows: Sequence[Sequence[int]]) -> tuple[np.ndarray, np.ndarray]:
    """Each value's row, and the values."""
    sizes = [*map(len, rows)]
    return np.repeat(np.arange(len(rows)), sizes), np.fromiter(chain.from_iterable(rows), np.int64, sum(sizes))


def _ratios(common: np.ndarray, found: np.ndarray, wanted: np.ndarray) -> np.ndarray:
    """[R, 4] each -> [R, 3, 4]."""
    precision, recall = common / np.maximum(found, 1), common / np.maximum(wanted, 1)
    f1 = 2 * precision * recall / np.where(common, precision + recall, 1)
    return np.stack([f1, precision, recall], 1)


def _subsequences(found: Sequence[Line], wanted: Sequence[Line]) -> tuple[int, Line]:
    """How many words the longest common subsequence has, and the union of those of the lines.

    A bit of ``row`` is 0 where the subsequence that ends there is longer than that which ends before it. The lower bits
    are the predicted words by lines, between which one bit is empty: what carries out of a line lands there, and is
    cleared. The upper bits are the same words as one line, so that both tables are updated by the same additions.
    """
    known = {*chain.from_iterable(wanted)}
    size = sum(map(len, found)) + len(found)
    both = 1 | 1 << size
    places: dict[int, int] = {}  # of each word that both texts have
    lasts = lines = at = 0
    for line in found:
        for place, word in enumerate(line, at):
            if word in known:
                places[word] = places.get(word, 0) | both << place
        lines |= (1 << len(line)) - 1 << at
        at += len(line) + 1
        lasts |= 1 << at - 2
    if not places:
        return 0, []
    whole = (1 << size) - 1 << size
    every, row = lines | whole, whole
    union: Line = []
    for line in wanted:
        row, steps = row | lines, []
        for word in line:
            if match := places.get(word):
                carried = row & match
                total = row + carried
                steps.append((word, match, match | (row ^ carried ^ total) >> 1))
                row = (total | row - carried) & every
        union += _backwards(steps, lasts, lines)
    return (row & whole ^ whole).bit_count(), union


def _backwards(steps: Sequence[tuple[int, int, int]], lasts: int, lines: int) -> Line:
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
