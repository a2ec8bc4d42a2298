"""Tables: CSV, TSV, Parquet and Arrow, with one cluster a row.

``documents``, ``paragraphs`` and ``summaries`` are lists; in CSV they are a JSON list, or the text of one document.
"""

import csv
import re
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from io import TextIOWrapper
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO

from raysum.errors import UserError
from raysum.sources.record import LONGEST, TOO_LONG, Record, Rejected, bounded_lines, decode_utf8, table_records
from raysum.sources.staging import local_content, opened

if TYPE_CHECKING:
    from pyarrow import RecordBatch

_Row = Sequence[Any] | Rejected
_HEADER = 1 << 20  # characters of the header that decide the delimiter
_INVALID = re.compile("[\0\udc80-\udcff]")  # NUL, and the results of surrogateescape for bytes that are not UTF-8
_ROWS = 16  # rows of a columnar file read at a time, since each may have LONGEST bytes
_UNREADABLE = (ValueError, OverflowError)  # text that is not UTF-8, a date that Python does not support


def read_csv(path: Path, delimiter: str = ",") -> Iterator[Record]:
    """Yield one cluster a row. If the header has tabs or semicolons instead of ``delimiter``, these separate fields."""
    csv.field_size_limit(LONGEST)  # the module's own limit of 128 KiB is shorter than a cluster
    with opened(path) as binary, TextIOWrapper(binary, "utf-8-sig", errors="surrogateescape", newline="") as file:
        delimiter = _delimiter(file.readline(_HEADER), delimiter)
        file.seek(0)
        lines = _Lines(file)
        rows = csv.reader(lines, delimiter=delimiter)
        columns = next(rows, [])
        if any(map(_INVALID.search, columns)):
            raise UserError(f"{path} is not UTF-8 text (its first line is invalid); save it as UTF-8")
        yield from table_records(path, columns, _csv_rows(path, lines, rows))


def read_tsv(path: Path) -> Iterator[Record]:
    """Yield records as ``read_csv`` does, with tabs between the fields."""
    return read_csv(path, "\t")


def _delimiter(header: str, default: str) -> str:
    """Return a tab if ``header`` has several fields by tabs, else ``default``, unless only another delimiter gives
    several fields."""
    columns = {mark: len(next(csv.reader([header], delimiter=mark), [])) for mark in (default, "\t", ",", ";")}
    return next((mark for mark in ("\t", default) if columns[mark] > 1), max(columns, key=columns.__getitem__))


class _Lines(Iterator[str]):
    """The lines of a file; a line that is too long becomes a field above the limit."""

    def __init__(self, file: TextIO):
        self._lines = bounded_lines(file.readline)
        self.number = 0
        self.quotes = 0  # since the row began: if their number is odd, a quoted field continues on the next line

    def __next__(self) -> str:
        line = next(self._lines)
        self.number += 1
        self.quotes += line.count('"') if line else 0
        return " " * (LONGEST + 1) if line is None else line

    def skip_row(self) -> None:
        while self.quotes % 2 and next(self, None) is not None:
            pass


def _csv_rows(path: Path, lines: _Lines, rows: Iterator[list[str]]) -> Iterator[tuple[int, _Row]]:
    while True:
        lines.quotes = 0
        try:
            values = next(rows)
        except StopIteration:
            return
        except csv.Error:  # a field above the limit
            yield lines.number, Rejected(TOO_LONG)
            lines.skip_row()
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
        return Rejected("not UTF-8", raw=[_INVALID.sub("\ufffd", value) for value in values])
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
