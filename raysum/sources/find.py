"""Sources: files and folders that hold raw clusters, found behind the paths that a user gives.

A source is a file, a folder of such files, or a folder DIR with `DIR/<cluster>/*`: a file a document, and `title.txt`
and `summary.txt` beside them where there are any. `samples` are the clusters that come with raysum, unless there is a
folder of that name.
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
from raysum.sources.folders import (
    cluster_folders,
    document_folders,
    is_about,
    links_out,
    listed,
    parted,
    read_folder,
    unclear,
)
from raysum.sources.formats import FORMATS, TOLD, format_of, named
from raysum.sources.record import Record, split_of
from raysum.sources.shape import Shape
from raysum.sources.staging import as_asked, head, origin, placed, present, stand_in

_OF_ARROW = ("dataset_dict.json", "dataset_info.json", "state.json")  # tell of the data beside or below them
_NO_TEXT = {  # what files begin with that have the name of a text
    b"\x1f\x8b": "gzipped; let its name end in .gz",
    b"PK\x03\x04": "a zip archive; unpack it (what torch has saved is called .pt)",
    b"PAR1": "Parquet; let its name end in .parquet",
    b"ARROW1": "Arrow; let its name end in .arrow",
}
_SEVERAL = 2  # folders of documents that are clusters rather than what lies beside rows
_SHOWN = 5  # names in a line
_DEEPEST = 3  # levels of folders in which files of rows are looked for
_WRITTEN = {"manifest.json", "config.yaml", "table.json", "search.yaml"}  # by raysum, with files that look like rows
_SAMPLES = Path(__file__).parents[1] / "examples" / "samples"


@dataclass(frozen=True)
class RawSource:
    """A file, or a folder of clusters, that one reader reads from beginning to end."""

    path: Path
    split: str | None  # told by the name of the file or folder
    reader: Callable[[Path], Iterator[Record]]
    size: int  # bytes of text, about
    table: bool = False
    shape: Shape = Shape()
    url: str = ""  # of a source on a store, for which ``path`` stands in the process that found it
    asked: tuple[str, bool] = ("", False)  # what it was found by there

    @property
    def name(self) -> str:
        """As people know it, on any machine."""
        return self.url or str(self.path)

    def records(self) -> Iterator[Record]:
        """Raises UserError where the whole source is empty or damaged."""
        empty, path = True, stand_in(self.url) if self.url else self.path
        if self.url and not path.exists():  # in another process than the one that found it
            placed(*self.asked)
        try:
            with present(path):
                for record in self.reader(path):
                    if empty and self.table and isinstance(record.raw, dict):
                        self.shape.check_columns(path, record.raw)
                    empty = False
                    yield from self.shape.applied(replace(record, where=as_asked(record.where)))
        except (OSError, EOFError, UnicodeDecodeError, zlib.error, csv.Error) as error:
            raise UserError(f"{self.name} does not read to its end ({error}); make or fetch the file again") from None
        except UserError as error:
            raise UserError(as_asked(str(error))) from None
        if empty:
            raise UserError(f"{self.name} is empty: it holds no cluster")


def find_sources(paths: Iterable[str | Path], shape: Shape = Shape()) -> list[RawSource]:  # noqa: B008 - it is frozen
    """The sources behind ``paths``, folders expanded, in the order given and by natural sort within a folder.

    ``shape`` is that of their rows.

    Raises UserError where a path is missing, unreadable, empty or of no known format, or ``shape`` has paths for texts.
    """
    try:
        sources = [source for path in paths for source in _found(path, shape)]
        for source in sources:
            if source.reader is read_folder:
                shape.check_texts(source.path)
    except UserError as error:
        raise UserError(as_asked(str(error))) from None
    if not sources:
        raise UserError(f"no source given; name files ({TOLD}) or folders of documents")
    return [replace(source, shape=shape) for source in sources]


def _found(path: str | Path, shape: Shape) -> Iterator[RawSource]:
    if not is_url(path):
        yield from _expand(place(Path(path).expanduser()), shape)
        return
    form = FORMATS.get(shape.format or "") or named(Path(path))
    asked = str(path), bool(form and form.beside)
    for here in placed(*asked):
        yield from (replace(one, url=origin(one.path), asked=asked) for one in _expand(here, shape))


def place(path: Path) -> Path:
    """``path``, or where it is in the samples that come with raysum."""
    shipped = _SAMPLES.joinpath(*path.parts[1:])
    asked = path.parts[:1] == (_SAMPLES.name,) and not Path(_SAMPLES.name).exists()
    return shipped if asked and shipped.exists() else path


def _expand(path: Path, shape: Shape) -> list[RawSource]:
    try:
        if path.is_dir():
            return _expand_folder(path, shape)
        if not path.exists():
            raise UserError(f"no such file or folder: {path}")
        if not path.is_file():
            raise UserError(f"{path} is neither a file nor a folder; copy what it gives into a file")
        if path.stat().st_size == 0:
            raise UserError(f"{path} is empty: it holds no cluster")
        if path.suffix == ".parquet":
            _check_raw(path.parent, path)
        found = format_of(path, shape.format)
        if found.is_text(path):
            _check_text(head(path, 8), path)
        return [RawSource(path, _split_of(path), found.read, found.size_of_text(path), found.table)]
    except OSError as error:
        raise UserError(f"cannot read {error.filename or path}: {error.strerror}") from None


def _check_raw(folder: Path, given: Path) -> None:
    if (folder / "manifest.json").is_file() and any(folder.glob("*.lengths.npy")):
        what = "a dataset" if given == folder else "a shard of a dataset"
        raise UserError(f"{given} is {what} that `raysum prepare` has made; name the raw clusters it was made of")


def _check_text(begin: bytes, path: Path) -> None:
    if what := next((told for known, told in _NO_TEXT.items() if begin.startswith(known)), None):
        raise UserError(f"{path} is not text, but {what}")
    if (told := converted(begin, path)).startswith("it is"):
        raise UserError(f"{path} is not UTF-8 text; {told}")


def _expand_folder(folder: Path, shape: Shape) -> list[RawSource]:
    """Its data files; or itself, when its folders hold documents; or else what its folders train, valid, test hold."""
    _check_raw(folder, folder)
    if links := [item.name for item in links_out(folder, folder)]:
        _say_once(
            as_asked(f"{folder}: left out: {', '.join(links[:_SHOWN])}, links out of the folder; name their files")
        )
    files = [item for item in listed(folder) if _has_rows(item)]
    inner = document_folders(folder)
    # A .json file beside others, or beside clusters, tells about them.
    rows = [item for item in files if item.suffix != ".json"] or (files if len(inner) < _SEVERAL else [])
    if rows and len(inner) >= _SEVERAL:
        raise unclear(folder, rows, inner)
    if rows and (beside := [item.name for item in files if item not in rows]):
        told = f"{folder}: {', '.join(beside)} is not read, as there are files of rows beside; name it if it has rows"
        _say_once(as_asked(told))
    folders = [item for item in listed(folder) if item.is_dir()]
    splits = [item for item in folders if split_of(item.name)]
    clusters = [] if rows else cluster_folders(folder, inner)
    if rows or clusters or not splits:
        # One folder of documents may be what tells of the rows; several are clusters. A .json file may tell of others.
        looked = folders if len(clusters) < _SEVERAL else [item for item in folders if item not in clusters]
        if all(item.suffix == ".json" for item in rows):
            _check_below(folder, looked, ".json" if rows or clusters else "")
    about = [item.name for item in listed(folder) if is_about(item) and not item.is_dir()]
    if any(cluster_folders(item) for item in splits) if clusters == [folder] else about and splits and not clusters:
        _say_left_out(folder, [item.name for item in listed(folder) if item not in splits])
    elif clusters:
        documents, left_out = parted(folder, clusters)
        _say_left_out(folder, left_out)
        size = sum(file.stat().st_size for file in documents if file.is_file())
        return [RawSource(folder, _split_in_name(folder), read_folder, size)]
    if not rows and not splits:
        if about:
            raise UserError(
                f"{folder} holds no documents, but files about it ({_shown(about)}); name the files to read"
            )
        kinds = f"neither files of clusters ({TOLD}) nor folders of documents ({', '.join(SUFFIXES)})"
        raise UserError(f"{folder} holds {kinds}")
    return [source for item in rows or splits for source in _expand(item, shape)]


def _check_below(folder: Path, inner: list[Path], ignored: str) -> None:
    """Raises UserError naming the folders in ``inner``, and in these, that hold files of rows; those with the suffix
    ``ignored`` do not count, nor what raysum has written."""
    found, level = list[Path](), inner
    for _ in range(_DEEPEST):
        inside = [(one, _listed(one)) for one in level]
        inside = [(one, items) for one, items in inside if _WRITTEN.isdisjoint(item.name for item in items)]
        rows = [one for one, items in inside if any(_has_rows(item) and item.suffix != ignored for item in items)]
        found += rows
        level = [item for one, items in inside if one not in rows for item in items if item.is_dir()]
    if found:
        raise UserError(
            f"{folder} holds its files of rows in {_shown(list(map(str, found)))}: name that in place of {folder}, or "
            "move it elsewhere if it is not the data"
        )


def _listed(folder: Path) -> list[Path]:
    with suppress(PermissionError):  # such as lost+found
        return listed(folder)
    return []


def _has_rows(item: Path) -> bool:
    return bool(named(item)) and item.name not in _OF_ARROW and not item.is_dir()


def _shown(names: list[str]) -> str:
    return ", ".join(names[:_SHOWN]) + f" and {len(names) - _SHOWN} more" * (len(names) > _SHOWN)


def _say_left_out(folder: Path, names: list[str]) -> None:
    if names:
        but = ", but no README and the like" * any(is_about(Path(name)) for name in names)
        _say_once(as_asked(f"{folder}: left out: {_shown(names)}; documents are {', '.join(SUFFIXES)}{but}"))


@cache
def _say_once(told: str) -> None:
    say(told)


def _split_of(path: Path) -> str | None:
    """The split that the name of a file tells, or else that of its folder."""
    return _split_in_name(path) or split_of(path.parent.name)


def _split_in_name(path: Path) -> str | None:
    """The split that a file name such as `scisumm-valid.01.jsonl.gz` tells; None where it tells none, or two."""
    told = {split for word in re.split(r"[^a-z]+", path.name.lower()) if (split := split_of(word))}
    return told.pop() if len(told) == 1 else None
