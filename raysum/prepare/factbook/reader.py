"""Reads the factbook's facts back out of any text made of its words: summaries, sources, mixtures of both.

Text is normalised first (lower case, punctuation dropped, sentences end at a period), so decoded pieces read like the
original. A statement is (subject, attribute, value), all lower case.
"""

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any, NamedTuple

from raysum.data.clean import words
from raysum.prepare.factbook.phrases import kinds


class Statement(NamedTuple):
    subject: str
    attribute: str
    value: str
    sentence: int  # index of the sentence that makes it


@dataclass(frozen=True)
class FactScore:
    """Facts of one summary: stated and true, stated and not true of the subject, and how many there were to state."""

    right: int
    wrong: int
    total: int


@dataclass(frozen=True)
class CitationScore:
    """Citations of the sentences of one summary that state a right fact.

    ``cited`` paragraphs, of which ``correct`` state a right fact of the sentence; ``stating`` paragraphs state one,
    cited or not. Precision is correct / cited and recall correct / stating, best of sums over a corpus.
    """

    correct: int
    cited: int
    stating: int


def read_facts(text: str, title: str) -> list[Statement]:
    """All statements of ``text`` in order, of any subject; a pronoun before any subject means ``title``."""
    return list(_read([sentence for sentence in text.split(".") if sentence.strip()], title))


def score_facts(summary: str, facts: Sequence[dict[str, Any]], title: str) -> FactScore:
    """Distinct statements of ``summary`` against an example's ``facts`` (see ``generate``)."""
    stated = {statement[:3] for statement in read_facts(summary, title)}
    true = {_true(fact, title) for fact in facts}
    return FactScore(right=len(stated & true), wrong=len(stated - true), total=len(true))


def facts_f1(scores: Iterable[FactScore]) -> dict[str, float]:
    """Of a corpus, from summed counts: ``facts_right, facts_wrong, facts_total``, precision, recall, F1 (0 to 1)."""
    scores = list(scores)
    right, wrong, total = (sum(getattr(score, name) for score in scores) for name in ("right", "wrong", "total"))
    return {
        "facts_right": right,
        "facts_wrong": wrong,
        "facts_total": total,
        "facts_precision": right / max(right + wrong, 1),
        "facts_recall": right / max(total, 1),
        "facts_f1": 2 * right / max(right + wrong + total, 1),
    }


def score_citations(
    sentences: Sequence[tuple[str, Sequence[tuple[int, int, float]]]], facts: Sequence[dict[str, Any]], title: str
) -> CitationScore:
    """Citations against the paragraphs that truly state what a sentence says.

    ``sentences`` of a summary are (text, citations); a citation is (document, paragraph within the document, weight).
    However small its weight, it counts as one. A sentence without a right fact has no true citation and counts nowhere:
    facts are scored by ``score_facts``.
    """
    paragraphs = {_true(fact, title): {tuple(place) for place in fact["paragraphs"]} for fact in facts}
    stating: list[set[tuple[int, ...]]] = [set() for _ in sentences]
    for statement in _read([text for text, _ in sentences], title):
        stating[statement.sentence] |= paragraphs.get(statement[:3], set())
    cited = [{(document, paragraph) for document, paragraph, _ in citations} for _, citations in sentences]
    counted = [(true, given) for true, given in zip(stating, cited, strict=True) if true]
    return CitationScore(
        correct=sum(len(true & given) for true, given in counted),
        cited=sum(len(given) for _, given in counted),
        stating=sum(len(true) for true, _ in counted),
    )


def _true(fact: dict[str, Any], title: str) -> tuple[str, str, str]:
    return _plain(title), fact["attribute"], _plain(fact["value"])


def _plain(text: str) -> str:
    return " ".join(words(text))


def _read(sentences: Sequence[str], title: str) -> Iterator[Statement]:
    """Source phrases name their subject; a lead's clauses belong to the subject of the last opening before them."""
    patterns = _patterns()
    subject = _plain(title)
    for index, text in enumerate(sentences):
        sentence = _plain(text)
        for pattern, attribute in patterns.phrases:
            for found in pattern.finditer(sentence):
                yield Statement(found["s"], attribute, found["v"], index)
        opening = patterns.opening.search(sentence)
        if opening:
            subject = next(filter(None, opening.groups()))
        lead = opening or patterns.pronoun.match(sentence)
        if lead:
            for pattern, attribute in patterns.clauses:
                for found in pattern.finditer(sentence, lead.end()):
                    yield Statement(subject, attribute, found["v"], index)


class _Patterns(NamedTuple):
    """Of plain text. Phrases and clauses come with their attribute; their groups are ``s`` and ``v``."""

    phrases: list[tuple[re.Pattern[str], str]]
    clauses: list[tuple[re.Pattern[str], str]]
    opening: re.Pattern[str]  # its one matching group is the subject
    pronoun: re.Pattern[str]


@cache
def _patterns() -> _Patterns:
    phrases, clauses = [], []
    for kind, attribute in [(each, attribute) for each in kinds() for attribute in each.attributes]:
        subject, value = f"(?P<s>{kind.shape.value})", f"(?P<v>{attribute.shape.value})"
        phrases += [(re.compile(_pattern(phrase, subject, value)), attribute.name) for phrase in attribute.phrases]
        clauses.append((re.compile(_pattern(attribute.clause, subject, value)), attribute.name))
    openings = [_pattern(kind.opening, f"({kind.shape.value})", "") for kind in kinds()]
    pronouns = sorted({kind.pronoun.lower() for kind in kinds()})
    return _Patterns(phrases, clauses, re.compile("|".join(openings)), re.compile(rf"(?:{'|'.join(pronouns)})\b"))


def _pattern(phrase: str, subject: str, value: str) -> str:
    """The expression for the words of a phrase up to its last slot, with the given ones in its slots."""
    known = re.findall(r"\{[sv]\}|\w+", phrase[: phrase.rindex("}") + 1].lower())
    return rf"\b{' '.join(known).format(s=subject, v=value)}\b"
