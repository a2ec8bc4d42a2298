"""Long paragraphs in pieces of as many tokens as a recipe keeps of a paragraph."""

import re
from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from math import ceil

from raysum.text.sentences import quick_sentence_spans

Unit = tuple[int, int, int]  # start, end, tokens
Count = Callable[[list[str]], list[int]]

_WORD = re.compile(r"\S+")
_UNSPACED_END = re.compile("[。！？｡]")  # of sentences without a space behind
_AT_ONCE = 64  # texts that are counted at once
_LONG, _SLICE = 64, 8  # characters for each token: what is longer is not counted whole; what a huge word is sliced into


def split_spans(text: str, most: int, count: Count) -> list[tuple[int, int]]:
    """Character spans of ``text`` in pieces of at most ``most`` tokens, about equally long; nothing but space is lost.

    Pieces end where sentences end; a sentence that is too long by itself is split between words, such a word anywhere.
    ``count`` gives the tokens of texts, which must be those of their words together.
    """
    units: list[Unit] = []
    for start, end, tokens in _counted(text, quick_sentence_spans(text), most, count):
        units += [(start, end, tokens)] if tokens <= most else _merged(_words(text, start, end, most, count), most)
    total = sum(tokens for _, _, tokens in units)
    pieces = ceil(total / most) or 1
    return [(start, end) for start, end, _ in _merged(units, most, total / pieces)]


def cut_at_spaces(text: str) -> bool:
    """Whether pieces of ``text`` can begin behind nothing but white space, unless a word of it is too long."""
    return text.isascii() or not _UNSPACED_END.search(text)


def _words(text: str, start: int, end: int, most: int, count: Count) -> Iterator[Unit]:
    spans = (found.span() for found in _WORD.finditer(text, start, end))
    for first, last, tokens in _counted(text, spans, most, count):
        if tokens <= most:
            yield first, last, tokens
        else:
            for place in range(first, last, _SLICE * most):
                yield from _halves(text, place, min(place + _SLICE * most, last), most, count)


def _halves(text: str, start: int, end: int, most: int, count: Count) -> Iterator[Unit]:
    (tokens,) = count([text[start:end]])
    if tokens <= most or end - start == 1:
        yield start, end, tokens
    else:
        middle = (start + end) // 2
        yield from _halves(text, start, middle, most, count)
        yield from _halves(text, middle, end, most, count)


def _counted(text: str, spans: Iterable[tuple[int, int]], most: int, count: Count) -> Iterator[Unit]:
    """Units of ``spans``, a few held at once; of those that are surely too long the tokens are not counted."""
    left, longest = iter(spans), _LONG * most
    while some := list(islice(left, _AT_ONCE)):
        counts = count([text[start:end] if end - start <= longest else "" for start, end in some])
        for (start, end), tokens in zip(some, counts, strict=True):
            yield start, end, tokens if end - start <= longest else most + 1


def _merged(units: Iterable[Unit], most: int, enough: float | None = None) -> list[Unit]:
    """Neighbours joined to units of at most ``most`` tokens, which take no more once they have ``enough``."""
    found: list[Unit] = []
    first, last, held, full = 0, 0, most, enough or most
    for start, end, tokens in units:
        if held + tokens <= most and held < full:
            held += tokens
        else:
            found.append((first, last, held))
            first, held = start, tokens
        last = end
    return [*found[1:], (first, last, held)] if found else []
