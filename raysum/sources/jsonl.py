"""JSON: one cluster a line, or a list of clusters, plain or gzipped."""

import codecs
import gzip
from collections.abc import Iterable, Iterator
from dataclasses import replace
from pathlib import Path

from raysum.errors import UserError
from raysum.sources.record import TOO_LONG, Record, Rejected, bounded_lines, decode_utf8, non_utf8_record, parse_json

_MAX_BYTES = 1 << 30  # of a file that is read as one value


def read_jsonl(path: Path) -> Iterator[Record]:
    """Yield one JSON object a line; blank lines are skipped."""
    with gzip.open(path) if path.name.endswith(".gz") else path.open("rb") as lines:
        yield from json_records(bounded_lines(lines.readline), str(path))


def read_json_clusters(path: Path) -> Iterator[Record]:
    """Yield the objects of a list, a single object, or JSON lines in a file named .json of at most 1 GiB.

    Raises UserError if the file is larger, or if it begins as a list and is not valid JSON.
    """
    with gzip.open(path) if path.suffix == ".gz" else path.open("rb") as file:
        content = file.read(_MAX_BYTES + 1) if path.stat().st_size <= _MAX_BYTES else None
    if content is None or len(content) > _MAX_BYTES:
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
    for number, raw in enumerate(value if isinstance(value, list) else [value], 1):
        yield Record(f"{path}:{number}", raw)


def json_records(lines: Iterable[bytes | None], name: str) -> Iterator[Record]:
    """Yield the objects of ``lines``, located by ``name`` and line number; None is a line that is too long."""
    for number, line in enumerate(lines, 1):
        where = f"{name}:{number}"
        if line is None:
            yield Record(where, "", TOO_LONG)
        elif text := line.removeprefix(codecs.BOM_UTF8).strip():
            yield replace(_parse_line(where, text), size=len(line))


def _parse_line(where: str, text: bytes) -> Record:
    try:
        return Record(where, parse_json(decode_utf8(where, text)))
    except UnicodeDecodeError as error:
        return non_utf8_record(where, text, error)
    except ValueError as error:
        hint = "; name a file with a list of clusters .json" if text.startswith(b"[") else ""
        reason, detail = "not JSON", f"{error}{hint}"
    except Rejected as error:
        reason, detail = error.reason, error.detail
    return Record(where, text.decode("utf-8", "replace"), reason, detail)
