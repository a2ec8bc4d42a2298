"""Tables: CSV, TSV, Parquet, Arrow, SQLite and spreadsheets, with one cluster a row.

``documents``, ``paragraphs`` and ``summaries`` are lists; in CSV they are a JSON list, or the text of one document.
"""

import csv
import re
import zipfile
from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from io import BytesIO, TextIOWrapper
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TextIO
from urllib.parse import quote

from raysum.errors import UserError
from raysum.sources.documents.sandbox import DocumentFormat, limited
from raysum.sources.record import LONGEST, TOO_LONG, Record, Rejected, bounded_lines, decode_utf8, table_records
from raysum.sources.staging import local_content, opened, opened_text

if TYPE_CHECKING:
    from pyarrow import RecordBatch

_Row = Sequence[Any] | Rejected
_SAMPLE = 1 << 20  # characters that decide the delimiter and the quoting
_LINE_END = re.compile(r"\r\n|\n|\r")
_INVALID = re.compile("[\0\udc80-\udcff]")  # NUL, and the results of surrogateescape for bytes that are not UTF-8
_MAX_SHEET = 1 << 30  # bytes that a spreadsheet unpacks to
_SHEET = DocumentFormat("a spreadsheet", (), "office:read_sheets", "python_calamine")
_ROWS = 16  # rows of a columnar file read at a time, since each may have LONGEST bytes
_UNREADABLE = (ValueError, OverflowError)  # text that is not UTF-8, a date that Python does not support


def read_csv(path: Path, delimiter: str = ",") -> Iterator[Record]:
    """Yield one cluster a row. The header decides whether ``delimiter`` or a tab, semicolon or bar separates fields.

    If quotes are ordinary characters, as in the gold summaries of FewSum, they are kept.
    """
    csv.field_size_limit(LONGEST)  # the module's own limit of 128 KiB is shorter than a cluster
    with opened_text(path) as binary, TextIOWrapper(binary, "utf-8-sig", errors="surrogateescape", newline="") as file:
        delimiter, quoting = _dialect(file.read(_SAMPLE), delimiter)
        file.seek(0)
        lines = _Lines(file, quoting != csv.QUOTE_NONE)
        rows = csv.reader(lines, delimiter=delimiter, quoting=quoting)
        columns = next(rows, [])
        if any(map(_INVALID.search, columns)):
            raise UserError(f"{path} is not UTF-8 text (its first line is invalid); save it as UTF-8")
        yield from table_records(path, columns, _csv_rows(path, lines, rows))


def _dialect(sample: str, default: str) -> tuple[str, Literal[0, 3]]:
    """Return the delimiter and the quoting of a table that begins with ``sample``.

    The delimiter is a tab if the header has several fields by tabs, else ``default``, unless only another one gives
    several fields. Quotes are ordinary characters if all lines have the number of fields of the header without them,
    and not with them.
    """
    lines = _LINE_END.split(sample)[: -1 if len(sample) == _SAMPLE else None]
    header = lines[0] if lines else sample
    columns = {mark: len(next(csv.reader([header], delimiter=mark), [])) for mark in (default, *"\t,;|")}
    most = max(columns, key=columns.__getitem__)
    delimiter = next((mark for mark in ("\t", default) if columns[mark] > 1), most)
    if '"' in sample and delimiter in header and len({line.count(delimiter) for line in lines if line}) == 1:
        quoted = csv.reader((f"{line}\n" for line in lines), delimiter=delimiter)
        if any(len(row) != columns[delimiter] for row in quoted if row):
            return delimiter, csv.QUOTE_NONE
    return delimiter, csv.QUOTE_MINIMAL


class _Lines(Iterator[str]):
    """The lines of a file; a line that is too long becomes a field above the limit."""

    def __init__(self, file: TextIO, is_quoted: bool):
        self._lines, self._quote = bounded_lines(file.readline), '"' if is_quoted else "\0"
        self.number = 0
        self.quotes = 0  # since the row began: if their number is odd, a quoted field continues on the next line

    def __next__(self) -> str:
        line = next(self._lines)
        self.number += 1
        self.quotes += line.count(self._quote) if line else 0
        return " " * (LONGEST + 1) if line is None else line


def _csv_rows(path: Path, lines: _Lines, rows: Iterator[list[str]]) -> Iterator[tuple[int, _Row]]:
    while True:
        lines.quotes = 0
        try:
            values = next(rows)
        except StopIteration:
            return
        except csv.Error:  # a field above the limit
            yield lines.number, Rejected(TOO_LONG)
            while lines.quotes % 2 and next(lines, None) is not None:  # the rest of the row
                pass
        else:
            if values:
                yield lines.number, _repaired(f"{path}:{lines.number}", values)


def _repaired(where: str, values: list[str]) -> _Row:
    """Return the row with U+FFFD for a few invalid bytes, or Rejected if there are more, or NUL characters."""
    if not any(map(_INVALID.search, values)):
        return values
    with suppress(UnicodeError):
        values = [decode_utf8(where, value.encode(errors="surrogateescape")) for value in values]
    if any(map(_INVALID.search, values)):
        reason = "NUL characters" if any("\0" in value for value in values) else "not UTF-8"
        return Rejected(reason, raw=[_INVALID.sub("\ufffd", value) for value in values])
    return values


