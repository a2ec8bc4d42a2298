"""CSV: a header, and one cluster a row."""

import csv
import re
from collections.abc import Iterator
from pathlib import Path

from raysum.prepare.sources.record import Record, check_columns, listed_texts

_CSV_FIELD = 1 << 30  # characters; the module's own limit of 128 KiB is shorter than a cluster
_SURROGATE = re.compile("[\udc80-\udcff]")  # what surrogateescape makes of a byte that is not UTF-8


def read_csv(path: Path) -> Iterator[Record]:
    """A header and one cluster a row; ``documents`` or ``paragraphs`` hold a JSON list, or the text of one document."""
    csv.field_size_limit(_CSV_FIELD)
    with path.open(encoding="utf-8-sig", errors="surrogateescape", newline="") as file:
        rows = csv.DictReader(file)
        check_columns(path, rows.fieldnames or [])
        for row in rows:
            where = f"{path}:{rows.line_num}"
            if None in row or None in row.values():
                yield Record(where, {str(key): value for key, value in row.items()}, "not as many fields as the header")
            elif any(_SURROGATE.search(value) for value in row.values()):
                yield Record(where, {key: _SURROGATE.sub("\ufffd", value) for key, value in row.items()}, "not UTF-8")
            else:
                yield Record(where, {key: listed_texts(key, value) for key, value in row.items()})
