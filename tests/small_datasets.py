"""Small datasets for tests: random token rows in the folder format of raysum.data.dataset, written directly."""

import hashlib
import json
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from raysum.data.dataset import ROW_GROUP, SCHEMA
from raysum.data.recipe import Recipe
from raysum.data.vocabulary import Vocabulary

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
) -> Path:
    """A summarization dataset of ``rows`` by split; targets repeat the first tokens of their sources.

    With ``graph`` every paragraph has an edge of random weight to the next one.
    """
    path.mkdir(parents=True)
    rng = np.random.default_rng(seed)
    lines = [" ".join(rng.choice(_WORDS, 12)) for _ in range(400)]
    vocabulary = Vocabulary.train(lines, 200, path / "vocabulary.model")
    splits = {}
    for split, count in rows.items():
        made = [_row(rng, f"{split}-{i}", paragraphs, tokens, len(vocabulary)) for i in range(count)]
        if graph:
            made = [row | _edges(rng, len(row["paragraph_offsets"]) - 1) for row in made]
        np.save(path / f"{split}.lengths.npy", np.array([row.pop("lengths") for row in made], np.int32))
        splits[split] = {"rows": count, "shards": _write_shards(path, split, made, shards)}
    recipe = Recipe(vocabulary_sha256=vocabulary.sha256, graph="similarity" if graph else "none")
    manifest = {
        "format": 1,
        "kind": "summarization",
        "recipe": recipe.model_dump(),
        "splits": splits,
        "fingerprint": hashlib.sha256(repr((rows, paragraphs, tokens, seed)).encode()).hexdigest(),
    }
    (path / "manifest.json").write_text(json.dumps(manifest))
    return path


def _row(rng: np.random.Generator, name: str, paragraphs: int, tokens: int, vocabulary: int) -> dict:
    lengths = rng.integers(2, tokens + 1, rng.integers(1, paragraphs + 1))
    ids = rng.integers(9, vocabulary, int(lengths.sum()))
    target = [BOS, *ids[: rng.integers(2, 6)], EOS]
    values = {name: [] for name in SCHEMA.names}
    values |= {"id": name, "title": "", "summary": "words", "facts": ""}
    values |= {"ids": ids, "paragraph_offsets": np.concatenate([[0], np.cumsum(lengths)]), "target_ids": target}
    return values | {"lengths": [len(ids), len(lengths), len(target)]}


def _edges(rng: np.random.Generator, paragraphs: int) -> dict:
    first, weights = np.arange(paragraphs - 1), rng.random(paragraphs - 1)
    ends = np.append(first, first + 1), np.append(first + 1, first)
    return {"graph_row": ends[0], "graph_col": ends[1], "graph_value": np.append(weights, weights)}


def _write_shards(path: Path, split: str, rows: list[dict], shards: int) -> list[dict]:
    written = []
    for number, part in enumerate(np.array_split(np.arange(len(rows)), shards)):
        name = f"{split}-{number:05d}.parquet"
        chosen = [rows[i] for i in part]
        columns = {field.name: pa.array([row[field.name] for row in chosen], field.type) for field in SCHEMA}
        pq.write_table(pa.table(columns, SCHEMA), path / name, row_group_size=ROW_GROUP, compression="zstd")
        written.append({"file": name, "rows": len(part)})
    return written
