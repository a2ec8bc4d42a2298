"""Find the sources, which are files and folders of raw clusters, at the paths that a user gives.

A source is a file, a folder of such files, or a folder DIR with `DIR/<cluster>/*`: one file a document, and optionally
`title.txt` and `summary.txt`. `samples` are the clusters that come with raysum, unless a folder of that name exists.
"""

import csv
import hashlib
import json
import re
import zlib
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import chain
from pathlib import Path

from raysum.errors import UserError
from raysum.runtime.remote import is_url
from raysum.sources.archives import archive_of, is_archive, member, unpacked
from raysum.sources.conversations import is_slack_export
from raysum.sources.documents.read import SUFFIXES
from raysum.sources.field_mapping import FieldMapping
from raysum.sources.folders import (
    Contents,
    ambiguous,
    cluster_folders,
    documents_of,
    is_about_folder,
    names_in,
    say_skipped,
)
from raysum.sources.formats import EXTENSIONS, FOLDERS, FORMATS, PAIRED, SLACK, TEXT, Format, format_by_name, format_of
from raysum.sources.pairing import summaries_beside
from raysum.sources.record import Record, split_of
from raysum.sources.staging import add_origin, origin_url, stage, staged_path, with_urls

DAMAGES = (OSError, EOFError, UnicodeDecodeError, zlib.error, csv.Error)  # raised by readers of damaged files
_ARROW_METADATA = ("dataset_dict.json", "dataset_info.json", "state.json")
_MIN_CLUSTERS = 2  # folders of documents beside rows that are clusters; a single one may describe the rows
_MAX_FOLDERS = 5  # in a message
_GROUP = 1 << 20  # bytes of text
_MAX_DEPTH = 3  # levels of folders searched for files of rows
_OWN_FILES = {"manifest.json", "config.yaml", "table.json", "search.yaml"}  # of raysum, beside files like rows
_SAMPLES = Path(__file__).parents[1] / "examples" / "samples"


@dataclass(frozen=True)
class RawSource:
    """A file, or a folder of clusters, that the reader of its format reads from beginning to end."""

    path: Path
    split: str | None  # by the name of the file or folder
    format: Format
    size: int  # bytes of text, about
    mapping: FieldMapping = FieldMapping()
    summaries: Path | None = None  # a file or folder with the summaries of the documents at ``path``
    archive: tuple[Path, Path] | None = None  # the folder with its content, and its path, if ``path`` is in it
    url: str = ""  # of a source on a store; ``path`` is then its placeholder in the process that found it
    staging: tuple[str, bool] = ("", False)  # arguments of ``stage`` in that process

    @property
    def name(self) -> str:
        """The URL, or the path, also in an archive, for messages."""
        return self.url or with_urls(str(self.path))

    def records(self) -> Iterator[Record]:
        """Yield the records. Raises UserError if the source is empty or damaged as a whole."""
        is_empty, path = True, staged_path(self.url) if self.url else self.path
        if self.url and not path.exists():  # in another process than the one that found it
            stage(*self.staging)
        if self.archive:
            add_origin(*self.archive)
            path = path if path.exists() else unpacked(self.archive[1]) / path.relative_to(self.archive[0])
        try:
            part = self.summaries or self.mapping.table
            for record in self.format.read(path, part) if part else self.format.read(path):
                if is_empty and self.format.is_table:
                    self.mapping.check_columns(path, record.raw)
                is_empty = False
                record = replace(record, where=with_urls(record.where)) if self.url or self.archive else record
                yield from self.mapping.apply(record)
        except DAMAGES as error:
            raise UserError(f"{self.name} cannot be read to its end ({error}); make or fetch the file again") from None
        except UserError as error:
            error.args = (with_urls(str(error)),)
            raise
        if is_empty:
            raise _empty(self.name)


def _empty(name: str | Path) -> UserError:
    return UserError(f"{name} is empty: it holds no cluster; remove it from the sources, or make it again")


def content_hash(sources: Iterable[RawSource]) -> str:
    """Return a hash of the names, sizes and times of all files of ``sources``."""
    paths = (path for source in sources for path in (source.path, source.summaries) if path)
    found = chain.from_iterable(sorted(path.rglob("*")) if path.is_dir() else [path] for path in paths)
    files = [(with_urls(str(file)), file.stat()) for file in found if file.is_file()]
    states = json.dumps([(name, state.st_size, state.st_mtime_ns) for name, state in files])
    return hashlib.sha256(states.encode(errors="backslashreplace")).hexdigest()


