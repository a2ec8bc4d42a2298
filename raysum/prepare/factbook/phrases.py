"""Kinds of subject, their attributes and the words for each, as ``phrases.yaml`` gives them."""

import re
from dataclasses import dataclass
from enum import Enum
from functools import cache
from importlib import resources
from typing import Any

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
    return tuple(_kind(**values) for values in yaml.safe_load(text).values())


@cache
def own_words() -> frozenset[str]:
    """All words of the phrases, lower case: no invented name may be one."""
    texts = [text for kind in kinds() for text in (kind.opening, kind.pronoun, *kind.remarks)]
    for attribute in (attribute for kind in kinds() for attribute in kind.attributes):
        texts += [attribute.clause, *attribute.phrases]
    return frozenset(re.findall(r"[a-z]+", " ".join(texts).lower()))


def _kind(name: str, opening: str, pronoun: str, attributes: dict[str, dict[str, Any]], remarks: list[str]) -> Kind:
    return Kind(
        shape=Shape[name.upper()],
        opening=opening,
        pronoun=pronoun,
        attributes=tuple(
            Attribute(attribute, Shape[words["value"].upper()], words["clause"], tuple(words["phrases"]))
            for attribute, words in attributes.items()
        ),
        remarks=tuple(remarks),
    )
