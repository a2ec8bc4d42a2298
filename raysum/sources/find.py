"""Find the sources, which are files and folders of raw clusters, at the paths that a user gives.

A source is a file, a folder of such files, or a folder DIR with `DIR/<cluster>/*`: one file a document, and optionally
`title.txt` and `summary.txt`. `samples` are the clusters that come with raysum, unless a folder of that name exists.
"""

import csv
import re
import zlib
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path

from raysum.errors import UserError
from raysum.runtime.progress import say
from raysum.runtime.remote import is_url
from raysum.runtime.storage import converted
from raysum.sources.documents.read import SUFFIXES
from raysum.sources.field_mapping import FieldMapping
from raysum.sources.folders import (
    ambiguous,
    cluster_folders,
    document_folders,
    is_about_folder,
    links_out,
    read_folder,
    split_documents,
    visible_items,
)
from raysum.sources.formats import EXTENSIONS, FORMATS, format_by_name, format_of
from raysum.sources.record import Record, split_of
from raysum.sources.staging import downloaded, head, origin_url, stage, staged_path, with_urls

_ARROW_METADATA = ("dataset_dict.json", "dataset_info.json", "state.json")
_BINARY = {  # signatures of files that have the suffix of a text
    b"\x1f\x8b": "gzipped; let its name end in .gz",
    b"PK\x03\x04": "a zip archive; unpack it (a file saved by torch is called .pt)",
    b"PAR1": "Parquet; let its name end in .parquet",
    b"ARROW1": "Arrow; let its name end in .arrow",
}
_MIN_CLUSTERS = 2  # folders of documents beside rows that are clusters; a single one may describe the rows
_MAX_NAMES = 5  # in a message
_MAX_DEPTH = 3  # levels of folders searched for files of rows
_OWN_FILES = {
    "manifest.json",
    "config.yaml",
    "table.json",
    "search.yaml",
}  # of raysum, beside files that look like rows
_SAMPLES = Path(__file__).parents[1] / "examples" / "samples"


@dataclass(frozen=True)
class RawSource:
    """A file, or a folder of clusters, that one reader reads from beginning to end."""

    path: Path
    split: str | None  # by the name of the file or folder
    reader: Callable[[Path], Iterator[Record]]
    size: int  # bytes of text, about
    is_table: bool = False
    mapping: FieldMapping = FieldMapping()
    url: str = ""  # of a source on a store; ``path`` is then its placeholder in the process that found it
    staging: tuple[str, bool] = ("", False)  # arguments of ``stage`` in that process

    @property
    def name(self) -> str:
        """The URL or the path, for messages."""
        return self.url or str(self.path)

    def records(self) -> Iterator[Record]:
        """Yield the records. Raises UserError if the source is empty or damaged as a whole."""
        is_empty, path = True, staged_path(self.url) if self.url else self.path
        if self.url and not path.exists():  # in another process than the one that found it
            stage(*self.staging)
        try:
            with downloaded(path):
                for record in self.reader(path):
                    if is_empty and self.is_table and isinstance(record.raw, dict):
                        self.mapping.check_columns(path, record.raw)
                    is_empty = False
                    yield from self.mapping.apply(replace(record, where=with_urls(record.where)))
        except (OSError, EOFError, UnicodeDecodeError, zlib.error, csv.Error) as error:
            raise UserError(f"{self.name} cannot be read to its end ({error}); make or fetch the file again") from None
        except UserError as error:
            raise UserError(with_urls(str(error))) from None
        if is_empty:
            raise UserError(f"{self.name} is empty: it holds no cluster; remove it from the sources, or make it again")


