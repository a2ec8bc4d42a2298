"""Datasets: the folders that `prepare` writes. This module imports only pyarrow and numpy."""

import zlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache, cached_property, lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from raysum.data.recipe import RANKER, Recipe, read_recipe
from raysum.data.rows import read_group, table_rows
from raysum.errors import UserError
from raysum.runtime.checksums import check_file, check_sealed, damaged, is_whole
from raysum.runtime.remote import address, check_bucket, fetch, is_version, listed, local, read, shown, url_of, version
from raysum.runtime.storage import read_json

MANIFEST = "manifest.json"
VOCABULARY = "vocabulary.model"
REJECTED = "rejected.jsonl"
FORMAT = 2  # of the manifest and the columns; format 1 has no column for title lengths, and a column `facts`
ROW_GROUP = 64  # rows of each row group, except the last one of a shard

_TYPES: dict[str, type] = {  # of required manifest entries
    "format": int,
    "kind": str,
    "fingerprint": str,
    "recipe": dict,
    "splits": dict,
}
_MAX_NAMES = 3  # files in a message
_REMEDY = "put back a copy, or prepare the dataset again"


@dataclass(frozen=True, eq=False)
class Dataset:
    """The shards, lengths, vocabulary and manifest written by one `raysum prepare`."""

    path: Path
    manifest: dict[str, Any]

    @classmethod
    def open(cls, path: str | Path) -> "Dataset":
        """Return the dataset at ``path``. If it is a URL, lengths and shards are downloaded when they are first read.

        Raises UserError if ``path`` is missing, is not a dataset, or lacks files of its manifest.
        """
        folder = local_folder(path)
        if not folder.exists():
            raise UserError(f"no dataset {path}; make one with `raysum prepare SOURCE --out {path}`")
        if not (folder / MANIFEST).is_file():
            raise UserError(f"{path} is not a dataset: it has no {MANIFEST}; make one with `raysum prepare`")
        manifest = _validated(read_json(folder / MANIFEST), folder / MANIFEST)
        dataset = cls(folder, manifest)
        hashes = {VOCABULARY: dataset.vocabulary_hash, RANKER: dataset.recipe.ranker_sha256}
        hashes = {name: digest for name, digest in hashes.items() if digest}
        names = (*hashes, *_files(manifest)) if url_of(folder) is None else ()
        if missing := [name for name in names if not (folder / name).is_file()]:
            raise UserError(f"{path} is incomplete: it lacks {', '.join(missing[:_MAX_NAMES])}; {_REMEDY}")
        for name, digest in hashes.items():
            file, expected = folder / name, {"sha256": digest}
            if not is_whole(fetch(file, expected), expected):
                if url_of(file) is None:
                    raise damaged(file, f"is not the {Path(name).stem} of the dataset", _REMEDY)
                fetch(file, expected, replace=True)  # the local copy is damaged
        return dataset

    @property
    def address(self) -> str:
        """The path or URL that opens this version of the dataset on any machine."""
        return address(self.path)

    @property
    def place(self) -> str:
        """The path or URL for messages."""
        return shown(self.path)

    @property
    def kind(self) -> str:
        return self.manifest["kind"]

    @cached_property
    def recipe(self) -> Recipe:
        return read_recipe(self.manifest["recipe"], str(self.path))

    @property
    def fingerprint(self) -> str:
        """The hash of the recipe and of the tokens of all rows in order."""
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
        """Return ``name`` if it is a split; without a name, the only split. Otherwise raises UserError."""
        if name is None and len(self.splits) == 1:
            return self.splits[0]
        if name not in self.splits:
            problem = "several splits" if name is None else f"no split {name!r}"
            prepare = "`raysum prepare` the sources again with"
            remedy = f"{prepare} --split=train" if name == "train" else "choose one with --split (searches: split=)"
            remedy += f", or {prepare} --{name}=0.1" if name in ("valid", "test") else ""
            raise UserError(f"{self.place} has {problem}: {', '.join(self.splits)}; {remedy}")
        return name

    def files(self, split: str) -> list[Path]:
        return [self.path / shard["file"] for shard in self._shards(split)]

    def rows(self, split: str) -> int:
        return sum(shard["rows"] for shard in self._shards(split))

    def references(self, split: str) -> int:
        """Return the number of rows with a reference summary."""
        return int(np.count_nonzero(self.lengths(split)[:, 2]))

    def lengths(self, split: str) -> np.ndarray:
        """Return [rows, 3] int32 in file order: source tokens, paragraphs, target tokens (with BOS and EOS)."""
        return self._lengths(split)[:, :3]

    def reference_lengths(self, split: str) -> np.ndarray:
        """Return [rows, R] target tokens of each reference of a row, padded with 0."""
        return self._lengths(split)[:, 2:]

    def _lengths(self, split: str) -> np.ndarray:
        file = self.path / lengths_file(self.split(split))
        with self._reading(file):
            check_file(self._fetched(file), self._entries[file.name])
            lengths = np.load(file)
            if lengths.ndim != 2 or len(lengths) != self.rows(split) or lengths.shape[1] < 3:
                raise ValueError(f"it is of shape {lengths.shape}")
        return lengths

    def row_groups(self, split: str) -> list[tuple[Path, int, int]]:
        """Return the file, the index in the file and the number of rows of each row group, in file order."""
        return [
            (file, group, min(ROW_GROUP, shard["rows"] - start))
            for file, shard in zip(self.files(split), self._shards(split), strict=True)
            for group, start in enumerate(range(0, shard["rows"], ROW_GROUP))
        ]

    def read(self, split: str, columns: Sequence[str] | None = None) -> Iterator[Any]:
        """Yield the rows in file order (see raysum.data.rows), reading a row group at a time; None: all ``columns``."""
        for file in self.files(split):
            with self.shard(file) as shard:
                for group in range(shard.num_row_groups):
                    yield from table_rows(read_group(shard, group, columns))

    def check_shards(self) -> None:
        """Verify quickly: the sizes of all files, and the content of files that are newer than the manifest.

        Raises UserError with the names of missing and changed files.
        """
        if url := url_of(self.path):
            sizes, entries = {name: size for name, (size, _) in listed(url).items()}, sorted(self._entries.items())
            if wrong := [n for n, entry in entries if n not in sizes or entry.get("bytes", sizes[n]) != sizes[n]]:
                names = ", ".join(wrong[:_MAX_NAMES])
                raise UserError(f"{url} is incomplete: missing or changed are {names}; {_REMEDY}")
            return
        written, problems = (self.path / MANIFEST).stat().st_mtime_ns, []
        for name, entry in self._entries.items():
            file, expected = self.path / name, dict(entry)
            try:
                with self._reading(file):
                    if file.stat().st_mtime_ns <= written:
                        expected.pop("crc32", None)
                check_file(file, expected)
            except UserError as error:
                problems.append(str(error).partition(";")[0])
        if problems:
            more = f" and {len(problems) - _MAX_NAMES} more" if len(problems) > _MAX_NAMES else ""
            raise UserError(f"{', '.join(problems[:_MAX_NAMES])}{more}; {_REMEDY}")

    def check(self, file: Path) -> None:
        """Raises UserError if the shard ``file`` is damaged."""
        with self.shard(file):
            pass

    @contextmanager
    def shard(self, file: Path) -> Iterator[pq.ParquetFile]:
        """Open the shard ``file``, and verify its checksum when this process first opens it.

        Raises UserError if it is damaged, also for errors while the block reads from it.
        """
        with self._reading(file):
            status, entry = self._fetched(file).stat(), self._entries[file.name]
            state = file, status.st_size, status.st_mtime_ns
            _check_once(*state, tuple(self._checksums(file).items()))
            metadata = _metadata(*state)
            if metadata.num_rows != entry["rows"]:
                raise ValueError(f"it has {metadata.num_rows} rows of {entry['rows']}")
            with pq.ParquetFile(file, metadata=metadata, memory_map=True) as shard:
                yield shard

    def size(self, file: Path) -> int:
        """Return the bytes of the shard ``file``."""
        return self._entries[file.name].get("bytes") or self._fetched(file).stat().st_size

    def _fetched(self, file: Path) -> Path:
        return fetch(file, self._checksums(file))

    def _checksums(self, file: Path) -> dict[str, int]:
        return {name: value for name, value in self._entries[file.name].items() if name in ("bytes", "crc32")}

    @cached_property
    def _entries(self) -> dict[str, dict[str, Any]]:
        return _files(self.manifest)

    @contextmanager
    def _reading(self, file: Path) -> Iterator[None]:
        try:
            yield
        except UserError:
            raise
        except (OSError, ValueError, EOFError, pa.ArrowException) as error:
            raise damaged(file, f"is damaged ({error})", _REMEDY) from None

    def _shards(self, split: str) -> list[dict[str, Any]]:
        return self.manifest["splits"][self.split(split)]["shards"]


