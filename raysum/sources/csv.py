"""CSV and TSV: a header, and one cluster a row."""

import csv
import gzip
import re
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import TextIO, cast

from raysum.errors import UserError
from raysum.sources.record import (
    LONGEST,
    TOO_LONG,
    Record,
    bounded_lines,
    check_unique_columns,
    decode_utf8,
    table_record,
)

_HEADER = 1 << 20  # characters of the header that decide the delimiter
_INVALID = re.compile("[\0\udc80-\udcff]")  # NUL, and the results of surrogateescape for bytes that are not UTF-8


def read_csv(path: Path, delimiter: str = ",") -> Iterator[Record]:
    """Yield one cluster a row; ``documents`` or ``paragraphs`` hold a JSON list, or the text of one document.

    If the header has tabs or semicolons instead of ``delimiter``, these separate the fields.
    """
    csv.field_size_limit(LONGEST)  # the module's own limit of 128 KiB is shorter than a cluster
    open_file = gzip.open if path.suffix == ".gz" else open
    with open_file(path, "rt", encoding="utf-8-sig", errors="surrogateescape", newline="") as file:
        delimiter = _delimiter(file.readline(_HEADER), delimiter)
        file.seek(0)
        lines = _Lines(cast(TextIO, file))
        rows = csv.DictReader(lines, delimiter=delimiter)
        columns = rows.fieldnames or []
        if any(map(_INVALID.search, columns)):
            raise UserError(f"{path} is not UTF-8 text (its first line is invalid); save it as UTF-8")
        check_unique_columns(path, columns)
        while True:
            lines.quotes = 0
            try:
                row = next(rows)
            except StopIteration:
                return
            except csv.Error:  # a field above the limit
                yield Record(f"{path}:{lines.number}", "", TOO_LONG)
                lines.skip_row()
            else:
                yield _record(f"{path}:{lines.number}", row)


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


def _record(where: str, row: dict[str, str]) -> Record:
    if None in row or None in row.values():
        return Record(
            where, {key: value for key, value in row.items() if key is not None}, "not as many fields as the header"
        )
    with suppress(UnicodeError):  # NUL and too many invalid bytes
        row = {key: _repair(where, value) for key, value in row.items()}
    if any(map(_INVALID.search, row.values())):
        return Record(where, {key: _INVALID.sub("\ufffd", value) for key, value in row.items()}, "not UTF-8")
    return table_record(where, row)


def _repair(where: str, value: str) -> str:
    return decode_utf8(where, value.encode(errors="surrogateescape")) if _INVALID.search(value) else value
