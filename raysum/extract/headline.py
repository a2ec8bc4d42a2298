"""The headline of a summary: a heading of its documents, or a short or shortened sentence of it."""

import re
from collections.abc import Iterator

from raysum.decode.summary import Citation, Headline, Summary
from raysum.extract.source_texts import SourceTexts
from raysum.prepare.cluster import Cluster
from raysum.text.cleaning import paragraph_spans
from raysum.text.readability import continues
from raysum.text.sentences import ends_as_sentence
from raysum.text.tfidf import count_words

_FEWEST, _MOST = 3, 14  # words
_HEADING, _LEAD = 1.5, 1.3  # factors of the scores of headings and of the first sentences of documents
_MARKS = "#=* \t"
_BRACKETS = re.compile(r"\s*\([^()]*\)")
# Where an English clause ends that can stand alone, a verb that it needs, what must not be left at its end, and
# openings of clauses that cannot stand alone.
_CLAUSE = re.compile(
    r",? (?:which|who|whom|where|when|after|because|although|while|whereas|according to)\b"
    r"|, (?:but|so that|as well as|and (?:it|he|she|they|we)|following|including|despite|\w+ing)\b|, (?=\w[^,]* said\b)"
    r"|\s[–—-]+\s|[;:]\s"
)
_VERB = re.compile(
    r"\b(?:is|are|was|were|has|have|had|will|would|can|could|may|must|should|\w{2,}ed|won|made|took|got|went|came|gave"
    r"|found|left|lost|met|held|kept|led|began|rose|fell|sent|built|bought|sold|paid|hit|grew|knew|became|brought|broke"
    r"|chose|drew|drove|fought|fled|hid|put|set|cut|shot|spoke|spent|stood|struck|taught|thought|threw|told|wrote)\b"
)
_OPEN_END = re.compile(
    r"\b(?:a|an|the|of|in|on|at|to|about|for|by|with|from|and|or|is|was|are|were|be|has|have|that|this|it|them|not|their|his)$"
)
_HALF = re.compile("(?:as|while|when|after|before|if|although|though|because|since|with|despite)\\b", re.I)
_FULL = 10  # words from which a headline is not too short


def headline(summary: Summary, cluster: Cluster, source: SourceTexts) -> Headline | None:
    """Return the heading or short sentence that is nearest to the whole summary, with its citation; None without any.

    Candidates are the headings of documents, their first sentences and those of the summary. Nearness is
    the cosine of two profiles, each the tf-idf cosines of a text with all sentences of the ``cluster``.
    """
    whole = source.profile(summary.summary)
    best, found = 0.0, None
    for candidate, factor in (*_headings(cluster), *_sentences(summary, source), *_leads(cluster, source)):
        score = factor * float(source.profile(candidate.text) @ whole)
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


def _sentences(summary: Summary, source: SourceTexts) -> Iterator[tuple[Headline, float]]:
    for sentence in summary.sentences:
        document = sentence.citations[0].document if sentence.citations else None
        if text := _shortened(sentence.text, source.language_of(document)):
            yield Headline(text=text, citations=sentence.citations), _fullness(text)


def _leads(cluster: Cluster, source: SourceTexts) -> Iterator[tuple[Headline, float]]:
    """Yield the first sentence of each document."""
    starts = {document: number for number, document in reversed([*enumerate(source.documents)])}
    for document, number in starts.items():
        text = _shortened(source.printed([number])[0], source.language_of(document))
        if text and source.group(number, []) == [number]:
            yield Headline(text=text, citations=[Citation.of(source.row, number, 1.0)]), _LEAD * _fullness(text)


def _fullness(text: str) -> float:
    """Return a factor below 1 for sentences that are too short to say much."""
    return min(count_words(text) / _FULL, 1) ** 0.5


def _shortened(text: str, language: str) -> str:
    """Return a sentence without full stop and brackets, cut after a clause if it is too long; "" if it cannot be."""
    plain = _BRACKETS.sub("", text).rstrip(" .。")
    if count_words(plain) > _MOST:
        ends = [found.start() for found in _CLAUSE.finditer(plain)]
        fitting = [plain[:end] for end in ends if _FEWEST < count_words(plain[:end]) <= _MOST]
        plain = next((part for part in reversed(fitting) if _VERB.search(part) and not _HALF.match(part)), "")
    is_whole = count_words(plain) >= _FEWEST and not _OPEN_END.search(plain) and "however" not in plain.lower()
    return plain if is_whole and not continues(plain, language) else ""
