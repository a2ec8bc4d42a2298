"""A dataset: the folder that `prepare` writes and everything else reads. pyarrow and numpy only."""

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq

from raysum.data.recipe import Recipe, read_recipe
from raysum.data.rows import read_group, table_rows
from raysum.errors import UserError

MANIFEST = "manifest.json"
VOCABULARY = "vocabulary.model"
REJECTED = "rejected.jsonl"
FORMAT = 2  # of the manifest and the columns; 1 had titles told by their mark alone, and facts among the columns
ROW_GROUP = 64  # rows: what is read from a shard at once; every group of a shard but its last has so many


@dataclass(frozen=True, eq=False)
class Dataset:
    """Shards, lengths, vocabulary and manifest of one `raysum prepare`."""

    path: Path
    manifest: dict[str, Any]

    @classmethod
    def open(cls, path: str | Path) -> "Dataset":
        """Raises UserError where ``path`` is missing, is no dataset, or lacks files that its manifest names."""
        folder = Path(path).expanduser().absolute()
        if not folder.exists():
            raise UserError(f"no dataset {path}; make one with `raysum prepare SOURCE --out {path}`")
        if not (folder / MANIFEST).is_file():
            raise UserError(f"{path} is not a dataset: it has no {MANIFEST}; make one with `raysum prepare`")
        try:
            manifest = json.loads((folder / MANIFEST).read_text(encoding="utf-8"))
            version = manifest["format"]
            named = [shard["file"] for split in manifest["splits"].values() for shard in split["shards"]]
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise UserError(f"{folder / MANIFEST} does not read ({error}); prepare the dataset again") from None
        if version not in (1, FORMAT):
            raise UserError(f"{path} has dataset format {version}, this raysum reads {FORMAT}; prepare it again")
        lengths = [f"{split}.lengths.npy" for split in manifest["splits"]]
        missing = [name for name in (VOCABULARY, *named, *lengths) if not (folder / name).is_file()]
        if missing:
            raise UserError(f"{path} is incomplete: it lacks {', '.join(missing[:3])}; copy or prepare it again")
        return cls(folder, manifest)

    @property
    def kind(self) -> str:
        return self.manifest["kind"]

    @cached_property
    def recipe(self) -> Recipe:
        return read_recipe(self.manifest["recipe"], str(self.path))

    @property
    def fingerprint(self) -> str:
        """Hash of the recipe and of every row's tokens, in order."""
        return self.manifest["fingerprint"]

    @property
    def vocabulary_path(self) -> Path:
        return self.path / VOCABULARY

    @property
    def vocabulary_hash(self) -> str:
        return self.recipe.vocabulary_sha256

    @property
    def splits(self) -> list[str]:
        return list(self.manifest["splits"])

    def split(self, name: str | None) -> str:
        """``name`` if the dataset has it; without a name the only split. Raises UserError naming the splits."""
        if name is None and len(self.splits) == 1:
            return self.splits[0]
        if name not in self.splits:
            asked = "several splits, name one of them" if name is None else f"no split {name!r}"
            raise UserError(f"{self.path} has {asked}: {', '.join(self.splits)}")
        return name

    def files(self, split: str) -> list[Path]:
        return [self.path / shard["file"] for shard in self._shards(split)]

    def rows(self, split: str) -> int:
        return sum(shard["rows"] for shard in self._shards(split))

    def references(self, split: str) -> int:
        """Rows that have a reference summary."""
        return int(np.count_nonzero(self.lengths(split)[:, 2]))

    def lengths(self, split: str) -> np.ndarray:
        """[rows, 3] int32 in file order: source tokens, paragraphs, target tokens (BOS and EOS counted)."""
        return np.load(self.path / f"{self.split(split)}.lengths.npy")

    def row_groups(self, split: str) -> list[tuple[Path, int, int]]:
        """File, index in it and rows of each row group, in file order."""
        return [
            (self.path / shard["file"], group, min(ROW_GROUP, shard["rows"] - start))
            for shard in self._shards(split)
            for group, start in enumerate(range(0, shard["rows"], ROW_GROUP))
        ]

    def read(self, split: str, columns: Sequence[str] | None = None) -> Iterator[Any]:
        """Rows in file order (see raysum.data.rows), with ``columns`` alone where given, a row group at a time."""
        for file in self.files(split):
            with pq.ParquetFile(file) as shard:
                for group in range(shard.num_row_groups):
                    yield from table_rows(read_group(shard, group, columns))

    def _shards(self, split: str) -> list[dict[str, Any]]:
        return self.manifest["splits"][self.split(split)]["shards"]
