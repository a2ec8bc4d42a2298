"""Write a dataset: many processes write shards in any order, then one process writes the manifest."""

import hashlib
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from raysum.data.dataset import FORMAT, MANIFEST, ROW_GROUP, VOCABULARY, Dataset, lengths_file
from raysum.data.recipe import Recipe
from raysum.data.rows import FINGERPRINTED, row_lengths
from raysum.runtime.checksums import checksum, sealed
from raysum.runtime.storage import write_json
from raysum.tokenizers.tokenizer import Tokenizer


@dataclass
class Shard:
    """A written shard. Its ``name`` is the name of its files, and defines the order of the shards of a split."""

    name: str
    split: str
    rows: int = 0
    digest: str = ""
    written: dict[str, int] = field(default_factory=dict)  # length and CRC-32 of the file
    counts: Counter[str] = field(default_factory=Counter)


class DatasetWriter:
    """Write shards to ``folder``, which must exist, and then the manifest of the dataset."""

    def __init__(self, folder: Path, kind: str, recipe: Recipe, vocabulary: Tokenizer):
        self.folder, self.kind, self.recipe, self.vocabulary = folder, kind, recipe, vocabulary
        file = folder / VOCABULARY
        if not file.exists() or file.read_bytes() != vocabulary.model:  # a killed process may have left a part
            file.write_bytes(vocabulary.model)

    def add(self, name: str, split: str, tables: Iterable[pa.Table]) -> Shard:
        """Write a shard and the lengths of its rows; each table but the last has a multiple of ROW_GROUP rows.

        Raises OSError if the disk is full. A shard without rows has no files.
        """
        digest, lengths = hashlib.sha256(), list[np.ndarray]()
        writer: pq.ParquetWriter | None = None
        for table in tables:
            writer = writer or pq.ParquetWriter(self.folder / f"{name}.shard", table.schema, compression="zstd")
            writer.write_table(table, row_group_size=ROW_GROUP)
            lengths.append(row_lengths(table))
            for content in filter(table.column_names.__contains__, FINGERPRINTED):
                column = table[content].combine_chunks()
                is_text = pa.types.is_string(column.type)
                digest.update("\n".join(column.to_pylist()).encode() if is_text else column.values.to_numpy().tobytes())
            digest.update(lengths[-1].tobytes())
        if writer is None:
            return Shard(name, split)
        writer.close()
        np.save(self.folder / f"{name}.npy", _joined(lengths))
        written = checksum(self.folder / f"{name}.shard", flush=True)
        return Shard(name, split, sum(map(len, lengths)), digest.hexdigest(), written)

    def ids(self, shard: Shard) -> np.ndarray:
        """Return the ids [rows] of a written shard."""
        column = pq.read_table(self.folder / f"{shard.name}.shard", columns=["id"])["id"]
        return column.to_numpy()

    def finish(self, shards: list[Shard], **entries: Any) -> Dataset:
        """Rename the ``shards``, join the lengths of each split, and write the manifest with the ``entries``."""
        shards = sorted((shard for shard in shards if shard.rows), key=lambda shard: shard.name)
        recipe = self.recipe.model_dump_json(exclude_none=True)
        content = [self.kind, recipe, *(f"{shard.split} {shard.digest}" for shard in shards)]
        by_split: dict[str, list[Shard]] = {"train": [], "valid": [], "test": []}
        for shard in shards:
            by_split.setdefault(shard.split, []).append(shard)
        manifest = {
            "format": FORMAT,
            "kind": self.kind,
            "fingerprint": hashlib.sha256("\n".join(content).encode()).hexdigest(),
            "recipe": self.recipe.model_dump(),
            "pieces": len(self.vocabulary),
            "rows": sum(shard.rows for shard in shards),
            **entries,
            "splits": {split: self._finish_split(split, own) for split, own in by_split.items() if own},
        }
        write_json(self.folder / MANIFEST, sealed(manifest))
        return Dataset.open(self.folder)

    def _finish_split(self, split: str, shards: list[Shard]) -> dict[str, Any]:
        entries, lengths = [], []
        for number, shard in enumerate(shards):
            name, written = f"{split}-{number:05d}.parquet", self.folder / f"{shard.name}.npy"
            (self.folder / f"{shard.name}.shard").rename(self.folder / name)
            entries.append({"file": name, "rows": shard.rows, **shard.written})
            lengths.append(np.load(written))
            written.unlink()
        file = self.folder / lengths_file(split)
        np.save(file, _joined(lengths))
        counts = sum((shard.counts for shard in shards), Counter[str]())
        rows, joined = sum(shard.rows for shard in shards), checksum(file, flush=True)
        return {"rows": rows, "shards": entries, "lengths": joined, "counts": dict(counts)}


def _joined(lengths: list[np.ndarray]) -> np.ndarray:
    """Return all lengths in one array, padded to the same width."""
    width = max(part.shape[1] for part in lengths)
    return np.concatenate([np.pad(part, ((0, 0), (0, width - part.shape[1]))) for part in lengths])
