"""CSV: a header, and one cluster a row."""

import csv
import re
from collections.abc import Iterator
from pathlib import Path

from raysum.errors import UserError
from raysum.prepare.sources.record import LONGEST, TOO_LONG, Record, bounded_lines, check_columns, table_record

_FOREIGN = re.compile("[\0\udc80-\udcff]")  # NUL, and what surrogateescape makes of a byte that is not UTF-8


def read_csv(path: Path) -> Iterator[Record]:
    """A header and one cluster a row; ``documents`` or ``paragraphs`` hold a JSON list, or the text of one document."""
    csv.field_size_limit(LONGEST)  # the module's own limit of 128 KiB is shorter than a cluster
    with path.open(encoding="utf-8-sig", errors="surrogateescape", newline="") as file:
        lines = (" " * (LONGEST + 1) if line is None else line for line in bounded_lines(file.readline))
        rows = csv.DictReader(lines)
        columns = rows.fieldnames or []
        if any(map(_FOREIGN.search, columns)):
            raise UserError(f"{path} is not UTF-8 text (its first line already is not); save it as UTF-8")
        check_columns(path, columns)
        while True:
            try:
                row = next(rows)
            except StopIteration:
                return
            except csv.Error:  # says that a field is above the limit; the next line is read as a row
                yield Record(f"{path}:{rows.line_num}", "", TOO_LONG)
            else:
                yield _record(f"{path}:{rows.line_num}", row)


def _record(where: str, row: dict[str, str]) -> Record:
    if None in row or None in row.values():
        return Record(where, {str(key): value for key, value in row.items()}, "not as many fields as the header")
    if any(map(_FOREIGN.search, row.values())):
        return Record(where, {key: _FOREIGN.sub("\ufffd", value) for key, value in row.items()}, "not UTF-8")
    return table_record(where, row)
