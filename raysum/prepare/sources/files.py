"""Raw clusters from files and folders, one at a time: JSON lines, CSV, Parquet, and folders of text files.

A source is a file, a folder of such files, or a folder DIR with `DIR/<cluster>/*.txt`: one text file a document, and
`title.txt` and `summary.txt` beside them where there are any.
"""

import codecs
import csv
import gzip
import json
import re
import zlib
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from raysum.errors import UserError
from raysum.prepare.splits import split_of

_CSV_FIELD = 1 << 30  # characters; the module's own limit of 128 KiB is shorter than a cluster


@dataclass(frozen=True)
class Record:
    """One raw cluster, or (``raw`` is then the text as it stood) why it could not be read."""

    where: str  # file:line, file:row or the cluster's folder
    raw: Any
    problem: str = ""
    detail: str = ""


Reader = Callable[[Path], Iterator[Record]]


@dataclass(frozen=True)
class Source:
    """A file, or a folder of clusters, that one reader reads from beginning to end."""

    path: Path
    split: str | None  # told by the name of the file or folder

    def records(self) -> Iterator[Record]:
        """Raises UserError where the whole source is empty or damaged."""
        empty = True
        try:
            for record in _reader(self.path)(self.path):
                empty = False
                yield record
        except (OSError, EOFError, zlib.error, csv.Error) as error:
            raise UserError(f"{self.path} does not read to its end ({error}); make or fetch the file again") from None
        if empty:
            raise UserError(f"{self.path} is empty: it holds no cluster")


def find_sources(paths: Iterable[str | Path]) -> list[Source]:
    """The sources behind ``paths``, folders expanded, in the order given and by natural sort within a folder.

    Raises UserError where a path is missing, unreadable, empty or of no known format.
    """
    sources = [source for path in paths for source in _expand(Path(path).expanduser())]
    if not sources:
        raise UserError("no source given; name files (.jsonl, .jsonl.gz, .csv, .parquet) or folders of text files")
    return sources


def read_clusters(paths: Iterable[str | Path]) -> Iterator[Record]:
    """The records of all sources behind ``paths``, one after the other."""
    for source in find_sources(paths):
        yield from source.records()


def cluster_id(record: Record) -> str:
    """The row's own id; else the file name and line, which are unique within a corpus of differently named files."""
    own = record.raw.get("id") if isinstance(record.raw, dict) else None
    return str(own) if own not in (None, "") else Path(record.where).name


def _expand(path: Path) -> list[Source]:
    try:
        if path.is_dir():
            return _expand_folder(path)
        if not path.exists():
            raise UserError(f"no such file or folder: {path}")
        _reader(path)
        if path.stat().st_size == 0:
            raise UserError(f"{path} is empty: it holds no cluster")
    except OSError as error:
        raise UserError(f"cannot read {path}: {error.strerror}") from None
    return [Source(path, _split_in_name(path))]


def _expand_folder(folder: Path) -> list[Source]:
    """Its data files; or itself, when its folders hold text files; or else what its folders train, valid, test hold."""
    files = [item for item in _listed(folder) if item.is_file() and item.name.endswith(tuple(_READERS))]
    if files:
        return [source for file in files for source in _expand(file)]
    if next(_cluster_folders(folder), None):
        return [Source(folder, _split_in_name(folder))]
    inner = [source for item in _listed(folder) if item.is_dir() and split_of(item.name) for source in _expand(item)]
    if not inner:
        raise UserError(f"{folder} holds neither .jsonl, .csv or .parquet files nor folders of .txt files")
    return inner


def _split_in_name(path: Path) -> str | None:
    """The split that a file name such as `scisumm-valid.01.jsonl.gz` tells; None where it tells none, or two."""
    told = {split for word in re.split(r"[^a-z]+", path.name.lower()) if (split := split_of(word))}
    return told.pop() if len(told) == 1 else None


def _listed(folder: Path) -> list[Path]:
    """Natural sort: part 2 before part 10."""
    parts = re.compile(r"(\d+)")
    visible = (item for item in folder.iterdir() if not item.name.startswith("."))
    return sorted(visible, key=lambda item: [(int(p), "") if p.isdigit() else (-1, p) for p in parts.split(item.name)])


def _reader(path: Path) -> Reader:
    if path.is_dir():
        return read_folder
    for suffix, reader in _READERS.items():
        if path.name.endswith(suffix):
            return reader
    raise UserError(f"{path}: format not known; raysum reads {', '.join(_READERS)} and folders of .txt files")


