"""Records: the raw clusters of a source, or the reasons why they cannot be read."""

import json
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
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
_LATIN = "; if it is Latin-1: iconv -f LATIN1 -t UTF-8 FILE > OTHER"
_MAX_DEPTH = 64  # levels of nested lists and objects; Python can copy and write many more


def split_of(name: Any) -> str | None:
    """Return train, valid or test for one of their usual names, such as "Dev"; None for any other name."""
    return _NAMES.get(str(name).strip().lower())


class Rejected(Exception):
    """A raw cluster that gives no row. ``reason`` is one of a few fixed texts, so that reasons can be counted."""

    def __init__(self, reason: str, detail: str = ""):
        super().__init__(f"{reason} ({detail})" if detail else reason)
        self.reason, self.detail = reason, detail


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

    def cluster(self) -> dict[str, Any]:
        """Return the raw cluster with its ``id``. Raises Rejected if it cannot be read."""
        if self.problem:
            raise Rejected(self.problem, self.detail)
        if not isinstance(self.raw, dict):
            raise Rejected("not an object with title and documents")
        return self.raw | {"id": self.id}


def decode_utf8(where: str, content: bytes) -> str:
    """Decode a row as UTF-8, with U+FFFD for a few invalid bytes. Raises UnicodeDecodeError if there are more."""
    try:
        return content.decode()
    except UnicodeDecodeError:
        if (text := repair_utf8(content, where)) is None:
            raise
        return text


def non_utf8_record(where: str, text: bytes, error: UnicodeDecodeError) -> Record:
    """Return the record of a row in another encoding than UTF-8."""
    return Record(where, text.decode("utf-8", "replace"), "not UTF-8", f"byte {error.start}{_LATIN}")


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
        if text.count("[") + text.count("{") <= _MAX_DEPTH:
            return value
        level = [value]
        for _ in range(_MAX_DEPTH):
            level = [child for item in level for child in _children(item) if isinstance(child, dict | list)]
            if not level:
                return value
    raise Rejected("nested too deep", f"more than {_MAX_DEPTH} levels")


def _children(value: Any) -> Iterable[Any]:
    return value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()


def _unique_keys(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    value = dict(pairs)
    if len(value) < len(pairs):
        ((key, _),) = Counter(key for key, _ in pairs).most_common(1)
        raise Rejected("an object has the same key twice", key)
    return value


_DECODER = json.JSONDecoder(object_pairs_hook=_unique_keys)


def check_unique_columns(path: Path, columns: Sequence[str]) -> None:
    """Raises UserError if a table has two columns of the same name."""
    if len(set(columns)) < len(columns):
        ((name, _),) = Counter(columns).most_common(1)
        raise UserError(f"{path} has the column `{name}` twice; rename or remove one")


def table_record(where: str, row: dict[str, Any]) -> Record:
    """Return the record of a table row."""
    lists = ("documents", "paragraphs", "summaries")
    try:
        return Record(where, {key: as_list(value) if key in lists else value for key, value in row.items()})
    except Rejected as error:
        return Record(where, row, error.reason, error.detail)


def as_list(value: Any) -> Any:
    """Return the JSON list in a text, or a list with the text as its only item; return other values unchanged.

    Raises Rejected as ``parse_json`` does.
    """
    if not isinstance(value, str):
        return value
    if value.lstrip().startswith("["):
        try:
            return parse_json(value)
        except ValueError:
            pass  # a document that begins with a bracket
    return [value] if value.strip() else []
