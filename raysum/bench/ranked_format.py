"""The published ranked WikiSum format, and data like it, as a dataset to train on: token ids only, no texts."""

import hashlib
import pickle
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import torch

from raysum.data.dataset import FORMAT, MANIFEST, ROW_GROUP, SCHEMA, VOCABULARY, Dataset
from raysum.data.recipe import Recipe
from raysum.data.vocabulary import Vocabulary
from raysum.errors import UserError
from raysum.run import write_json

_COLUMNS = ("id", "ids", "paragraph_offsets", "target_ids")


def as_dataset(shards: Path, vocabulary: Path, folder: Path) -> Dataset:
    """The clusters of ``shards``/WIKI.SPLIT.N.pt as a dataset in ``folder``; paragraph order is rank order.

    A shard is a list of mappings with ``src``, the token ids of each paragraph, and ``tgt``, those of the summary.
    Raises UserError where there are no such shards, or one does not read as such.
    """
    digest, splits = hashlib.sha256(), {}
    folder.mkdir(parents=True, exist_ok=True)
    for split in ("train", "valid"):
        files = sorted(shards.glob(f"WIKI.{split}.*.pt"), key=lambda file: int(file.suffixes[-2][1:]))
        if not files:
            raise UserError(f"{shards} has no WIKI.{split}.N.pt; name the folder of ranked shards with data=FOLDER")
        rows = [row for file in files for row in _rows(file)]
        schema = pa.schema([SCHEMA.field(name) for name in _COLUMNS])
        table = pa.table({name: [row[name] for row in rows] for name in _COLUMNS}, schema)
        pq.write_table(table, folder / f"{split}-00000.parquet", row_group_size=ROW_GROUP)
        lengths = [(len(row["ids"]), len(row["paragraph_offsets"]) - 1, len(row["target_ids"])) for row in rows]
        np.save(folder / f"{split}.lengths.npy", np.array(lengths, np.int32))
        digest.update(np.array(lengths, np.int32).tobytes())
        splits[split] = {"rows": len(rows), "shards": [{"file": f"{split}-00000.parquet", "rows": len(rows)}]}
    recipe = Recipe(max_paragraphs=40, paragraph_tokens=100, vocabulary_sha256=Vocabulary.load(vocabulary).sha256)
    shutil.copyfile(vocabulary, folder / VOCABULARY)
    manifest = {"format": FORMAT, "kind": "summarization", "recipe": recipe.model_dump(), "splits": splits}
    write_json(folder / MANIFEST, manifest | {"fingerprint": digest.hexdigest()})
    return Dataset.open(folder)


def _rows(file: Path) -> list[dict[str, Any]]:
    try:
        clusters = enumerate(torch.load(file, weights_only=True))
        return [_row(f"{file.name}:{number}", cluster["src"], cluster["tgt"]) for number, cluster in clusters]
    except (OSError, RuntimeError, KeyError, TypeError, ValueError, EOFError, pickle.UnpicklingError):
        raise UserError(f"{file} is no shard of ranked clusters, or damaged; get it again") from None


def _row(name: str, source: list[list[int]], target: list[int]) -> dict[str, Any]:
    paragraphs = [ids for ids in source if ids]
    offsets = np.cumsum([0, *(len(ids) for ids in paragraphs)])
    return {"id": name, "ids": np.concatenate(paragraphs), "paragraph_offsets": offsets, "target_ids": target}