def in_groups(sources: Iterable[RawSource]) -> list[list[RawSource]]:
    """Return consecutive sources in groups of about 1 MiB, so that many small files are one task and one shard."""
    groups, size = list[list[RawSource]](), 0
    for source in sources:
        if not groups or size + source.size > _GROUP:
            groups.append([])
            size = 0
        groups[-1].append(source)
        size += source.size
    return groups


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
            if source.format in (FOLDERS, PAIRED, SLACK, FORMATS[TEXT]):
                mapping.check_texts(source.path)
    except UserError as error:
        error.args = (with_urls(str(error)),)
        raise
    if not sources:
        raise UserError(f"no source given; name files ({EXTENSIONS}) or folders of documents")
    return sources


def _sources_at(path: str | Path, mapping: FieldMapping) -> Iterator[RawSource]:
    if not is_url(path):
        yield from _expand(sample_path(Path(path).expanduser()), mapping)
        return
    form = FORMATS.get(mapping.format or "") or format_by_name(Path(path))
    staging = str(path), bool(form and form.needs_siblings)
    for staged in stage(*staging):
        for source in _expand(staged, mapping):
            yield replace(source, url=origin_url(source.path), staging=staging)


def holds_clusters(path: Path) -> bool:
    """Return whether ``path`` is a folder, an archive or a file of rows by its name, and not a document."""
    return path.is_dir() or is_archive(path) or format_by_name(path) is not None


def sample_path(path: Path) -> Path:
    """Return ``path``, or its location in the samples that come with raysum."""
    shipped = _SAMPLES.joinpath(*path.parts[1:])
    is_sample = path.parts[:1] == (_SAMPLES.name,) and not Path(_SAMPLES.name).exists()
    return shipped if is_sample and shipped.exists() else path


def _expand(path: Path, mapping: FieldMapping) -> list[RawSource]:
    """Return the sources at a path: one if it is a file, or a folder of clusters."""
    try:
        summaries = Path(mapping.summaries).expanduser() if mapping.summaries else None
        if summaries and not (summaries.is_dir() if path.is_dir() else summaries.is_file()):
            kind = "folder" if path.is_dir() else "file"
            raise UserError(f"--summaries {summaries} must be a {kind} like {path}, on this machine")
        if path.is_dir():
            form = FORMATS[TEXT] if mapping.format == TEXT else FOLDERS
            documents, summaries = (path, summaries) if summaries else summaries_beside(path) or (path, None)
            if summaries:
                size = sum(file.stat().st_size for file in documents.rglob("*") if file.is_file())
                return [RawSource(documents, _split_in_name(path), PAIRED, size, mapping, summaries)]
            if is_slack_export(path):
                size = sum(file.stat().st_size for file in path.rglob("*.json"))
                return [RawSource(path, None, SLACK, size, mapping)]
            if inner := _only_folder(path):
                return _expand(inner, mapping)
            items, clusters = _look_into(path, form is not FOLDERS)
            if not clusters:
                return [source for item in items for source in _expand(item, mapping)]
            files = documents_of(path, clusters, form is not FOLDERS)
            size = sum(file.stat().st_size for file in files if file.is_file())
            return [RawSource(path, _split_in_name(path), form, size, mapping)]
        if archive := archive_of(path):
            if not archive.stat().st_size:
                raise _empty(archive)
            folder = unpacked(archive)
            found = _expand(member(archive, path.relative_to(archive)), mapping)
            return [source if source.archive else replace(source, archive=(folder, archive)) for source in found]
        if not path.exists():
            raise UserError(with_urls(f"no such file or folder: {path}"))
        if not path.is_file():
            raise UserError(f"{path} is neither a file nor a folder; copy its content into a file")
        if path.stat().st_size == 0:
            raise _empty(path)
        if path.suffix == ".parquet":
            _refuse_dataset(path.parent, path)
        form = FORMATS["pairs"] if summaries else format_of(path, mapping.format)
        split = _split_in_name(path) or split_of(path.parent.name)
        return [RawSource(path, split, form, form.text_size(path), mapping, summaries)]
    except OSError as error:
        raise UserError(f"cannot read {error.filename or path}: {error.strerror}") from None


def _only_folder(folder: Path) -> Path | None:
    """Return the folder in ``folder`` if everything else is about it, and that folder has no documents of its own."""
    found = Contents.of(folder)
    is_wrapper = len(found.folders) == 1 and not found.document_folders and all(map(is_about_folder, found.files))
    return found.folders[0] if is_wrapper and not found.links else None


