"""Writing a dataset: shards, in any order and by many processes; then, by one, the manifest that makes them one."""

import hashlib
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from raysum.data.dataset import FORMAT, MANIFEST, ROW_GROUP, VOCABULARY, Dataset
from raysum.data.recipe import Recipe
from raysum.data.rows import FORMS
from raysum.data.vocabulary import Vocabulary
from raysum.runtime.storage import write_json


@dataclass
class Shard:
    """What is known of a shard that was written: ``name`` of its files in the folder, which also orders a split's."""

    name: str
    split: str
    rows: int = 0
    digest: str = ""
    counts: Counter[str] = field(default_factory=Counter)


class ShardWriter:
    """Writes one shard of a dataset of ``kind`` and the lengths of its rows, table by table.

    Each table but the last must have a multiple of ROW_GROUP rows.
    """

    def __init__(self, folder: Path, kind: str, name: str, split: str):
        self.shard = Shard(name, split)
        self._form, self._file = FORMS[kind], folder / name
        self._writer: pq.ParquetWriter | None = None
        self._lengths: list[np.ndarray] = []
        self._digest = hashlib.sha256()

    def write(self, table: pa.Table) -> None:
        if self._writer is None:
            self._writer = pq.ParquetWriter(_shard_file(self._file), table.schema, compression="zstd")
        self._writer.write_table(table, row_group_size=ROW_GROUP)
        self._lengths.append(self._form.lengths(table))
        for name in self._form.content:
            column = table[name].combine_chunks()
            values = "\n".join(column.to_pylist()).encode() if name == "id" else column.values.to_numpy().tobytes()
            self._digest.update(values)
        self._digest.update(self._lengths[-1].tobytes())

    def close(self) -> Shard:
        """Raises OSError where the disk is full. A shard without rows has no files."""
        if self._writer is not None:
            self._writer.close()
            np.save(_lengths_file(self._file), np.concatenate(self._lengths))
            self.shard.rows, self.shard.digest = sum(map(len, self._lengths)), self._digest.hexdigest()
        return self.shard


class DatasetWriter:
    """Makes a dataset of the shards that were written into ``folder``, which must exist."""

    def __init__(self, folder: Path, kind: str, recipe: Recipe, vocabulary: Vocabulary):
        self.folder, self.kind, self.recipe, self.vocabulary = folder, kind, recipe, vocabulary
        (folder / VOCABULARY).write_bytes(vocabulary.model)

    def add(self, name: str, split: str, table: pa.Table) -> Shard:
        """Write a shard of one table."""
        writer = ShardWriter(self.folder, self.kind, name, split)
        writer.write(table)
        return writer.close()

    def finish(self, shards: list[Shard], **told: Any) -> Dataset:
        """Name the ``shards``, join the lengths of each split, and write the manifest, with what else is ``told``."""
        shards = sorted((shard for shard in shards if shard.rows), key=lambda shard: shard.name)
        content = [self.kind, self.recipe.model_dump_json(), *(f"{shard.split} {shard.digest}" for shard in shards)]
        manifest = {
            "format": FORMAT,
            "kind": self.kind,
            "fingerprint": hashlib.sha256("\n".join(content).encode()).hexdigest(),
            "recipe": self.recipe.model_dump(),
            "pieces": len(self.vocabulary),
            "rows": sum(shard.rows for shard in shards),
            **told,
            "splits": {split: self._finish_split(split, shards) for split in _splits(shards)},
        }
        write_json(self.folder / MANIFEST, manifest)
        return Dataset.open(self.folder)

    def _finish_split(self, split: str, shards: list[Shard]) -> dict[str, Any]:
        own = [shard for shard in shards if shard.split == split]
        files = [f"{split}-{number:05d}.parquet" for number in range(len(own))]
        for shard, file in zip(own, files, strict=True):
            _shard_file(self.folder / shard.name).rename(self.folder / file)
        lengths = [_lengths_file(self.folder / shard.name) for shard in own]
        np.save(self.folder / f"{split}.lengths.npy", np.concatenate([np.load(file) for file in lengths]))
        for written in lengths:
            written.unlink()
        entries = [{"file": file, "rows": shard.rows} for shard, file in zip(own, files, strict=True)]
        counts = sum((shard.counts for shard in own), Counter[str]())
        return {"rows": sum(shard.rows for shard in own), "shards": entries, "counts": dict(counts)}


def _splits(shards: list[Shard]) -> list[str]:
    """Train, valid and test first, as far as there are any."""
    usual = ("train", "valid", "test")
    found = dict.fromkeys(shard.split for shard in shards)
    return [*(split for split in usual if split in found), *(split for split in found if split not in usual)]


def _shard_file(file: Path) -> Path:
    return file.with_name(file.name + ".shard")


def _lengths_file(file: Path) -> Path:
    return file.with_name(file.name + ".npy")
