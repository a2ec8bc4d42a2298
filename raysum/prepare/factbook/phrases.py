"""Kinds of subject, their attributes and the words for each, as ``phrases.yaml`` gives them."""

import re
from dataclasses import dataclass
from enum import Enum
from functools import cache
from importlib import resources

import yaml


class Shape(Enum):
    """The form of a name or value, by the regular expression (of normalised text) that recognises it."""

    WORD = r"[a-z]+"
    PERSON = r"[a-z]+ [a-z]+"
    YEAR = r"\d{4}"


@dataclass(frozen=True, eq=False)
class Attribute:
    name: str
    shape: Shape
    clause: str
    phrases: tuple[str, ...]


@dataclass(frozen=True, eq=False)
class Kind:
    """A lead is the opening with some clauses, then the pronoun with the others; attributes are in the lead's order."""

    shape: Shape
    opening: str
    pronoun: str
    attributes: tuple[Attribute, ...]
    remarks: tuple[str, ...]


@cache
def kinds() -> tuple[Kind, ...]:
    text = resources.files(__package__).joinpath("phrases.yaml").read_text(encoding="utf-8")
    return tuple(
        Kind(
            shape=Shape[kind["name"].upper()],
            opening=kind["opening"],
            pronoun=kind["pronoun"],
            attributes=tuple(
                Attribute(name, Shape[words["value"].upper()], words["clause"], tuple(words["phrases"]))
                for name, words in kind["attributes"].items()
            ),
            remarks=tuple(kind["remarks"]),
        )
        for kind in yaml.safe_load(text).values()
    )


@cache
def own_words() -> frozenset[str]:
    """All words of the phrases, lower case: no invented name may be one."""
    texts = []
    for kind in kinds():
        texts += [kind.opening, kind.pronoun, *kind.remarks]
        for attribute in kind.attributes:
            texts += [attribute.clause, *attribute.phrases]
    return frozenset(re.findall(r"[a-z]+", " ".join(texts).lower()))
