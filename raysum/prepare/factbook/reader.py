"""Reads the factbook's facts back out of any text made of its words: summaries, sources, mixtures of both.

Text is normalised first (lower case, punctuation dropped, sentences end at a period), so decoded pieces read like the
original. A statement is (subject, attribute, value), all lower case.
"""

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any, NamedTuple

from raysum.prepare.factbook.phrases import Attribute, Shape, kinds


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

    ``cited`` paragraphs, of which ``correct`` state a right fact of the sentence; ``stating`` paragraphs state one, cited
    or not; ``weight`` of all these citations and the part of it, ``correct_weight``, on correct ones.
    """

    correct: int
    cited: int
    stating: int
    correct_weight: float
    weight: float


def read_facts(text: str, title: str) -> list[Statement]:
    """All statements of ``text`` in order, of any subject; a pronoun before any subject means ``title``."""
    return list(_read([sentence for sentence in text.split(".") if sentence.strip()], title))


def score_facts(summary: str, facts: Sequence[dict[str, Any]], title: str) -> FactScore:
    """Distinct statements of ``summary`` against an example's ``facts`` (see ``generate``)."""
    stated = {statement[:3] for statement in read_facts(summary, title)}
    true = {_true(fact, title) for fact in facts}
    return FactScore(right=len(stated & true), wrong=len(stated - true), total=len(true))


def facts_f1(scores: Iterable[FactScore]) -> dict[str, float]:
    """Over a corpus, from summed counts: ``facts_right, facts_wrong, facts_total``, precision, recall and F1 (0 to 1)."""
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

    ``sentences`` of a summary are (text, citations), a citation is (document, paragraph within the document, weight).
    A sentence without a right fact has no true citation and counts nowhere: facts are scored by ``score_facts``.
    """
    paragraphs = {_true(fact, title): {tuple(place) for place in fact["paragraphs"]} for fact in facts}
    stating: list[set[tuple[int, ...]]] = [set() for _ in sentences]
    for statement in _read([text for text, _ in sentences], title):
        stating[statement.sentence] |= paragraphs.get(statement[:3], set())
    counted = [(places, {(d, p): w for d, p, w in cited}) for places, (_, cited) in zip(stating, sentences) if places]
    return CitationScore(
        correct=sum(len(places & cited.keys()) for places, cited in counted),
        cited=sum(len(cited) for _, cited in counted),
        stating=sum(len(places) for places, _ in counted),
        correct_weight=sum(weight for places, cited in counted for place, weight in cited.items() if place in places),
        weight=sum(weight for _, cited in counted for weight in cited.values()),
    )


def _true(fact: dict[str, Any], title: str) -> tuple[str, str, str]:
    return normalise(title), fact["attribute"], normalise(fact["value"])


def normalise(text: str) -> str:
    return " ".join(re.findall(r"[a-z0-9]+", text.lower()))


def _read(sentences: Sequence[str], title: str) -> Iterator[Statement]:
    """Source phrases name their subject; a lead's clauses belong to the subject of the last opening before them."""
    phrases, clauses, opening, pronoun = _patterns()
    subject = normalise(title)
    for index, text in enumerate(sentences):
        sentence = normalise(text)
        for pattern, attribute in phrases:
            for match in pattern.finditer(sentence):
                yield Statement(match["s"], attribute, match["v"], index)
        if opened := opening.search(sentence):
            subject = next(filter(None, opened.groups()))
        if lead := opened or pronoun.match(sentence):
            for pattern, attribute in clauses:
                for match in pattern.finditer(sentence, lead.end()):
                    yield Statement(subject, attribute, match["v"], index)


@cache
def _patterns() -> tuple[list[tuple[re.Pattern, str]], list[tuple[re.Pattern, str]], re.Pattern, re.Pattern]:
    """Phrases and clauses with their attributes, the opening of a lead (a group a kind), and its pronouns."""
    phrases, clauses = [], []
    for kind in kinds():
        for attribute in kind.attributes:
            clauses.append((_pattern(attribute.clause, kind.shape, attribute), attribute.name))
            for phrase in attribute.phrases:
                phrases.append((_pattern(phrase, kind.shape, attribute), attribute.name))
    openings = (normalise_phrase(kind.opening).format(s=f"({kind.shape.value})") for kind in kinds())
    pronouns = {kind.pronoun.lower() for kind in kinds()}
    return phrases, clauses, re.compile(rf"\b(?:{'|'.join(openings)})\b"), re.compile(rf"(?:{'|'.join(pronouns)})\b")


def _pattern(phrase: str, subject: Shape, attribute: Attribute) -> re.Pattern:
    words = normalise_phrase(phrase[: phrase.rindex("}") + 1])
    return re.compile(rf"\b{words.format(s=f'(?P<s>{subject.value})', v=f'(?P<v>{attribute.shape.value})')}\b")


def normalise_phrase(phrase: str) -> str:
    return " ".join(re.findall(r"[a-z0-9]+|\{[sv]\}", phrase.lower()))
