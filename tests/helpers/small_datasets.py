"""Small datasets for tests: random token rows, written directly."""

import json
from pathlib import Path
from typing import Any

import numpy as np

from raysum.data.dataset import MANIFEST
from raysum.data.recipe import Recipe
from raysum.data.rows import Row, table_of
from raysum.data.writer import DatasetWriter
from raysum.tokenizers.sentence_piece import Vocabulary

BOS, EOS = 4, 5
_WORDS = [a + b + c for a in "bdfgklmnprst" for b in "aeiou" for c in ("n", "r", "s", "l")]


def write_dataset(
    path: Path,
    rows: dict[str, int],
    shards: int = 2,
    paragraphs: int = 4,
    tokens: int = 12,
    seed: int = 0,
    graph: bool = False,
    references: int = 1,
    kind: str = "summarization",
) -> Path:
    """A dataset of ``rows`` by split; targets repeat the first tokens of their sources.

    With ``graph`` every paragraph has an edge of random weight to the next one. With ``references`` rows have one to so
    many, in turn, each of other lengths and tokens. Labels of sentences and attention (``kind`` extraction and
    alignment) are drawn.
    """
    path.mkdir(parents=True)
    rng = np.random.default_rng(seed)
    vocabulary = Vocabulary.train([" ".join(rng.choice(_WORDS, 12)) for _ in range(400)], 200)
    recipe = Recipe(vocabulary_sha256=vocabulary.sha256, graph="similarity" if graph else "none")
    writer = DatasetWriter(path, kind, recipe, vocabulary)
    written = []
    for split, count in rows.items():
        made = [_row(rng, f"{split}-{i}", paragraphs, tokens, len(vocabulary)) for i in range(count)]
        if graph:
            made = [row | _edges(rng, len(row["paragraph_offsets"]) - 1) for row in made]
        made = [row | _others(rng, i % references, len(vocabulary)) for i, row in enumerate(made)]
        made = [row | _learned(rng, len(row["paragraph_offsets"]) - 1) for row in made]
        for number, part in enumerate(np.array_split(np.arange(count), shards)):
            table = table_of([made[i] for i in part], writer.kind)
            written.append(writer.add(f"{split}-{number}", split, [table]))
    writer.finish(written)
    return path


def as_formerly(path: Path, **changes: Any) -> None:
    """Rewrite the manifest of a dataset with ``changes``, and as before there were checksums: all goes unnoticed."""
    manifest = json.loads((path / MANIFEST).read_text()) | changes
    splits = [*manifest["splits"].values()]
    for place in (manifest, *splits, *(shard for split in splits for shard in split["shards"])):
        for name in ("bytes", "crc32", "lengths"):
            place.pop(name, None)
    (path / MANIFEST).write_text(json.dumps(manifest))


def _row(rng: np.random.Generator, name: str, paragraphs: int, tokens: int, vocabulary: int) -> Row:
    lengths = rng.integers(2, tokens + 1, rng.integers(1, paragraphs + 1))
    ids = rng.integers(9, vocabulary, int(lengths.sum()))
    values: Any = {column: np.empty(0, np.int32) for column in Row.__annotations__}
    return values | {
        "id": name,
        "title": "",
        "ids": ids,
        "title_tokens": 0,
        "paragraph_offsets": np.concatenate([[0], np.cumsum(lengths)]),
        "document": np.zeros(len(lengths), np.int32),
        "paragraph": np.arange(len(lengths), dtype=np.int32),
        "char_start": np.zeros(len(lengths), np.int32),
        "text": [f"paragraph {number}" for number in range(len(lengths))],
        "other_summaries": [],
        "source": ["a document"],
        "target_ids": np.array([BOS, *ids[: rng.integers(2, 6)], EOS]),
        "summary": "words",
        "extra": "",
    }


def _others(rng: np.random.Generator, count: int, vocabulary: int) -> Row:
    targets = [[BOS, *rng.integers(9, vocabulary, 4 + number), EOS] for number in range(count)]
    return {
        "other_target_ids": np.array(sum(targets, []), np.int32),
        "other_target_offsets": np.cumsum([0, *map(len, targets)] if targets else [], dtype=np.int32),
        "other_summaries": [f"other words {number}" for number in range(count)],
    }


def _learned(rng: np.random.Generator, paragraphs: int, width: int = 16) -> Row:
    share = rng.random(paragraphs)
    embeddings = rng.normal(size=paragraphs * width).astype(np.float16)
    return {"labels": rng.integers(0, 2, paragraphs), "embeddings": embeddings, "label": share / share.sum()}


def _edges(rng: np.random.Generator, paragraphs: int) -> Row:
    first, weights = np.arange(paragraphs - 1), rng.random(paragraphs - 1)
    ends = np.append(first, first + 1), np.append(first + 1, first)
    return {"graph_row": ends[0], "graph_col": ends[1], "graph_value": np.append(weights, weights)}
