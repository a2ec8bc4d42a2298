"""The sentences of a raw cluster and their positions, from which extractive systems select.

Headings, code, table cells and other lines are skipped if the cluster has any sentence.
"""

import re
from bisect import bisect_right
from collections.abc import Iterator
from itertools import pairwise
from statistics import median
from typing import NamedTuple

from raysum.prepare.cluster import Cluster
from raysum.text.cleaning import paragraph_spans
from raysum.text.sentences import ends_as_sentence, quick_sentence_spans
from raysum.text.tfidf import count_words

MAX_SENTENCES = 2000  # of a cluster in a row of kind extraction
_FENCE = re.compile(r"```|~~~")
_MARKER = re.compile(r"(?:[-*+•–>]|\d{1,3}[.)])\s+")  # of a list's item
_OPENING = re.compile(r"""["'“”„«‘‚(\[¿¡「『（*_]*#?\w""")
_MIN_WORDS = 4  # of a sentence
_LINE_END = 24  # characters that show whether a line ends a sentence
_MARKUP = "#|=<"


class Passage(NamedTuple):
    """A sentence: the text of its document from ``start`` to ``end``, which begins in ``paragraph``."""

    document: int
    paragraph: int
    start: int
    end: int
    quote: str


def passages(cluster: Cluster) -> list[Passage]:
    """Return the sentences of all documents in order; if there is none, all pieces of text with a word."""
    pieces = [
        Passage(document, paragraph, start, end, text[start:end])
        for document, (_, text) in enumerate(cluster.documents)
        for paragraph, start, end in _pieces(text, cluster.cut_into_paragraphs)
    ]
    return [piece for piece in pieces if _is_sentence(piece.quote)] or [
        piece for piece in pieces if re.search(r"[^\W_]", piece.quote)
    ]


def _is_sentence(quote: str) -> bool:
    return bool(_OPENING.match(quote)) and ends_as_sentence(quote) and count_words(quote) >= _MIN_WORDS


def _pieces(text: str, whole: bool) -> Iterator[tuple[int, int, int]]:
    """Yield paragraph, start and end of each piece of ``text``; a ``whole`` text is one paragraph."""
    lines = paragraph_spans(text)
    starts = [0] if whole else [start for start, _ in paragraph_spans(text, "blank-lines")]
    for start, end in _join_lines(text, _outside_code(text, lines)):
        marker = _MARKER.match(text, start, end)
        start = marker.end() if marker else start
        for first, last in quick_sentence_spans(text[start:end]):
            yield max(bisect_right(starts, start + first) - 1, 0), start + first, start + last


def _outside_code(text: str, lines: list[tuple[int, int]]) -> list[tuple[int, int]]:
    """Return the lines outside of fenced code. A fence without a closing fence is ignored."""
    fences = [number for number, (start, _) in enumerate(lines) if _FENCE.match(text, start)]
    inside = {n for first, last in zip(fences[::2], fences[1::2], strict=False) for n in range(first, last + 1)}
    return [line for number, line in enumerate(lines) if number not in inside]


def _join_lines(text: str, lines: list[tuple[int, int]]) -> Iterator[tuple[int, int]]:
    """Yield lines, joined if ``text`` is wrapped: if a third of the lines with a successor break within a sentence.

    Blank lines, list items, headings and short lines are never joined to the next.
    """
    pairs = list(pairwise(lines))
    adjacent = [text.count("\n", end, start) < 2 for (_, end), (start, _) in pairs]
    broken = [
        is_next and _breaks_off(text, end, start)
        for is_next, ((_, end), (start, _)) in zip(adjacent, pairs, strict=True)
    ]
    if 3 * sum(broken) <= sum(adjacent):
        yield from lines
        return
    usual, first = median(end - start for start, end in lines), lines[0][0]
    for ((start, end), following), is_next, is_broken in zip(pairs, adjacent, broken, strict=True):
        goes_on = is_next and 2 * (end - start) > usual and not _is_apart(text, start, *following)
        if not (is_broken or goes_on):
            yield first, end
            first = following[0]
    yield first, lines[-1][1]


def _breaks_off(text: str, end: int, start: int) -> bool:
    """Return whether a line ends within a sentence and the next one starts in lower case."""
    return text[start].islower() and not ends_as_sentence(text[max(0, end - _LINE_END) : end])


def _is_apart(text: str, start: int, next_start: int, next_end: int) -> bool:
    """Return whether one of two lines is a heading, markup or a table row, or the second is a list item."""
    return text[start] in _MARKUP or text[next_start] in _MARKUP or bool(_MARKER.match(text, next_start, next_end))
