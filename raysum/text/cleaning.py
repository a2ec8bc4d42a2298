"""Split raw text into paragraphs, normalize it, and find clones of the summary by bigrams."""

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from itertools import pairwise
from typing import Literal

Normalization = Literal["none", "lower", "lower-split"]
ParagraphSeparator = Literal["blank-lines", "lines"]

_LINE = re.compile(r"\S(?:[^\n\r]*\S)?")
_NEWLINE = re.compile(r"\r\n|[\n\r]")
_BREAK = re.compile(r"\s*[\n\r]\s*")
_SPLIT_OFF = re.compile(r"""([!"%'()*+,\-./:;<=?@[\]^_`{}~])""")  # as in the published shards


def paragraph_spans(text: str, paragraph_separator: ParagraphSeparator = "lines") -> list[tuple[int, int]]:
    """Return the character spans of the paragraphs of a raw text: its lines, without blank lines and outer white space.

    ``blank-lines`` joins the lines between blank lines, if the text has any blank line.
    """
    lines = [match.span() for match in _LINE.finditer(text)]
    if paragraph_separator == "lines" or not lines:
        return lines
    breaks = [len(_NEWLINE.findall(text, end, start)) > 1 for (_, end), (start, _) in pairwise(lines)]
    if not any(breaks):
        return lines
    starts = [lines[0], *(line for line, parted in zip(lines[1:], breaks, strict=True) if parted)]
    ends = [*(line for line, parted in zip(lines, breaks, strict=False) if parted), lines[-1]]
    return [(start, end) for (start, _), (_, end) in zip(starts, ends, strict=True)]


def on_one_line(text: str) -> str:
    """Return the text with one space for each line break."""
    return _BREAK.sub(" ", text) if "\n" in text or "\r" in text else text


def pieces(text: str, most: int) -> Iterator[str]:
    """Yield the text in pieces of at most ``most`` characters, cut before a space if possible."""
    start = 0
    while len(text) - start > most:
        space = text.rfind(" ", start + 1, start + most)
        end = space if space > 0 else start + most
        yield text[start:end]
        start = end
    yield text[start:]


def normalize(text: str, how: Normalization) -> str:
    """Return the text as the vocabulary expects it.

    ``lower-split`` is the form of the published ranked WikiSum: lower case, with spaces around every punctuation mark.
    """
    if how == "none":
        return text
    lowered = text.lower()
    return " ".join(_SPLIT_OFF.split(lowered)) if how == "lower-split" else lowered


def bigrams(text_words: Sequence[str]) -> Counter[tuple[str, str]]:
    return Counter(pairwise(text_words))


def bigram_recall(paragraph: Sequence[str], summary: Counter[tuple[str, str]]) -> float:
    """Return the share of the summary's bigrams in the paragraph, with repetitions as in ROUGE-2 recall.

    The HT paper (section 4) removes paragraphs with a "bigram recall against the target summary" above 0.8. The
    denominator is the number of the summary's bigrams. So a paragraph with nearly the whole summary is removed, and a
    paragraph that shares one sentence with it stays. A summary without bigrams gives 0.
    """
    total = summary.total()
    if not total:
        return 0.0
    own = Counter(filter(summary.__contains__, pairwise(paragraph)))
    return sum(min(count, summary[pair]) for pair, count in own.items()) / total


def covered_bigrams(bigrams: set[tuple[str, str]], paragraphs: Iterable[Sequence[str]]) -> set[tuple[str, str]]:
    """Return the ``bigrams`` that occur in any of the ``paragraphs``, which are lists of words."""
    return set().union(*(bigrams.intersection(pairwise(paragraph)) for paragraph in paragraphs))


def is_clone(paragraph: Sequence[str], summary: Counter[tuple[str, str]], limit: float) -> bool:
    """Return whether the bigram recall is above ``limit``; paragraphs that are too short for that are not compared."""
    return len(paragraph) - 1 > limit * summary.total() > 0 and bigram_recall(paragraph, summary) > limit
