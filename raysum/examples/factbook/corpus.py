"""The factbook: an invented encyclopedia, made to order, on which gathering facts from several sources can be measured.

An example is a subject with a few facts. Its sources state them one by one, each in words of its own, some facts
twice, between remarks that state nothing and paragraphs about other subjects that have facts of the same kinds. The
summary is the lead section of an encyclopedia: all the facts, in a fixed order and in words that no source uses.
Everything follows from the split's name and the seed. ``phrases.yaml`` has the words.
"""

import gzip
import json
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cache
from importlib import resources
from itertools import cycle, islice
from pathlib import Path
from random import Random
from typing import Any, TypeVar
from zlib import crc32

import yaml

# Small enough for a small model and few steps: with 2,000 pieces that hold whole words, 300 test clusters had 167
# source and 31 target tokens on average (42 at most), in at most 10 paragraphs of at most 33.
FACTS = (3, 4, 4, 5)  # of a subject; here and below one of the numbers is drawn
PARAGRAPHS = (4, 5)  # about the subject, as many as its facts at least
OTHER_PARAGRAPHS = (3, 4, 5)  # about two other subjects
DOCUMENTS = (2, 3)
SAME_KIND = 0.5  # chance that another subject is of the example's kind
REMARKED = 0.25  # chance that a paragraph about another subject has a remark; those about the subject all have one

# Consonant, vowel, and perhaps a closing consonant: a name falls into syllables in one way only, so that names of
# different syllables differ.
SYLLABLES = tuple(c + v + end for c in "bdfgklmnprstvz" for v in "aeiou" for end in ("", "l", "n", "r"))
# A word belongs to the split that has its checksum modulo 10: no word of a name is in two splits, every syllable is in
# all, and nothing can be learned in one split of which words the others have. (Sums of syllables are no checksum: a
# model learns which syllables never end a word.)
SHARES = {"train": tuple(range(8)), "valid": (8,), "test": (9,)}
# Four different digits, so that a search that blocks repeated pieces does not block a year.
YEARS = tuple(str(year) for year in range(1200, 2000) if len(set(str(year))) == 4)
# Shapes of names and values, by the regular expressions (of normalised text) that recognise them.
SHAPES = {"word": r"[a-z]+", "person": r"[a-z]+ [a-z]+", "year": r"\d{4}"}
SOURCES = ("Almanac", "Gazette", "Review", "Chronicle", "Register", "Courier")

Item = TypeVar("Item")


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


def generate(split: str, count: int, seed: int = 0) -> Iterator[dict[str, Any]]:
    """Yield ``count`` raw examples of a split: ``id, title, documents, summary, split, facts``.

    ``split`` is ``train``, ``valid`` or ``test``. Paragraphs of a document are separated by a blank line. ``facts`` is
    a list of ``{"attribute", "value", "paragraphs"}`` in the order of the summary; ``paragraphs`` lists the
    ``[document, paragraph within the document]`` that state the fact. The first examples do not depend on ``count``.
    """
    random = Random(f"factbook {split} {seed}")
    for index in range(count):
        yield {"id": f"{split}-{index:06d}", **_example(random, Names(random, SHARES[split])), "split": split}


def write(folder: str | Path, *, train: int, valid: int, test: int, seed: int = 0) -> Path:
    """Write ``{train,valid,test}.jsonl.gz`` into ``folder`` and return it. Equal arguments give equal bytes."""
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    for split, count in (("train", train), ("valid", valid), ("test", test)):
        with (
            open(folder / f"{split}.jsonl.gz", "wb") as file,
            gzip.GzipFile("", "wb", compresslevel=1, fileobj=file, mtime=0) as lines,
        ):
            for example in generate(split, count, seed):
                lines.write(json.dumps(example).encode() + b"\n")
    return folder


@dataclass(eq=False)
class Names:
    """Invented names and other values of one split, no word twice within an example."""

    random: Random
    shares: tuple[int, ...]
    used: set[str] = field(default_factory=set)

    def draw(self, shape: str) -> str:
        if shape == "year":
            return _pick(self.random, YEARS)
        return self.name(1, 2) if shape == "person" else self.name(2)

    def name(self, *syllables: int) -> str:
        """A name of as many words as ``syllables`` has numbers."""
        return " ".join(map(self._word, syllables)).title()

    def _word(self, syllables: int) -> str:
        while True:
            word = "".join(_pick(self.random, SYLLABLES) for _ in range(syllables))
            if crc32(word.encode()) % 10 in self.shares and word not in self.used and word not in own_words():
                self.used.add(word)
                return word


