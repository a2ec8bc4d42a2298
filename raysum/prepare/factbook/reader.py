"""Reads the factbook's facts back out of any text made of its words: summaries, sources, mixtures of both.

Text is normalised first (lower case, punctuation dropped), so decoded pieces read like the original.
"""

import re
from collections.abc import Iterable
from functools import cache
from typing import NamedTuple

from raysum.data.clean import words
from raysum.prepare.factbook.phrases import kinds

Fact = tuple[str, str, str]  # subject, attribute and value, as plain text


def plain(text: str) -> str:
    """Lower case, without punctuation."""
    return " ".join(words(text))


def read_facts(sentences: Iterable[str], title: str) -> list[list[Fact]]:
    """What each of consecutive sentences states, of any subject; a pronoun before any subject means ``title``.

    Source phrases name their subject; a lead's clauses belong to the subject of the last opening before them.
    """
    patterns = _patterns()
    subject, read = plain(title), []
    for sentence in map(plain, sentences):
        facts: list[Fact] = []
        for phrase, name in patterns.phrases:
            facts += [(found["s"], name, found["v"]) for found in phrase.finditer(sentence)]
        opening = patterns.opening.search(sentence)
        if opening:
            subject = next(filter(None, opening.groups()))
        lead = opening or patterns.pronoun.match(sentence)
        if lead:
            for clause, name in patterns.clauses:
                facts += [(subject, name, found["v"]) for found in clause.finditer(sentence, lead.end())]
        read.append(facts)
    return read


class _Patterns(NamedTuple):
    """Of plain text. Phrases and clauses come with their attribute; their groups are ``s`` and ``v``."""

    phrases: list[tuple[re.Pattern[str], str]]
    clauses: list[tuple[re.Pattern[str], str]]
    opening: re.Pattern[str]  # its one matching group is the subject
    pronoun: re.Pattern[str]


@cache
def _patterns() -> _Patterns:
    phrases, clauses = [], []
    for kind in kinds():
        for attribute in kind.attributes:
            slots = f"(?P<s>{kind.shape.value})", f"(?P<v>{attribute.shape.value})"
            phrases += [(re.compile(_pattern(phrase, *slots)), attribute.name) for phrase in attribute.phrases]
            clauses.append((re.compile(_pattern(attribute.clause, *slots)), attribute.name))
    openings = [_pattern(kind.opening, f"({kind.shape.value})", "") for kind in kinds()]
    pronouns = sorted({kind.pronoun.lower() for kind in kinds()})
    return _Patterns(phrases, clauses, re.compile("|".join(openings)), re.compile(rf"(?:{'|'.join(pronouns)})\b"))


def _pattern(phrase: str, subject: str, value: str) -> str:
    """The expression for the words of a phrase up to its last slot, with the given ones in its slots."""
    known = re.findall(r"\{[sv]\}|\w+", phrase[: phrase.rindex("}") + 1].lower())
    return rf"\b{' '.join(known).format(s=subject, v=value)}\b"
