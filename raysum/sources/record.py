"""Records: the raw clusters of a source, or the reasons why they cannot be read.

Readers pass each row of text through ``text_record`` and each table through ``table_records``, which reject hostile
rows. No reader needs its own checks of encodings, lengths and columns.
"""

import json
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import zip_longest
from pathlib import Path
from typing import Any, AnyStr

from raysum.errors import UserError
from raysum.sources.documents.text import repair_utf8

LONGEST = 64 << 20  # maximum bytes or characters of a row; preparing it takes several times as much memory
TOO_LONG = f"longer than {LONGEST >> 20} MiB"
SPLITS = ("train", "valid", "test")
_NAMES = {"train": "train", "training": "train", "test": "test"} | dict.fromkeys(
    ("valid", "val", "dev", "validation", "development"), "valid"
)
LISTS = ("documents", "paragraphs", "summaries")  # fields that are lists; in a table they may hold JSON
_MAX_DEPTH = 64  # levels of nested lists and objects; Python can copy and write many more


def split_of(name: Any) -> str | None:
    """Return train, valid or test for one of their usual names, such as "Dev"; None for any other name."""
    return _NAMES.get(str(name).strip().lower())


class Rejected(Exception):
    """A raw cluster that gives no row: one of a few fixed reasons, a detail, and the readable part."""

    def __init__(self, reason: str, detail: str = "", raw: Any = ""):
        super().__init__(f"{reason} ({detail})" if detail else reason)
        self.reason, self.detail, self.raw = reason, detail, raw


@dataclass(frozen=True)
class Record:
    """One raw cluster. If it cannot be read, ``problem`` and ``detail`` say why, and ``raw`` is the unparsed text."""

    where: str  # file:line, file:row or the folder of the cluster
    raw: Any
    problem: str = ""
    detail: str = ""
    size: int = 0  # bytes in the file, or 0 if the reader does not count them

    @property
    def id(self) -> str:
        """The id of the row, or its file name and line, which are unique if all files have different names."""
        own = self.raw.get("id") if isinstance(self.raw, dict) else None
        return str(own) if own not in (None, "") else Path(self.where).name

    def rejected(self, problem: Rejected) -> "Record":
        """Return the record with the reason why it gives no row."""
        return replace(self, problem=problem.reason, detail=problem.detail)

    def cluster(self) -> dict[str, Any]:
        """Return the raw cluster with its ``id``. Raises Rejected if it cannot be read."""
        if self.problem:
            raise Rejected(self.problem, self.detail)
        if not isinstance(self.raw, dict):
            raise Rejected("not an object with title and documents")
        return self.raw | {"id": self.id}


def text_record(where: str, content: bytes | None, parse: Callable[[str], Any]) -> Record:
    """Return the record of a row of UTF-8 text, or of a row that is too long (None).

    ``parse`` returns the raw cluster or raises Rejected.
    """
    if content is None:
        return Record(where, "", TOO_LONG)
    try:
        return Record(where, parse(decode_utf8(where, content)), size=len(content))
    except UnicodeDecodeError as error:
        reason, detail = "not UTF-8", f"byte {error.start}; if it is Latin-1: iconv -f LATIN1 -t UTF-8 FILE > OTHER"
    except Rejected as error:
        reason, detail = error.reason, error.detail
    return Record(where, content.decode("utf-8", "replace").strip(), reason, detail, len(content))


def table_records(
    path: Path, columns: Sequence[str], rows: Iterable[tuple[int, Sequence[Any] | Rejected]]
) -> Iterator[Record]:
    """Yield the records of a table from its numbered ``rows``: the values of the ``columns``, or why they are missing.

    Raises UserError if two columns have the same name.
    """
    if len(set(columns)) < len(columns):
        raise UserError(f"{path} has the column `{_repeated(columns)}` twice; rename or remove one")
    lists = [name for name in LISTS if name in columns]
    for number, values in rows:
        cells = values.raw if isinstance(values, Rejected) else values
        row, reason, detail = dict(zip_longest(columns, cells[: len(columns)])), "", ""
        try:
            if isinstance(values, Rejected):
                raise values
            if len(values) != len(columns):
                raise Rejected("not as many fields as the header")
            row.update({name: as_list(row[name]) for name in lists})
        except Rejected as error:
            reason, detail = error.reason, error.detail
        yield Record(f"{path}:{number}", row, reason, detail)


def decode_utf8(where: str, content: bytes) -> str:
    """Decode a row as UTF-8, with U+FFFD for a few invalid bytes. Raises UnicodeDecodeError if there are more."""
    try:
        return content.decode()
    except UnicodeDecodeError:
        if (text := repair_utf8(content, where)) is None:
            raise
        return text


def bounded_lines(readline: Callable[[int], AnyStr]) -> Iterator[AnyStr | None]:
    """Yield the lines of a file, and None for each line longer than LONGEST, which never fills the memory."""
    while line := readline(LONGEST + 1):
        if len(line) <= LONGEST:
            yield line
            continue
        while line and line[-1:] not in ("\n", "\r", b"\n"):
            line = readline(1 << 20)
        yield None


def parse_json(text: str) -> Any:
    """Return the value of ``text``. Raises ValueError if it is not JSON, Rejected if it is nested too deep or an object
    has the same key twice."""
    with suppress(RecursionError):
        value = _DECODER.decode(text)
        if text.count("[") + text.count("{") <= _MAX_DEPTH or _depth(value) <= _MAX_DEPTH:
            return value
    raise Rejected("nested too deep", f"more than {_MAX_DEPTH} levels")


def _depth(value: Any) -> int:
    """Return the number of levels of nested lists and objects."""
    if not isinstance(value, dict | list):
        return 0
    return 1 + max(map(_depth, value.values() if isinstance(value, dict) else value), default=0)


def _unique_keys(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    value = dict(pairs)
    if len(value) < len(pairs):
        raise Rejected("an object has the same key twice", _repeated(key for key, _ in pairs))
    return value


def _repeated(names: Iterable[str]) -> str:
    """Return the most frequent of the names."""
    ((name, _),) = Counter(names).most_common(1)
    return name


_DECODER = json.JSONDecoder(object_pairs_hook=_unique_keys)


def as_list(value: Any) -> Any:
    """Return the JSON list in a text, else a list of the text. Other values are unchanged."""
    if not isinstance(value, str):
        return value
    if value.lstrip().startswith("["):
        with suppress(ValueError):  # a document that begins with a bracket
            return parse_json(value)
    return [value] if value.strip() else []