@dataclass(eq=False)
class Subject:
    kind: SubjectKind
    name: str
    values: dict[Attribute, str]  # in the order of the lead

    def lead(self) -> str:
        """Two facts after the opening, the others in a sentence of their own."""
        clauses = [attribute.clause.format(v=value) for attribute, value in self.values.items()]
        opening = self.kind.opening.format(s=self.name)
        later = ", ".join(clauses[2:-1]) + " and " * (len(clauses) > 3) + clauses[-1]
        return f"{opening} {clauses[0]} and {clauses[1]}. {self.kind.pronoun} {later}."


@dataclass(eq=False)
class FactPassage:
    document: int
    text: str
    states: Attribute | None = None  # the fact about the example's subject, None in paragraphs about others


def _example(random: Random, names: Names) -> dict[str, Any]:
    kind = _pick(random, kinds())
    subject = _subject(random, names, kind)
    other_kinds = [kind if random.random() < SAME_KIND else _pick(random, kinds()) for _ in range(2)]
    others = [_subject(random, names, other_kind) for other_kind in other_kinds]
    num_documents = _pick(random, DOCUMENTS)
    paragraphs = [*_about_subject(random, subject, num_documents), *_about_others(random, others, num_documents)]
    paragraphs = _shuffled(random, paragraphs)
    documents = [[p for p in paragraphs if p.document == document] for document in range(num_documents)]
    stated = [([d, n], p.states) for d, contents in enumerate(documents) for n, p in enumerate(contents)]
    return {
        "title": subject.name,
        "documents": [
            {"source": f"{names.name(2)} {_pick(random, SOURCES)}", "text": "\n\n".join(p.text for p in contents)}
            for contents in documents
        ],
        "summary": subject.lead(),
        "facts": [
            {"attribute": fact.name, "value": value, "paragraphs": [place for place, told in stated if told is fact]}
            for fact, value in subject.values.items()
        ],
    }


def _subject(random: Random, names: Names, kind: SubjectKind) -> Subject:
    chosen = _shuffled(random, range(len(kind.attributes)))[: _pick(random, FACTS)]
    attributes = [kind.attributes[index] for index in sorted(chosen)]
    return Subject(kind, names.draw(kind.name), {attribute: names.draw(attribute.value) for attribute in attributes})


def _about_subject(random: Random, subject: Subject, num_documents: int) -> list[FactPassage]:
    """A remark and a fact in each paragraph: every fact once, some again in another document and in other words."""
    facts = [(attribute, _shuffled(random, attribute.phrases)) for attribute in _shuffled(random, subject.values)]
    told = [(attribute, phrases[0], number) for number, (attribute, phrases) in enumerate(facts)]
    repeated = facts[: max(_pick(random, PARAGRAPHS) - len(facts), 0)]
    told += [(attribute, phrases[1], number + 1) for number, (attribute, phrases) in enumerate(repeated)]
    paragraphs = []
    for (attribute, phrase, number), remark in zip(told, _shuffled(random, subject.kind.remarks), strict=False):
        fact = phrase.format(s=subject.name, v=subject.values[attribute])
        sentences = _shuffled(random, [fact, remark.format(s=subject.name)])
        paragraphs.append(FactPassage(number % num_documents, " ".join(sentences), attribute))
    return paragraphs


def _about_others(random: Random, others: Sequence[Subject], num_documents: int) -> list[FactPassage]:
    """A fact in each paragraph, some with a remark, about the others in turn."""
    paragraphs = []
    for other in islice(cycle(others), _pick(random, OTHER_PARAGRAPHS)):
        attribute, value = _pick(random, tuple(other.values.items()))
        sentences = [_pick(random, attribute.phrases).format(s=other.name, v=value)]
        if random.random() < REMARKED:
            sentences = _shuffled(random, [*sentences, _pick(random, other.kind.remarks).format(s=other.name)])
        paragraphs.append(FactPassage(_pick(random, range(num_documents)), " ".join(sentences)))
    return paragraphs


# Python keeps the sequence of Random.random() between versions, but of no other method; it is also the fastest.
def _pick(random: Random, items: Sequence[Item]) -> Item:
    return items[int(random.random() * len(items))]


def _shuffled(random: Random, items: Iterable[Item]) -> list[Item]:
    drawn = list(items)
    for last in range(len(drawn) - 1, 0, -1):
        other = int(random.random() * (last + 1))
        drawn[last], drawn[other] = drawn[other], drawn[last]
    return drawn
