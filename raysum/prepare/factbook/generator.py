"""The factbook: an invented encyclopedia, made to order, on which gathering facts from several sources can be measured.

An example is a subject with a few facts. Some sources state them, each in words of its own, some twice, between remarks
that state nothing and paragraphs about other subjects that have facts of the same kinds. The summary is the lead section
of an encyclopedia: all facts that the sources state, in a fixed order and in words that no source uses. Everything
follows from the split's name and the seed.
"""

import gzip
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any, TypeVar

from raysum.prepare.factbook.phrases import KINDS, Attribute, Kind, Shape, fixed_words

# Sizes, tuned so that a cluster has about 150 source and 28 target tokens (2,000 pieces), at most 10 paragraphs of 40:
# a Transformer of 2 + 2 layers, width 128, then learns to copy in a few hundred steps.
FACTS = (3, 4, 5)  # facts of a subject
PARAGRAPHS = (3, 4, 5)  # about the subject, of two sentences each
OTHER_PARAGRAPHS = (3, 4, 5)  # about other subjects, of one or two sentences
DOCUMENTS = (2, 3)
REPEATED = 0.25  # share of facts that a second document states too
SAME_KIND = 0.5  # share of other subjects that are of the subject's kind

# Consonant, vowel, and perhaps a closing consonant: a name falls into syllables in one way only, so names of different
# syllables differ.
SYLLABLES = tuple(c + v + end for c in "bdfgklmnprstvz" for v in "aeiou" for end in ("", "l", "n", "r"))
# A name belongs to the split that has the sum of its syllables' indices modulo 10: no name is in two splits, and every
# syllable is in all.
RESIDUES = {"train": tuple(range(8)), "valid": (8,), "test": (9,)}
# Four different digits: a search that blocks repeated pieces must not block a year.
YEARS = tuple(str(year) for year in range(1200, 2000) if len(set(str(year))) == 4)
SOURCES = ("Almanac", "Gazette", "Review", "Chronicle", "Register", "Courier")

Item = TypeVar("Item")


def generate(split: str, count: int, seed: int = 0) -> Iterator[dict[str, Any]]:
    """Yield ``count`` raw examples of a split: ``id, title, documents, summary, split, facts``.

    ``split`` is ``train``, ``valid`` or ``test``. Paragraphs of a document are separated by a blank line. ``facts`` is a
    list of ``{"attribute", "value", "paragraphs"}``, in the order of the summary, where ``paragraphs`` lists the
    ``[document, paragraph within the document]`` that state the fact. The first examples do not depend on ``count``.
    """
    random = Random(f"factbook {split} {seed}")
    for index in range(count):
        names = Names(random, RESIDUES[split])
        yield {"id": f"{split}-{index:06d}", **_example(random, names), "split": split}


def write(folder: str | Path, *, train: int, valid: int, test: int, seed: int = 0) -> Path:
    """Write ``{train,valid,test}.jsonl.gz`` into ``folder``, the same bytes for the same arguments; return the folder."""
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    for split, count in (("train", train), ("valid", valid), ("test", test)):
        # No name and no time in the header, and the fastest level: it is three times as fast as the default.
        with (
            open(folder / f"{split}.jsonl.gz", "wb") as file,
            gzip.GzipFile("", "wb", compresslevel=1, fileobj=file, mtime=0) as lines,
        ):
            for example in generate(split, count, seed):
                lines.write(json.dumps(example).encode() + b"\n")
    return folder