def find_sources(
    paths: Iterable[str | Path],
    mapping: FieldMapping = FieldMapping(),  # noqa: B008 - it is frozen
) -> list[RawSource]:
    """Return the sources at ``paths`` in the given order; the files of a folder are in natural order.

    ``mapping`` maps the fields of their rows. Raises UserError if a path is missing, unreadable, empty or of an unknown
    format, or if ``mapping`` has paths and a source holds texts.
    """
    try:
        sources = [source for path in paths for source in _sources_at(path, mapping)]
        for source in sources:
            if source.reader is read_folder:
                mapping.check_texts(source.path)
    except UserError as error:
        raise UserError(with_urls(str(error))) from None
    if not sources:
        raise UserError(f"no source given; name files ({EXTENSIONS}) or folders of documents")
    return [replace(source, mapping=mapping) for source in sources]


def _sources_at(path: str | Path, mapping: FieldMapping) -> Iterator[RawSource]:
    if not is_url(path):
        yield from _expand(sample_path(Path(path).expanduser()), mapping)
        return
    form = FORMATS.get(mapping.format or "") or format_by_name(Path(path))
    staging = str(path), bool(form and form.needs_siblings)
    for staged in stage(*staging):
        for source in _expand(staged, mapping):
            yield replace(source, url=origin_url(source.path), staging=staging)


def sample_path(path: Path) -> Path:
    """Return ``path``, or its location in the samples that come with raysum."""
    shipped = _SAMPLES.joinpath(*path.parts[1:])
    is_sample = path.parts[:1] == (_SAMPLES.name,) and not Path(_SAMPLES.name).exists()
    return shipped if is_sample and shipped.exists() else path


def _expand(path: Path, mapping: FieldMapping) -> list[RawSource]:
    try:
        if path.is_dir():
            return _expand_folder(path, mapping)
        if not path.exists():
            raise UserError(f"no such file or folder: {path}")
        if not path.is_file():
            raise UserError(f"{path} is neither a file nor a folder; copy its content into a file")
        if path.stat().st_size == 0:
            raise UserError(f"{path} is empty: it holds no cluster; remove it from the sources, or make it again")
        if path.suffix == ".parquet":
            _refuse_dataset(path.parent, path)
        form = format_of(path, mapping.format)
        if form.is_plain_text(path):
            _check_text(head(path, 8), path)
        return [RawSource(path, _split_of_file(path), form.read, form.text_size(path), form.is_table)]
    except OSError as error:
        raise UserError(f"cannot read {error.filename or path}: {error.strerror}") from None


def _refuse_dataset(folder: Path, path: Path) -> None:
    """Raises UserError if ``folder`` is a dataset; ``path`` is the folder or a file in it."""
    if (folder / "manifest.json").is_file() and any(folder.glob("*.lengths.npy")):
        kind = "a dataset" if path == folder else "a shard of a dataset"
        raise UserError(f"{path} is {kind} made by `raysum prepare`; give the raw clusters that it was made from")


def _check_text(begin: bytes, path: Path) -> None:
    if kind := next((kind for signature, kind in _BINARY.items() if begin.startswith(signature)), None):
        raise UserError(f"{path} is not text, but {kind}")
    if (remedy := converted(begin, path)).startswith("it is"):
        raise UserError(f"{path} is not UTF-8 text; {remedy}")


