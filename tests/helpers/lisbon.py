"""A small cluster, its files, and a tokenizer and recipe for it."""

from pathlib import Path

import pytest

from raysum.data.recipe import Recipe
from raysum.sources.find import find_sources
from raysum.sources.record import Record
from raysum.tokenizers.sentence_piece import Vocabulary

CLUSTER = {
    "id": "lisbon",
    "title": "Lisbon bridge",
    "documents": [
        {
            "source": "Almanac",
            "text": "The bridge of Lisbon was opened in 1966. It is red.\n\n  Boats pass under its deck.  ",
        },
        {"source": "Gazette", "text": "Nothing else is known about the weather of that day."},
    ],
    "summary": "The Lisbon bridge opened in 1966. It is a red bridge.",
}


def read_records(paths: list[Path | str]) -> list[Record]:
    return [record for source in find_sources(paths) for record in source.records()]


@pytest.fixture(scope="module")
def vocabulary() -> Vocabulary:
    texts = [text for document in CLUSTER["documents"] for text in document["text"].splitlines()]
    return Vocabulary.train([*texts, CLUSTER["summary"], CLUSTER["title"]] * 5, 120)


@pytest.fixture(scope="module")
def recipe(vocabulary) -> Recipe:
    return Recipe(vocabulary_sha256=vocabulary.sha256, min_words=3)


def as_folder(folder: Path) -> Path:
    cluster = folder / "corpus" / "lisbon"
    cluster.mkdir(parents=True)
    for document in CLUSTER["documents"]:
        (cluster / f"{document['source']}.txt").write_text(document["text"])
    (cluster / "title.txt").write_text("Lisbon bridge\n")
    (cluster / "summary.txt").write_text(CLUSTER["summary"] + "\n")
    return folder / "corpus"
