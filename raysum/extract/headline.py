"""The headline of a summary: a heading of its documents, or a short or shortened sentence of it."""

import re
from collections.abc import Iterator

import numpy as np

from raysum.decode.summary import Citation, Headline, Summary
from raysum.extract.source_texts import SourceTexts
from raysum.prepare.cluster import Cluster
from raysum.text.cleaning import paragraph_spans
from raysum.text.sentences import ends_as_sentence
from raysum.text.tfidf import count_words

_FEWEST, _MOST = 3, 14  # words
_HEADING = 1.2  # factor of the score of headings, which were written as headlines
_MARKS = "#=* \t"
_BRACKETS = re.compile(r"\s*\([^()]*\)")
# Where an English clause ends that can stand alone, and what must not be left at the end.
_CLAUSE = re.compile(
    r",? (?:which|who|whom|where|when|after|because|although|while|whereas|but|so that|said|says|according to"
    r"|as well as|and (?:it|he|she|they|we|the)|following|including|despite)\b|, \w+ing\b|\s[–—]\s|[;:]\s"
)
_OPEN_END = re.compile(r"\b(?:a|an|the|of|in|on|at|to|for|by|with|from|and|or|is|was|are|were|be|has|have|that|not)$")


def headline(summary: Summary, cluster: Cluster, source: SourceTexts) -> Headline | None:
    """Return the heading or short sentence that is nearest to the whole summary, with its citation; None without any.

    Nearness is the cosine of two profiles, each the tf-idf cosines of a text with all sentences of the ``cluster``.
    """
    whole = source.profile(summary.summary)
    best, found = 0.0, None
    for candidate, factor in (*_headings(cluster), *_sentences(summary)):
        own = source.profile(candidate.text)
        score = factor * float(own @ whole) / max(float(np.linalg.norm(own)), 1e-9)
        if score > best:
            best, found = score, candidate
    return found


def _headings(cluster: Cluster) -> Iterator[tuple[Headline, float]]:
    """Yield the first line of each document that is a heading: three to 14 words without a mark at their end."""
    for number, (name, text) in enumerate(cluster.documents):
        lines = paragraph_spans(text)
        if len(lines) < 2:
            continue
        start, end = lines[0]
        line = text[start:end]
        plain = line.strip(_MARKS)
        if _FEWEST <= count_words(plain) <= _MOST and not (ends_as_sentence(line) and line[-1] not in "?!"):
            cited = Citation(document=number, paragraph=0, weight=1, source=name, quote=line, start=start, end=end)
            yield Headline(text=plain, citations=[cited]), _HEADING


def _sentences(summary: Summary) -> Iterator[tuple[Headline, float]]:
    for sentence in summary.sentences:
        if text := _shortened(sentence.text):
            yield Headline(text=text, citations=sentence.citations), 1.0


def _shortened(text: str) -> str:
    """Return a sentence without full stop and brackets, cut after a clause if it is too long; "" if it cannot be."""
    plain = _BRACKETS.sub("", text).rstrip(" .。")
    if count_words(plain) > _MOST:
        ends = [found.start() for found in _CLAUSE.finditer(plain)]
        fitting = [plain[:end] for end in ends if _FEWEST < count_words(plain[:end]) <= _MOST]
        plain = next((part for part in reversed(fitting) if not _OPEN_END.search(part)), "")
    return plain if count_words(plain) >= _FEWEST else ""
