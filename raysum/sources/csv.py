"""CSV and TSV: a header, and one cluster a row."""

import csv
import gzip
import re
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import TextIO, cast

from raysum.errors import UserError
from raysum.sources.record import LONGEST, TOO_LONG, Record, bounded_lines, check_columns, decoded_row, table_record

_HEADER = 1 << 20  # characters of a header that are looked at
_FOREIGN = re.compile("[\0\udc80-\udcff]")  # NUL, and what surrogateescape makes of a byte that is not UTF-8


def read_csv(path: Path, delimiter: str = ",") -> Iterator[Record]:
    """A header and one cluster a row; ``documents`` or ``paragraphs`` hold a JSON list, or the text of one document.

    Tabs or semicolons part the fields where the header has them in place of ``delimiter``.
    """
    csv.field_size_limit(LONGEST)  # the module's own limit of 128 KiB is shorter than a cluster
    opened = gzip.open if path.suffix == ".gz" else open
    with opened(path, "rt", encoding="utf-8-sig", errors="surrogateescape", newline="") as file:
        delimiter = _delimiter(file.readline(_HEADER), delimiter)
        file.seek(0)
        lines = _Lines(cast(TextIO, file))
        rows = csv.DictReader(lines, delimiter=delimiter)
        columns = rows.fieldnames or []
        if any(map(_FOREIGN.search, columns)):
            raise UserError(f"{path} is not UTF-8 text (its first line already is not); save it as UTF-8")
        check_columns(path, columns)
        while True:
            lines.quotes = 0
            try:
                row = next(rows)
            except StopIteration:
                return
            except csv.Error:  # says that a field is above the limit
                yield Record(f"{path}:{lines.number}", "", TOO_LONG)
                lines.pass_over_row()
            else:
                yield _record(f"{path}:{lines.number}", row)


def read_tsv(path: Path) -> Iterator[Record]:
    """As :func:`read_csv`, with tabs between the fields."""
    return read_csv(path, "\t")


def _delimiter(header: str, usual: str) -> str:
    """A tab if ``header`` has fields between tabs; else ``usual``, unless only another one gives several fields."""
    columns = {one: len(next(csv.reader([header], delimiter=one), [])) for one in (usual, "\t", ",", ";")}
    return next((one for one in ("\t", usual) if columns[one] > 1), max(columns, key=lambda one: columns[one]))


class _Lines(Iterator[str]):
    """The lines of a file; one that is too long has one field, above the limit."""

    def __init__(self, file: TextIO):
        self._lines = bounded_lines(file.readline)
        self.number = 0
        self.quotes = 0  # since the row began: where their number is odd, a quoted field goes on in the next line

    def __next__(self) -> str:
        line = next(self._lines)
        self.number += 1
        self.quotes += line.count('"') if line else 0
        return " " * (LONGEST + 1) if line is None else line

    def pass_over_row(self) -> None:
        while self.quotes % 2 and next(self, None) is not None:
            pass


def _record(where: str, row: dict[str, str]) -> Record:
    if None in row or None in row.values():
        return Record(
            where, {key: value for key, value in row.items() if key is not None}, "not as many fields as the header"
        )
    with suppress(UnicodeError):  # NUL and too many invalid bytes
        row = {key: _repaired(where, value) for key, value in row.items()}
    if any(map(_FOREIGN.search, row.values())):
        return Record(where, {key: _FOREIGN.sub("\ufffd", value) for key, value in row.items()}, "not UTF-8")
    return table_record(where, row)


def _repaired(where: str, value: str) -> str:
    return decoded_row(where, value.encode(errors="surrogateescape")) if _FOREIGN.search(value) else value