def read_jsonl(path: Path) -> Iterator[Record]:
    """One JSON object a line, plain or gzipped; blank lines are passed over."""
    with gzip.open(path) if path.name.endswith(".gz") else path.open("rb") as lines:
        for number, line in enumerate(lines, 1):
            text = line.removeprefix(codecs.BOM_UTF8).strip()
            if text:
                yield _json_record(f"{path}:{number}", text)


def _json_record(where: str, line: bytes) -> Record:
    try:
        return Record(where, json.loads(line.decode("utf-8")))
    except UnicodeDecodeError as error:
        return Record(where, line.decode("utf-8", "replace"), "not UTF-8", f"byte {error.start}")
    except (ValueError, RecursionError) as error:
        return Record(where, line.decode("utf-8"), "not JSON", str(error))


def read_csv(path: Path) -> Iterator[Record]:
    """A header and one cluster a row; ``documents`` or ``paragraphs`` hold a JSON list, or the text of one document."""
    csv.field_size_limit(_CSV_FIELD)
    with path.open(encoding="utf-8-sig", errors="surrogateescape", newline="") as file:
        rows = csv.DictReader(file)
        _check_columns(path, rows.fieldnames or [])
        for row in rows:
            where = f"{path}:{rows.line_num}"
            if None in row or None in row.values():
                yield Record(where, {str(key): value for key, value in row.items()}, "not as many fields as the header")
            elif any(_SURROGATE.search(value) for value in row.values()):
                yield Record(where, {key: _SURROGATE.sub("\ufffd", value) for key, value in row.items()}, "not UTF-8")
            else:
                yield Record(where, {key: _listed_texts(key, value) for key, value in row.items()})


_SURROGATE = re.compile("[\udc80-\udcff]")  # what surrogateescape makes of a byte that is not UTF-8


def _listed_texts(column: str, value: Any) -> Any:
    if column not in ("documents", "paragraphs") or not isinstance(value, str):
        return value
    if value.lstrip().startswith("["):
        try:
            return json.loads(value)
        except ValueError:
            pass  # a document that begins with a bracket
    return [value] if value.strip() else []


def read_parquet(path: Path) -> Iterator[Record]:
    """One cluster a row; ``documents`` is a list of strings, a list of {source, text}, or a string."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        with pq.ParquetFile(path) as file:
            _check_columns(path, file.schema_arrow.names)
            rows = (row for batch in file.iter_batches(batch_size=64) for row in batch.to_pylist())
            for number, row in enumerate(rows, 1):
                yield Record(f"{path}:{number}", {key: _listed_texts(key, value) for key, value in row.items()})
    except pa.ArrowException as error:
        raise UserError(f"{path} does not read as Parquet: {error}") from None


def _check_columns(path: Path, columns: Iterable[str]) -> None:
    if not {"documents", "paragraphs"} & set(columns):
        raise UserError(
            f"{path} has no column `documents` or `paragraphs`, only {', '.join(columns) or 'nothing'}; rename one"
        )


def read_folder(folder: Path) -> Iterator[Record]:
    """One cluster a folder of text files; ``title.txt`` and ``summary.txt`` are not documents. The name is the id."""
    for cluster in _cluster_folders(folder):
        try:
            files = [file for file in _listed(cluster) if file.suffix == ".txt"]
            texts = {file.stem: file.read_text(encoding="utf-8-sig") for file in files}
        except UnicodeDecodeError as error:
            yield Record(str(cluster), cluster.name, "not UTF-8", f"byte {error.start}")
            continue
        title = texts.pop("title", cluster.name.replace("_", " ")).strip()
        summary = texts.pop("summary", "").strip()
        documents = [{"source": name, "text": text} for name, text in texts.items()]
        yield Record(str(cluster), {"id": cluster.name, "title": title, "documents": documents, "summary": summary})


def _cluster_folders(folder: Path) -> Iterator[Path]:
    """``folder`` itself where it holds text files, else those of its folders that do."""
    if any(folder.glob("*.txt")):
        yield folder
        return
    for item in _listed(folder):
        if item.is_dir() and any(item.glob("*.txt")):
            yield item


_READERS: dict[str, Reader] = {
    ".jsonl": read_jsonl,
    ".jsonl.gz": read_jsonl,
    ".csv": read_csv,
    ".parquet": read_parquet,
}
