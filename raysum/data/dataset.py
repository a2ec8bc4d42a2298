"""A dataset: the folder that `prepare` writes and everything else reads. pyarrow and numpy only."""

import json
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
FORMAT = 2  # of the manifest and the columns; 1 had titles told by their mark alone, and facts among the columns
ROW_GROUP = 64  # rows: what is read from a shard at once; every group of a shard but its last has so many

_TOLD: dict[str, type] = {
    "format": int,
    "kind": str,
    "fingerprint": str,
    "recipe": dict,
    "splits": dict,
}
_NAMED = 3  # files in one message
_MEND = "put back a copy, or prepare the dataset again"


@dataclass(frozen=True, eq=False)
class Dataset:
    """Shards, lengths, vocabulary and manifest of one `raysum prepare`."""

    path: Path
    manifest: dict[str, Any]

    @classmethod
    def open(cls, path: str | Path) -> "Dataset":
        """Of a URL what is kept here of it: all but lengths and shards, which are fetched when they are first read.

        Raises UserError where ``path`` is missing, is no dataset, or lacks files that its manifest names.
        """
        folder = located(path)
        if not folder.exists():
            raise UserError(f"no dataset {path}; make one with `raysum prepare SOURCE --out {path}`")
        if not (folder / MANIFEST).is_file():
            raise UserError(f"{path} is not a dataset: it has no {MANIFEST}; make one with `raysum prepare`")
        manifest = _checked(read_json(folder / MANIFEST), folder / MANIFEST)
        named = [VOCABULARY, *([RANKER] if manifest["recipe"].get("ranker_sha256") else []), *_files(manifest)]
        missing = [name for name in named if not (folder / name).is_file()] if url_of(folder) is None else []
        if missing:
            raise UserError(f"{path} is incomplete: it lacks {', '.join(missing[:_NAMED])}; {_MEND}")
        dataset = cls(folder, manifest)
        for name, told in ((VOCABULARY, dataset.vocabulary_hash), (RANKER, dataset.recipe.ranker_sha256)):
            file, what = folder / name, {"sha256": told}
            if told and not is_whole(fetch(file, what), what):
                if url_of(file) is None:
                    raise damaged(file, f"is not the {Path(name).stem} of the dataset", _MEND)
                fetch(file, what, replace=True)  # the copy here is damaged
        return dataset

    @property
    def address(self) -> str:
        """What opens this state of it on any machine: a path, or a URL."""
        return address(self.path)

    @property
    def place(self) -> str:
        """Where it is, for people."""
        return shown(self.path)

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
            asked = "several splits" if name is None else f"no split {name!r}"
            again = "`raysum prepare` the sources again with"
            mend = f"{again} --split=train" if name == "train" else "name one by --split"
            mend += f", or {again} --{name}=0.1" if name in ("valid", "test") else ""
            raise UserError(f"{self.place} has {asked}: {', '.join(self.splits)}; {mend}")
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
        return self._lengths(split)[:, :3]

    def reference_lengths(self, split: str) -> np.ndarray:
        """[rows, R] target tokens of each reference of a row, 0 where it has fewer."""
        return self._lengths(split)[:, 2:]

    def _lengths(self, split: str) -> np.ndarray:
        file = self.path / lengths_file(self.split(split))
        with self._reading(file):
            check_file(self._fetched(file), self._told[file.name])
            lengths = np.load(file)
            if lengths.ndim != 2 or len(lengths) != self.rows(split) or lengths.shape[1] < 3:
                raise ValueError(f"it is of shape {lengths.shape}")
        return lengths

    def row_groups(self, split: str) -> list[tuple[Path, int, int]]:
        """File, index in it and rows of each row group, in file order."""
        return [
            (file, group, min(ROW_GROUP, shard["rows"] - start))
            for file, shard in zip(self.files(split), self._shards(split), strict=True)
            for group, start in enumerate(range(0, shard["rows"], ROW_GROUP))
        ]

    def read(self, split: str, columns: Sequence[str] | None = None) -> Iterator[Any]:
        """Rows in file order (see raysum.data.rows), with ``columns`` alone where given, a row group at a time."""
        for file in self.files(split):
            with self.shard(file) as shard:
                for group in range(shard.num_row_groups):
                    yield from table_rows(read_group(shard, group, columns))

    def check_shards(self) -> None:
        """What is soon known of all files: their sizes, and the content of those that are younger than the manifest.

        Raises UserError naming each that is not what was written.
        """
        if url := url_of(self.path):
            there, told = listed(url), self._told
            sound = {name for name in there.keys() & told.keys() if told[name].get("bytes") in (None, there[name][0])}
            if lost := sorted(told.keys() - sound):
                raise UserError(f"{url} is incomplete: not as written are {', '.join(lost[:_NAMED])}; {_MEND}")
            return
        written, wrong = (self.path / MANIFEST).stat().st_mtime_ns, []
        for file in (self.path / name for name in self._told):
            told = dict(self._told[file.name])
            try:
                with self._reading(file):
                    if file.stat().st_mtime_ns <= written:
                        told.pop("crc32", None)
                check_file(file, told)
            except UserError as error:
                wrong.append(str(error).partition(";")[0])
        if wrong:
            more = f" and {len(wrong) - _NAMED} more" if len(wrong) > _NAMED else ""
            raise UserError(f"{', '.join(wrong[:_NAMED])}{more}; {_MEND}")

    def check(self, file: Path) -> None:
        """Raises UserError where one of ``files`` is damaged."""
        with self.shard(file):
            pass

    @contextmanager
    def shard(self, file: Path) -> Iterator[pq.ParquetFile]:
        """One of ``files`` to read from, checked when this process opens it first.

        Raises UserError where it is damaged, also for what is found out in the block.
        """
        with self._reading(file):
            found, told = self._fetched(file).stat(), self._told[file.name]
            state = file, found.st_size, found.st_mtime_ns
            _check_once(*state, tuple((name, told[name]) for name in ("bytes", "crc32") if name in told))
            metadata = _metadata(*state)
            if metadata.num_rows != told["rows"]:
                raise ValueError(f"it has {metadata.num_rows} rows of {told['rows']}")
            with pq.ParquetFile(file, metadata=metadata, memory_map=True) as shard:
                yield shard

    def size(self, file: Path) -> int:
        """Bytes of one of ``files``."""
        return self._told[file.name].get("bytes") or self._fetched(file).stat().st_size

    def _fetched(self, file: Path) -> Path:
        told = self._told[file.name]
        return fetch(file, {name: told[name] for name in ("bytes", "crc32") if name in told})

    @cached_property
    def _told(self) -> dict[str, dict[str, Any]]:
        return _files(self.manifest)

    @contextmanager
    def _reading(self, file: Path) -> Iterator[None]:
        try:
            yield
        except UserError:
            raise
        except (OSError, ValueError, EOFError, pa.ArrowException) as error:
            raise damaged(file, f"is damaged ({error})", _MEND) from None

    def _shards(self, split: str) -> list[dict[str, Any]]:
        return self.manifest["splits"][self.split(split)]["shards"]


