"""JSON: one cluster a line, plain or gzipped; or a list of clusters."""

import codecs
import gzip
from collections.abc import Iterable, Iterator
from dataclasses import replace
from pathlib import Path

from raysum.errors import UserError
from raysum.sources.record import TOO_LONG, Record, Rejected, bounded_lines, decoded_row, not_utf8, parse_json

_LARGEST = 1 << 30  # bytes of a file that is read as one value


def read_jsonl(path: Path) -> Iterator[Record]:
    """One JSON object a line, plain or gzipped; blank lines are passed over."""
    with gzip.open(path) if path.name.endswith(".gz") else path.open("rb") as lines:
        yield from json_records(bounded_lines(lines.readline), str(path))


def read_json(path: Path) -> Iterator[Record]:
    """A list of objects, or one object, in a file of at most a GiB, plain or gzipped; or else JSON lines under this
    name.

    Raises UserError where it is larger, or begins as a list that does not read.
    """
    with gzip.open(path) if path.suffix == ".gz" else path.open("rb") as file:
        content = file.read(_LARGEST + 1) if path.stat().st_size <= _LARGEST else None
    if content is None or len(content) > _LARGEST:
        raise UserError(
            f"{path} is larger than 1 GiB; as JSON lines (.jsonl), one object a line, it is read in any size"
        )
    content = content.removeprefix(codecs.BOM_UTF8)
    try:
        value = parse_json(decoded_row(str(path), content))
    except (ValueError, Rejected) as error:  # a UnicodeDecodeError is a ValueError
        if content.lstrip().startswith(b"["):
            raise UserError(f"{path} is no JSON list ({error}); make or fetch the file again, in UTF-8") from None
        yield from read_jsonl(path)
        return
    for number, raw in enumerate(value if isinstance(value, list) else [value], 1):
        yield Record(f"{path}:{number}", raw)


def json_records(lines: Iterable[bytes | None], name: str) -> Iterator[Record]:
    """The objects of ``lines``, which are told by ``name`` and number; None stands for a line that is too long."""
    for number, line in enumerate(lines, 1):
        where = f"{name}:{number}"
        if line is None:
            yield Record(where, "", TOO_LONG)
        elif text := line.removeprefix(codecs.BOM_UTF8).strip():
            yield replace(_parsed(where, text), size=len(line))


def _parsed(where: str, text: bytes) -> Record:
    try:
        return Record(where, parse_json(decoded_row(where, text)))
    except UnicodeDecodeError as error:
        return not_utf8(where, text, error)
    except ValueError as error:
        hint = "; a list of clusters in one file is called .json" if text.startswith(b"[") else ""
        reason, detail = "not JSON", f"{error}{hint}"
    except Rejected as error:
        reason, detail = error.reason, error.detail
    return Record(where, text.decode("utf-8", "replace"), reason, detail)