class Names:
    """Invented names and other values of one split, no word twice within an example."""

    def __init__(self, random: Random, residues: tuple[int, ...]) -> None:
        self.random = random
        self.residues = residues
        self.used: set[str] = set()

    def draw(self, shape: Shape) -> str:
        if shape is Shape.YEAR:
            return _pick(self.random, YEARS)
        if shape is Shape.PERSON:
            return f"{self.word()} {self.word()}"
        return self.word()

    def word(self) -> str:
        while True:
            first = int(self.random.random() * len(SYLLABLES))
            last = 10 * int(self.random.random() * (len(SYLLABLES) // 10))
            last += (_pick(self.random, self.residues) - first) % 10
            word = SYLLABLES[first] + SYLLABLES[last]
            if word not in self.used and word not in fixed_words():
                self.used.add(word)
                return word.capitalize()


@dataclass(eq=False)
class Subject:
    kind: Kind
    name: str
    values: dict[Attribute, str]  # in the order of the lead

    def say(self, attribute: Attribute, phrase: str) -> str:
        return phrase.format(s=self.name, v=self.values[attribute])

    def remark(self, random: Random) -> str:
        return _pick(random, self.kind.remarks).format(s=self.name)

    def lead(self) -> str:
        """Two facts after the opening, the others in a sentence of their own."""
        clauses = [attribute.clause.format(v=value) for attribute, value in self.values.items()]
        opening = self.kind.opening.format(s=self.name)
        return f"{opening} {clauses[0]} and {clauses[1]}. {self.kind.pronoun} {_join(clauses[2:])}."


@dataclass(eq=False)
class Paragraph:
    document: int
    sentences: list[str] = field(default_factory=list)
    stated: list[Attribute] = field(default_factory=list)  # facts about the example's subject


def _example(random: Random, names: Names) -> dict[str, Any]:
    kind = _pick(random, KINDS)
    subject = _subject(random, names, kind)
    num_documents = _pick(random, DOCUMENTS)
    paragraphs = _about_subject(random, subject, num_documents) + _about_others(random, names, kind, num_documents)
    _shuffle(random, paragraphs)
    documents = [[p for p in paragraphs if p.document == document] for document in range(num_documents)]
    places: dict[Attribute, list[list[int]]] = {attribute: [] for attribute in subject.values}
    for document, contents in enumerate(documents):
        for position, paragraph in enumerate(contents):
            for attribute in paragraph.stated:
                places[attribute].append([document, position])
    return {
        "title": subject.name,
        "documents": [
            {
                "source": f"{names.word()} {_pick(random, SOURCES)}",
                "text": "\n\n".join(" ".join(paragraph.sentences) for paragraph in contents),
            }
            for contents in documents
        ],
        "summary": subject.lead(),
        "facts": [
            {"attribute": attribute.name, "value": value, "paragraphs": places[attribute]}
            for attribute, value in subject.values.items()
        ],
    }


def _subject(random: Random, names: Names, kind: Kind) -> Subject:
    chosen = list(range(len(kind.attributes)))
    _shuffle(random, chosen)
    attributes = [kind.attributes[index] for index in sorted(chosen[: _pick(random, FACTS)])]
    return Subject(kind, names.draw(kind.shape), {attribute: names.draw(attribute.shape) for attribute in attributes})


def _about_subject(random: Random, subject: Subject, num_documents: int) -> list[Paragraph]:
    """Paragraphs of two sentences: every fact once, some again in another document and other words, then remarks."""
    paragraphs = [Paragraph(index % num_documents) for index in range(_pick(random, PARAGRAPHS))]
    free = paragraphs * 2
    _shuffle(random, free)
    told = [(attribute, free.pop(), _pick(random, attribute.phrases)) for attribute in subject.values]
    for attribute, paragraph, phrase in list(told):
        elsewhere = [place for place in free if place.document != paragraph.document]
        if elsewhere and random.random() < REPEATED:
            free.remove(elsewhere[0])
            told.append((attribute, elsewhere[0], _pick(random, [p for p in attribute.phrases if p != phrase])))
    for attribute, paragraph, phrase in told:
        paragraph.sentences.append(subject.say(attribute, phrase))
        paragraph.stated.append(attribute)
    remarks = list(subject.kind.remarks)
    _shuffle(random, remarks)
    for paragraph, remark in zip(free, remarks, strict=False):
        paragraph.sentences.append(remark.format(s=subject.name))
    for paragraph in paragraphs:
        _shuffle(random, paragraph.sentences)
    return paragraphs


def _about_others(random: Random, names: Names, kind: Kind, num_documents: int) -> list[Paragraph]:
    """Paragraphs of one or two sentences about two other subjects, whose facts are none of the example's."""
    others = [_subject(random, names, kind if random.random() < SAME_KIND else _pick(random, KINDS)) for _ in range(2)]
    paragraphs = []
    for index in range(_pick(random, OTHER_PARAGRAPHS)):
        other = others[index % 2]
        attributes = list(other.values)
        _shuffle(random, attributes)
        sentences = [other.say(attribute, _pick(random, attribute.phrases)) for attribute in attributes[:2]]
        if random.random() < 0.5:
            sentences[1] = other.remark(random)
        paragraphs.append(Paragraph(int(random.random() * num_documents), sentences[: _pick(random, (1, 2))]))
    return paragraphs


def _join(clauses: list[str]) -> str:
    return " and ".join([", ".join(clauses[:-1])] * (len(clauses) > 1) + clauses[-1:])


# Random.random() is the one method whose sequence Python promises to keep between versions, and the fastest.
def _pick(random: Random, items: Sequence[Item]) -> Item:
    return items[int(random.random() * len(items))]


def _shuffle(random: Random, items: list[Any]) -> None:
    for last in range(len(items) - 1, 0, -1):
        other = int(random.random() * (last + 1))
        items[last], items[other] = items[other], items[last]