def local_folder(path: str | Path) -> Path:
    """Return the local folder of a dataset. A URL gets a folder for the version on the store, with its manifest.

    ``path`` may be an ``address``, which names a version. Raises UserError if the store does not have that dataset or
    version.
    """
    folder = local(path)
    if (url := url_of(folder)) is None or (folder / MANIFEST).is_file():
        return folder
    content = read(f"{url}/{MANIFEST}")
    if content is None:
        check_bucket(url)
        unfinished = " (its preparation was not finished)" if listed(url) else ""
        raise UserError(f"no dataset {url}{unfinished}; make one with `raysum prepare SOURCE --out {url}`")
    state = version(folder.parent if is_version(folder) else folder, content)
    if is_version(folder) and state != folder:
        raise UserError(f"{url} was replaced while it was read; start again")
    if not (state / MANIFEST).is_file():
        fetch(state / MANIFEST, {"bytes": len(content), "crc32": zlib.crc32(content)})
    return state


def _validated(manifest: Any, path: Path) -> dict[str, Any]:
    """Return the manifest read from ``path``. Raises UserError if it is damaged, incomplete, or of another version."""
    version = manifest.get("format") if isinstance(manifest, dict) else None
    if version not in (None, 1, FORMAT):
        raise UserError(f"{path} has dataset format {version}, but this raysum reads {FORMAT}; prepare it again")
    manifest = check_sealed(manifest, path)
    try:
        wrong = [name for name, kind in _TYPES.items() if not isinstance(manifest[name], kind)]
        wrong += [name for name, entry in _files(manifest).items() if not isinstance(entry.get("rows", 0), int)]
    except (KeyError, TypeError, AttributeError) as error:
        raise damaged(path, f"is damaged: it lacks {error}", _REMEDY) from None
    if wrong:
        raise damaged(path, f"is damaged: {wrong[0]} is not of its type", _REMEDY)
    return manifest


def _files(manifest: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """Return the manifest entry of each file: its ``rows``, and ``bytes`` and ``crc32`` except in old datasets."""
    shards = {shard["file"]: shard for split in manifest["splits"].values() for shard in split["shards"]}
    return shards | {lengths_file(name): split.get("lengths", {}) for name, split in manifest["splits"].items()}


def lengths_file(split: str) -> str:
    return f"{split}.lengths.npy"


@cache
def _check_once(file: Path, size: int, changed: int, expected: tuple[tuple[str, int], ...]) -> None:
    """Call ``check_file`` once per process, and again only if the size or the time of the file has changed."""
    check_file(file, dict(expected))


@lru_cache(maxsize=64)
def _metadata(file: Path, size: int, changed: int) -> pq.FileMetaData:
    return pq.read_metadata(file)
