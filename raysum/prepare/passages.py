"""The sentences of a raw cluster, each with its place: what an extractive system may take.

Headings, code, cells of tables and other lines that are no sentences are left out where there is something better.
"""

import re
from bisect import bisect_right
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from statistics import median

from raysum.prepare.cluster import Cluster
from raysum.text.cleaning import paragraph_spans
from raysum.text.sentences import ends_as_sentence, quick_sentence_spans
from raysum.text.tfidf import count_words

_FENCE = re.compile(r"```|~~~")
_MARKER = re.compile(r"(?:[-*+•–>]|\d{1,3}[.)])\s+")  # of a list's item
_OPENING = re.compile(r"""["'“”„«‘‚(\[¿¡「『（*_]*\w""")
_FEWEST = 4  # words of a sentence
_LONGEST_END = 24  # characters in which a line shows how it ends
_MARKUP = "#|=<"


@dataclass(frozen=True)
class Passage:
    """A sentence: the text of its document from ``start`` to ``end``; ``paragraph`` is where it begins."""

    document: int
    paragraph: int
    start: int
    end: int
    quote: str
    is_sentence: bool

    @property
    def text(self) -> str:
        """On one line."""
        return " ".join(self.quote.split())


def passages(cluster: Cluster) -> list[Passage]:
    """The sentences of all documents, in order; all pieces of text that hold a word where none is like a sentence."""
    found = [
        Passage(document, paragraph, start, end, quote := text[start:end], _is_sentence(quote))
        for document, (_, text) in enumerate(cluster.documents)
        for paragraph, start, end in _pieces(text, cluster.cut_into_paragraphs)
    ]
    return [passage for passage in found if passage.is_sentence] or [
        passage for passage in found if re.search(r"[^\W_]", passage.quote)
    ]


def _is_sentence(quote: str) -> bool:
    opens = _OPENING.match(quote) is not None
    return opens and ends_as_sentence(quote) and count_words(quote) >= _FEWEST


def _pieces(text: str, whole: bool) -> Iterator[tuple[int, int, int]]:
    """Paragraph, start and end of each piece of ``text``; a ``whole`` text is one paragraph."""
    lines = paragraph_spans(text)
    starts = [0] if whole else [start for start, _ in paragraph_spans(text, "blank-lines")]
    for start, end in _running(text, _outside_code(text, lines)):
        marker = _MARKER.match(text, start, end)
        start = marker.end() if marker else start
        for first, last in quick_sentence_spans(text[start:end]):
            yield max(bisect_right(starts, start + first) - 1, 0), start + first, start + last


def _outside_code(text: str, lines: list[tuple[int, int]]) -> list[tuple[int, int]]:
    """The lines that stand between no fences, and are none. A fence that nothing closes opens nothing."""
    fences = [number for number, (start, _) in enumerate(lines) if _FENCE.match(text, start)]
    inside = {n for first, last in zip(fences[::2], fences[1::2], strict=False) for n in range(first, last + 1)}
    return [line for number, line in enumerate(lines) if number not in inside]


def _running(text: str, lines: list[tuple[int, int]]) -> Iterator[tuple[int, int]]:
    """Lines, joined to running text where ``text`` is wrapped: where a third of those that another follows break off
    within a sentence. Blank lines, items of lists, headings, and lines that end early part it then."""
    pairs = list(pairwise(lines))
    near = [text.count("\n", end, start) < 2 for (_, end), (start, _) in pairs]
    broken = [c and _breaks_off(text, end, start) for c, ((_, end), (start, _)) in zip(near, pairs, strict=True)]
    wrapped = 3 * sum(broken) > sum(near)
    usual = median([end - start for start, end in lines] or [0])
    joined = [
        wrapped and (off or (close and 2 * (line[1] - line[0]) > usual and not _is_apart(text, line[0], *following)))
        for off, close, (line, following) in zip(broken, near, pairs, strict=True)
    ]
    first = 0
    for number, (_, end) in enumerate(lines):
        if number == len(joined) or not joined[number]:
            yield lines[first][0], end
            first = number + 1


def _breaks_off(text: str, end: int, start: int) -> bool:
    """Whether a line ends within a sentence and the next one starts with a small letter."""
    return text[start].islower() and not ends_as_sentence(text[max(0, end - _LONGEST_END) : end])


def _is_apart(text: str, start: int, next_start: int, next_end: int) -> bool:
    """Whether one of two lines is a heading, markup or a row of a table, or the second opens an item of a list."""
    return text[start] in _MARKUP or text[next_start] in _MARKUP or bool(_MARKER.match(text, next_start, next_end))