def _refuse_dataset(folder: Path, path: Path) -> None:
    """Raises UserError if ``folder`` is a dataset; ``path`` is the folder or a file in it."""
    if (folder / "manifest.json").is_file() and any(folder.glob("*.lengths.npy")):
        kind = "a dataset" if path == folder else "a shard of a dataset"
        raise UserError(f"{path} is {kind} made by `raysum prepare`; give the raw clusters that it was made from")


def _split_in_name(path: Path) -> str | None:
    """Return the split in a name such as `scisumm-valid.01.jsonl` or `TestSet.csv`; None if it has none or several."""
    words = re.findall(r"[A-Z]?[a-z]+|[A-Z]+", path.name)
    splits = {split for word in words if (split := split_of(word.lower().removesuffix("set")))}
    return splits.pop() if len(splits) == 1 else None


def _look_into(folder: Path, any_suffix: bool = False) -> tuple[list[Path], list[Path]]:
    """Return what to read of a folder: files of rows or folders of splits, otherwise the clusters, as folders.

    Raises UserError if it holds neither, or if it is not clear which of its items are the clusters.
    """
    _refuse_dataset(folder, folder)
    found = Contents.of(folder, any_suffix=any_suffix)
    if found.links:
        names = names_in(folder, found.links)
        say_skipped(folder, f"links out of the folder: {names}", "give the files they lead to")
    inner, splits = found.document_folders, [item for item in found.folders if split_of(item.name)]
    files = [file for file in found.files if _has_rows(file) and not any_suffix]
    # A .json file beside other files of rows, or beside clusters, is metadata.
    rows = [file for file in files if file.suffix != ".json"] or (files if len(inner) < _MIN_CLUSTERS else [])
    if rows and len(inner) >= _MIN_CLUSTERS:
        raise ambiguous(folder, rows, inner)
    if rows and (metadata := [file for file in files if file not in rows]):
        names = names_in(folder, metadata)
        say_skipped(folder, f"{names} beside other files of rows", "if it has rows, give it, too")
    clusters = [] if rows else cluster_folders(folder, any_suffix)
    if not any_suffix and (rows or clusters or not splits) and all(file.suffix == ".json" for file in rows):
        known = {*clusters} if len(clusters) >= _MIN_CLUSTERS else set[Path]()
        _check_below(folder, [item for item in found.folders if item not in known], ".json" if rows or clusters else "")
    if rows:
        return rows, []
    others = [item for item in (*found.files, *found.folders) if item not in splits]
    if splits and (
        not clusters or clusters == [folder] and any(cluster_folders(split, any_suffix) for split in splits)
    ):
        say_skipped(folder, names_in(folder, [item for item in others if item.name not in _ARROW_METADATA]))
        return splits, []
    if not clusters:
        only = f", only {names_in(folder, others)}" if others else ""
        raise UserError(
            f"{folder} holds neither files of clusters ({EXTENSIONS}) nor folders of documents "
            f"({', '.join(SUFFIXES)}){only}; give another folder, or the files to read"
        )
    return [], clusters


def _check_below(folder: Path, deeper: list[Path], ignored: str) -> None:
    """Raises UserError if ``deeper`` folders hold files of rows, except those with the suffix ``ignored``."""
    if found := [path for item in deeper for path in folders_of_rows(item, ignored)]:
        names = ", ".join(map(str, found[:_MAX_FOLDERS]))
        raise UserError(
            f"{folder} holds its files of rows in {names}: give that instead of {folder}, or move it elsewhere if it "
            "is not the data"
        )


def folders_of_rows(folder: Path, ignored: str = "", depth: int = _MAX_DEPTH) -> Iterator[Path]:
    """Yield the topmost folders with files of rows, except files with the suffix ``ignored`` and folders of raysum."""
    found = Contents([], [], [])
    with suppress(PermissionError):  # such as lost+found
        found = Contents.of(folder)
    if not depth or not _OWN_FILES.isdisjoint(file.name for file in found.files):
        return
    if any(_has_rows(file) and file.suffix != ignored for file in found.files):
        yield folder
        return
    for inner in found.folders:
        yield from folders_of_rows(inner, ignored, depth - 1)


def _has_rows(file: Path) -> bool:
    return bool(format_by_name(file)) and file.name not in _ARROW_METADATA
