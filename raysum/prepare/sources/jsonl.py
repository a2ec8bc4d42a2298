"""JSON lines: one cluster a line, plain or gzipped."""

import codecs
import gzip
import json
from collections.abc import Iterable, Iterator
from pathlib import Path

from raysum.prepare.sources.record import Record


def read_jsonl(path: Path) -> Iterator[Record]:
    """One JSON object a line, plain or gzipped; blank lines are passed over."""
    with gzip.open(path) if path.name.endswith(".gz") else path.open("rb") as lines:
        yield from json_records(lines, str(path))


def json_records(lines: Iterable[bytes], name: str) -> Iterator[Record]:
    """The objects of ``lines``, which are told by ``name`` and number."""
    for number, line in enumerate(lines, 1):
        text, where = line.removeprefix(codecs.BOM_UTF8).strip(), f"{name}:{number}"
        if not text:
            continue
        try:
            yield Record(where, json.loads(text.decode("utf-8")))
        except UnicodeDecodeError as error:
            yield Record(where, text.decode("utf-8", "replace"), "not UTF-8", f"byte {error.start}")
        except (ValueError, RecursionError) as error:
            yield Record(where, text.decode("utf-8"), "not JSON", str(error))
