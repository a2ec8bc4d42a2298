"""Raw text into paragraphs; what is dropped before ranking: clones of the summary and paragraphs of too few words."""

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from itertools import pairwise
from typing import Literal

Normalization = Literal["none", "lower", "lower-split"]
Parting = Literal["blank-lines", "lines"]

_LINE = re.compile(r"\S(?:[^\n\r]*\S)?")
_NEWLINE = re.compile(r"\r\n|[\n\r]")
_BREAK = re.compile(r"\s*[\n\r]\s*")
_SPLIT_OFF = re.compile(r"""([!"%'()*+,\-./:;<=?@[\]^_`{}~])""")  # those split in the published shards


def paragraph_spans(text: str, parted_by: Parting = "lines") -> list[tuple[int, int]]:
    """Character spans of the paragraphs of a raw text: its lines, without blank ones and outer white space.

    ``blank-lines``: what stands between these, in a text that has any between two lines.
    """
    lines = [found.span() for found in _LINE.finditer(text)]
    if parted_by == "lines" or not lines:
        return lines
    breaks = [len(_NEWLINE.findall(text, end, start)) > 1 for (_, end), (start, _) in pairwise(lines)]
    if not any(breaks):
        return lines
    starts = [lines[0], *(line for line, parted in zip(lines[1:], breaks, strict=True) if parted)]
    ends = [*(line for line, parted in zip(lines, breaks, strict=False) if parted), lines[-1]]
    return [(start, end) for (start, _), (_, end) in zip(starts, ends, strict=True)]


def on_one_line(text: str) -> str:
    """The text with one space for each break between its lines."""
    return _BREAK.sub(" ", text) if "\n" in text or "\r" in text else text


def pieces(text: str, most: int) -> Iterator[str]:
    """The text in pieces of ``most`` characters or fewer, cut before a space where there is one."""
    start = 0
    while len(text) - start > most:
        space = text.rfind(" ", start + 1, start + most)
        end = space if space > 0 else start + most
        yield text[start:end]
        start = end
    yield text[start:]


def normalize(text: str, how: Normalization) -> str:
    """The text as the vocabulary expects it.

    ``lower-split`` is the form of the published ranked WikiSum: lower case, spaces around every punctuation mark.
    """
    if how == "none":
        return text
    lowered = text.lower()
    return " ".join(_SPLIT_OFF.split(lowered)) if how == "lower-split" else lowered


def bigrams(text_words: Sequence[str]) -> Counter[tuple[str, str]]:
    return Counter(pairwise(text_words))


def bigram_recall(paragraph: Sequence[str], summary: Counter[tuple[str, str]]) -> float:
    """Share of the summary's bigrams that the paragraph holds, repeats counted as in ROUGE-2 recall; 0 without bigrams.

    The HT paper (section 4) removes "paragraphs in the source documents whose bigram recall against the target summary
    was higher than 0.8": recall has the target's bigrams below the line, as in the ROUGE-2 recall by which the paper
    scores paragraphs. So one that holds nearly the whole summary goes, one that merely shares a sentence with it stays.
    """
    total = summary.total()
    if not total:
        return 0.0
    own = Counter(filter(summary.__contains__, pairwise(paragraph)))
    return sum(min(count, summary[pair]) for pair, count in own.items()) / total


def held_bigrams(wanted: set[tuple[str, str]], paragraphs: Iterable[Sequence[str]]) -> set[tuple[str, str]]:
    """Those of the bigrams ``wanted`` that stand in any of the ``paragraphs``, each given as its words."""
    return set().union(*(wanted.intersection(pairwise(one)) for one in paragraphs))


def is_clone(paragraph: Sequence[str], summary: Counter[tuple[str, str]], limit: float) -> bool:
    """Whether the bigram recall is above ``limit``; a paragraph too short for that is not looked at."""
    return len(paragraph) - 1 > limit * summary.total() > 0 and bigram_recall(paragraph, summary) > limit
