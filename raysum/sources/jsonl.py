"""JSON: one cluster a line, or a list of clusters, plain or gzipped."""

import codecs
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from raysum.errors import UserError
from raysum.sources.record import Record, Rejected, bounded_lines, decode_utf8, parse_json, split_of, text_record
from raysum.sources.staging import opened_text

_MAX_BYTES = 1 << 30  # of a file that is read as one value
_CONTAINERS = {"data", "rows", "items", "records", "examples", "instances", "clusters"}  # keys of the only list


def read_jsonl(path: Path) -> Iterator[Record]:
    """Yield one JSON object a line; blank lines are skipped."""
    with opened_text(path) as file:
        yield from json_records(bounded_lines(file.readline), str(path))


def json_records(lines: Iterable[bytes | None], name: str) -> Iterator[Record]:
    """Yield the objects of ``lines``, located by ``name`` and line number; None is a line that is too long."""
    for number, line in enumerate(lines, 1):
        if line is None or line.removeprefix(codecs.BOM_UTF8).strip():
            yield text_record(f"{name}:{number}", line, _parse_line)


def _parse_line(line: str) -> Any:
    try:
        return parse_json(line.removeprefix("\ufeff").strip())
    except ValueError as error:
        hint = "; name a file with a list of clusters .json" if line.startswith("[") else ""
        raise Rejected("not JSON", f"{error}{hint}") from None


def read_json_clusters(path: Path) -> Iterator[Record]:
    """Yield the objects of a list, a single object, or JSON lines in a file named .json of at most 1 GiB.

    An object may hold the rows: ``{"data": [...]}``, a list for each split, or an object for each id.

    Raises UserError if the file is larger, or if it begins as a list and is not valid JSON.
    """
    with opened_text(path) as file:
        content = file.read(_MAX_BYTES + 1)
    if len(content) > _MAX_BYTES:
        raise UserError(
            f"{path} is larger than 1 GiB; convert it to JSON lines (.jsonl, one object a line), which have no limit"
        )
    content = content.removeprefix(codecs.BOM_UTF8)
    try:
        value = parse_json(decode_utf8(str(path), content))
    except (ValueError, Rejected) as error:  # a UnicodeDecodeError is a ValueError
        if content.lstrip().startswith(b"["):
            raise UserError(f"{path} is not a JSON list ({error}); make or fetch the file again, in UTF-8") from None
        yield from read_jsonl(path)
        return
    for number, raw in enumerate(_rows(value), 1):
        yield Record(f"{path}:{number}", raw)


def _rows(value: Any) -> list[Any]:
    """Return the rows in a JSON value."""
    if not isinstance(value, dict):
        return value if isinstance(value, list) else [value]
    parts = [*value.values()]
    if parts and all(isinstance(part, list) and all(isinstance(row, dict) for row in part) for part in parts):
        if all(map(split_of, value)):
            return [{"split": split, **row} for split, rows in value.items() for row in rows]
        if len(parts) == 1 and not _CONTAINERS.isdisjoint(value):
            return parts[0]
    if len(parts) > 1 and all(isinstance(part, dict) for part in parts) and set.intersection(*map(set, parts)):
        return [{"id": id, **row} for id, row in value.items()]
    return [value]