def read_parquet(path: Path) -> Iterator[Record]:
    """Yield one cluster a row; ``documents`` is a list of strings, a list of {source, text}, or a string."""
    import pyarrow.parquet as pq

    with _arrow_errors(path, "Parquet"), local_content(path) as local, pq.ParquetFile(local) as file:
        yield from table_records(path, file.schema_arrow.names, _numbered_rows(file.iter_batches(_ROWS)))


def read_arrow(path: Path) -> Iterator[Record]:
    """Yield one cluster a row of an Arrow file or stream, such as Hugging Face datasets saves."""
    import pyarrow as pa

    # A memory-mapped file with a wrong length kills the process (SIGBUS).
    with _arrow_errors(path, "Arrow"), local_content(path) as local, pa.OSFile(str(local)) as source:
        try:
            reader = pa.ipc.open_stream(source)
            batches = iter(reader)
        except pa.ArrowInvalid:
            source.seek(0)
            file = pa.ipc.open_file(source)
            reader, batches = file, (file.get_batch(number) for number in range(file.num_record_batches))
        yield from table_records(path, reader.schema.names, _numbered_rows(map(_validated, batches)))


def read_sqlite(path: Path, table: str = "") -> Iterator[Record]:
    """Yield one cluster a row of a table of an SQLite database, by default its only table.

    Raises UserError if the database is damaged, or has no table, or several without a named one.
    """
    import sqlite3

    with (
        local_content(path) as local,
        closing(sqlite3.connect(f"file:{quote(str(local))}?mode=ro", uri=True)) as database,
    ):
        try:
            database.execute("pragma trusted_schema = off")  # a view of others may not call functions
            names = [name for (name,) in database.execute("select name from sqlite_master where type = 'table'")]
            table = _chosen(path, table, [name for name in names if not name.startswith("sqlite_")], "sqlite")
            quoted = table.replace('"', '""')
            database.text_factory = lambda content: content.decode(errors="replace")
            rows = database.execute(f'select * from "{quoted}"')
            columns = [column for column, *_ in rows.description]
            cells = ([None if isinstance(cell, bytes) else cell for cell in row] for row in rows)
            yield from table_records(path, columns, enumerate(cells, 1))
        except sqlite3.Error as error:
            raise UserError(f"{path} cannot be read as an SQLite database ({error}); fetch it again") from None


def read_sheet(path: Path, sheet: str = "") -> Iterator[Record]:
    """Yield one cluster a row of a spreadsheet (Excel or OpenDocument), by default of its only sheet that has rows.

    Raises UserError if the file is damaged or too large, or has several sheets without a named one.
    """
    with opened(path) as file:
        content = file.read(LONGEST + 1)
    with suppress(zipfile.BadZipFile), zipfile.ZipFile(BytesIO(content)) as parts:
        if sum(part.file_size for part in parts.infolist()) > _MAX_SHEET or len(content) > LONGEST:
            raise UserError(f"{path} is too large for a spreadsheet; save it as CSV")
    sheets = limited(_SHEET, content, str(path))
    name = _chosen(path, sheet, [name for name, rows in sheets.items() if len(rows) > 1], "xlsx")
    (_, header), *rows = sheets[name]
    yield from table_records(path, header, rows)


class SeveralTablesError(UserError):
    """A file has several tables, or none of the given name; ``formats`` are the values of --format that read them."""

    def __init__(self, path: Path, names: Sequence[str], format: str):
        choice = f"has the tables {', '.join(names)}; name one with --format {format}:NAME"
        super().__init__(f"{path} {choice if names else 'has no table with rows; leave it out'}")
        self.formats = [f"{format}:{name}" for name in names]


def _chosen(path: Path, name: str, names: Sequence[str], format: str) -> str:
    """Return ``name`` or the only one of ``names``. Raises SeveralTablesError if there is none."""
    if name in names or not name and len(names) == 1:
        return name or names[0]
    raise SeveralTablesError(path, names, format)


def _validated(batch: "RecordBatch") -> "RecordBatch":
    """Raises ArrowInvalid if a damaged file has offsets beyond its values, which would crash the process."""
    batch.validate(full=True)
    return batch


@contextmanager
def _arrow_errors(path: Path, kind: str) -> Iterator[None]:
    import pyarrow as pa

    try:
        yield
    except pa.ArrowException as error:
        raise UserError(f"{path} is not valid {kind} ({error}); make or fetch the file again") from None


def _numbered_rows(batches: "Iterable[RecordBatch]") -> Iterator[tuple[int, _Row]]:
    parts = (batch.slice(start, _ROWS) for batch in batches for start in range(0, batch.num_rows, _ROWS))
    return enumerate(chain.from_iterable(map(_rows, parts)), 1)


def _rows(batch: "RecordBatch") -> Iterable[_Row]:
    """Return the values of each row; if one is unreadable or all are too long, each row is converted alone."""
    if batch.nbytes <= LONGEST:
        with suppress(*_UNREADABLE):
            return [*zip(*(column.to_pylist() for column in batch.columns), strict=True)]
    if batch.num_rows > 1:
        return chain.from_iterable(_rows(batch.slice(row, 1)) for row in range(batch.num_rows))
    return [Rejected(TOO_LONG) if batch.nbytes > LONGEST else _unreadable(batch)]


def _unreadable(row: "RecordBatch") -> Rejected:
    """Return the problem of a batch of one row, with its readable values."""
    values, detail = list[Any](), ""
    for name, column in zip(row.schema.names, row.columns, strict=True):
        try:
            values += column.to_pylist()
        except _UNREADABLE as error:
            values, detail = [*values, None], detail or f"{name}: {error}"
    return Rejected("a field is unreadable", detail, values)