def _expand_folder(folder: Path, mapping: FieldMapping) -> list[RawSource]:
    """Return the files of rows in ``folder``, or the folder itself if its folders hold documents, or the sources in its
    folders train, valid and test."""
    _refuse_dataset(folder, folder)
    if links := [item.name for item in links_out(folder, folder)]:
        names = ", ".join(links[:_MAX_NAMES])
        _say_once(with_urls(f"{folder}: skipped links out of the folder: {names}; give the files they lead to"))
    files = [item for item in visible_items(folder) if _has_rows(item)]
    inner = document_folders(folder)
    # A .json file beside other files of rows, or beside clusters, is metadata.
    rows = [item for item in files if item.suffix != ".json"] or (files if len(inner) < _MIN_CLUSTERS else [])
    if rows and len(inner) >= _MIN_CLUSTERS:
        raise ambiguous(folder, rows, inner)
    if rows and (metadata := [item.name for item in files if item not in rows]):
        _say_once(f"{folder}: skipped {', '.join(metadata)} beside other files of rows; if it has rows, give it, too")
    folders = [item for item in visible_items(folder) if item.is_dir()]
    splits = [item for item in folders if split_of(item.name)]
    clusters = [] if rows else cluster_folders(folder, inner)
    if rows or clusters or not splits:
        # A single folder of documents, or a .json file, may describe rows in deeper folders.
        candidates = folders if len(clusters) < _MIN_CLUSTERS else [item for item in folders if item not in clusters]
        if all(item.suffix == ".json" for item in rows):
            _check_below(folder, candidates, ".json" if rows or clusters else "")
    about = [item.name for item in visible_items(folder) if is_about_folder(item) and not item.is_dir()]
    if any(cluster_folders(item) for item in splits) if clusters == [folder] else about and splits and not clusters:
        _say_skipped(folder, [item.name for item in visible_items(folder) if item not in splits])
    elif clusters:
        documents, skipped = split_documents(folder, clusters)
        _say_skipped(folder, skipped)
        size = sum(file.stat().st_size for file in documents if file.is_file())
        return [RawSource(folder, _split_in_name(folder), read_folder, size)]
    if not rows and not splits:
        if about:
            raise UserError(
                f"{folder} holds no documents, but files about it ({_first_names(about)}); give the files to read"
            )
        raise UserError(
            f"{folder} holds neither files of clusters ({EXTENSIONS}) nor folders of documents "
            f"({', '.join(SUFFIXES)}); give another folder"
        )
    return [source for item in rows or splits for source in _expand(item, mapping)]


def _check_below(folder: Path, inner: list[Path], ignored: str) -> None:
    """Raises UserError if folders in ``inner``, or deeper ones, hold files of rows.

    Files with the suffix ``ignored`` and folders written by raysum do not count.
    """
    folders_of_rows, level = list[Path](), inner
    for _ in range(_MAX_DEPTH):
        contents = {path: _readable_items(path) for path in level}
        for path in [*contents]:
            if not _OWN_FILES.isdisjoint(item.name for item in contents[path]):
                del contents[path]
            elif any(_has_rows(item) and item.suffix != ignored for item in contents[path]):
                folders_of_rows.append(path)
                del contents[path]
        level = [item for inside in contents.values() for item in inside if item.is_dir()]
    if folders_of_rows:
        names = _first_names(list(map(str, folders_of_rows)))
        raise UserError(
            f"{folder} holds its files of rows in {names}: give that instead of {folder}, or move it elsewhere "
            "if it is not the data"
        )


def _readable_items(folder: Path) -> list[Path]:
    with suppress(PermissionError):  # such as lost+found
        return visible_items(folder)
    return []


def _has_rows(item: Path) -> bool:
    return bool(format_by_name(item)) and item.name not in _ARROW_METADATA and not item.is_dir()


def _first_names(names: list[str]) -> str:
    return ", ".join(names[:_MAX_NAMES]) + f" and {len(names) - _MAX_NAMES} more" * (len(names) > _MAX_NAMES)


def _say_skipped(folder: Path, names: list[str]) -> None:
    if names:
        exception = " except files such as README" * any(is_about_folder(Path(name)) for name in names)
        suffixes = ", ".join(SUFFIXES)
        _say_once(with_urls(f"{folder}: skipped {_first_names(names)}; documents are {suffixes}{exception}"))


@cache
def _say_once(message: str) -> None:
    say(message)


def _split_of_file(path: Path) -> str | None:
    return _split_in_name(path) or split_of(path.parent.name)


def _split_in_name(path: Path) -> str | None:
    """Return the split in a file name such as `scisumm-valid.01.jsonl.gz`, or None if it has none or several."""
    splits = {split for word in re.split(r"[^a-z]+", path.name.lower()) if (split := split_of(word))}
    return splits.pop() if len(splits) == 1 else None