def located(path: str | Path) -> Path:
    """Where the dataset is on this machine. Of a URL that is the place of the state that is on the store now, or that
    an ``address`` tells, with its manifest.

    Raises UserError where there is none on the store, or no longer in that state.
    """
    folder = local(path)
    if (url := url_of(folder)) is None or (folder / MANIFEST).is_file():
        return folder
    content = read(f"{url}/{MANIFEST}")
    if content is None:
        check_bucket(url)
        unfinished = " (what is there was not finished)" if listed(url) else ""
        raise UserError(f"no dataset {url}{unfinished}; make one with `raysum prepare SOURCE --out {url}`")
    state = version(folder.parent if is_version(folder) else folder, content)
    if is_version(folder) and state != folder:
        raise UserError(f"{url} was replaced while it was read; start again")
    if not (state / MANIFEST).is_file():
        _checked(_parsed(content, url), Path(MANIFEST))
        fetch(state / MANIFEST, {"bytes": len(content), "crc32": zlib.crc32(content)})
    return state


def _parsed(content: bytes, url: str) -> Any:
    try:
        return json.loads(content)
    except ValueError as error:
        raise UserError(f"{url}/{MANIFEST} does not read as JSON: {error}") from None


def _checked(manifest: Any, path: Path) -> dict[str, Any]:
    """What was read from ``path``. Raises UserError where it is no manifest, damaged, or of another version."""
    version = manifest.get("format") if isinstance(manifest, dict) else None
    if version not in (None, 1, FORMAT):
        raise UserError(f"{path} tells dataset format {version}, this raysum reads {FORMAT}; prepare it again")
    manifest = check_sealed(manifest, path)
    try:
        wrong = [name for name, kind in _TOLD.items() if not isinstance(manifest[name], kind)]
        wrong += [name for name, told in _files(manifest).items() if not isinstance(told.get("rows", 0), int)]
    except (KeyError, TypeError, AttributeError) as error:
        raise damaged(path, f"is damaged: it lacks {error}", _MEND) from None
    if wrong:
        raise damaged(path, f"is damaged: {wrong[0]} is not of its type", _MEND)
    return manifest


def _files(manifest: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """What the manifest tells of each file: ``bytes`` and ``crc32``, which are younger than format 2; ``rows``."""
    shards = {shard["file"]: shard for split in manifest["splits"].values() for shard in split["shards"]}
    return shards | {lengths_file(name): split.get("lengths", {}) for name, split in manifest["splits"].items()}


def lengths_file(split: str) -> str:
    return f"{split}.lengths.npy"


@cache
def _check_once(file: Path, size: int, changed: int, told: tuple[tuple[str, int], ...]) -> None:
    """As :func:`check_file`, once in this process for each content of the file, as its size and time tell."""
    check_file(file, dict(told))


@lru_cache(maxsize=64)
def _metadata(file: Path, size: int, changed: int) -> pq.FileMetaData:
    return pq.read_metadata(file)
