"""Kinds of subject, their attributes and the words for each, as ``phrases.yaml`` gives them."""

import re
from dataclasses import dataclass
from functools import cache
from importlib import resources

import yaml

# Shapes of names and values, by the regular expressions (of normalised text) that recognise them.
SHAPES = {"word": r"[a-z]+", "person": r"[a-z]+ [a-z]+", "year": r"\d{4}"}


@dataclass(frozen=True, eq=False)
class Attribute:
    name: str
    value: str  # shape of its value
    clause: str
    phrases: list[str]


@dataclass(frozen=True, eq=False)
class SubjectKind:
    """A lead is the opening with some clauses, then the pronoun with the others; attributes are in the lead's order."""

    name: str  # shape of a subject's name
    opening: str
    pronoun: str
    attributes: list[Attribute]
    remarks: list[str]


@cache
def kinds() -> tuple[SubjectKind, ...]:
    kinds = yaml.safe_load(resources.files(__package__).joinpath("phrases.yaml").read_text(encoding="utf-8")).values()
    for kind in kinds:
        kind["attributes"] = [Attribute(name, **words) for name, words in kind["attributes"].items()]
    return tuple(SubjectKind(**kind) for kind in kinds)


@cache
def own_words() -> frozenset[str]:
    """All words of the phrases, lower case: no invented name may be one."""
    texts = []
    for kind in kinds():
        texts += [kind.opening, kind.pronoun, *kind.remarks]
        for attribute in kind.attributes:
            texts += [attribute.clause, *attribute.phrases]
    return frozenset(re.findall(r"[a-z]+", " ".join(texts).lower()))
