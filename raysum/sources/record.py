"""One raw cluster of a source, or why it could not be read."""

import json
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, AnyStr

from raysum.errors import UserError
from raysum.sources.documents.text import repaired

LONGEST = 64 << 20  # bytes or characters of a row, at most: it takes several times as much memory to prepare it
TOO_LONG = f"longer than {LONGEST >> 20} MiB"
SPLITS = ("train", "valid", "test")
_NAMES = {"train": "train", "training": "train", "test": "test"} | dict.fromkeys(
    ("valid", "val", "dev", "validation", "development"), "valid"
)
_LATIN = "; if it is Latin-1: iconv -f LATIN1 -t UTF-8 FILE > OTHER"
_DEEPEST = 64  # levels of lists and objects in one another: far below what Python can copy and write


def split_of(name: Any) -> str | None:
    """train, valid or test for one of their usual names, in any case; None for anything else."""
    return _NAMES.get(str(name).strip().lower())


class Rejected(Exception):
    """A raw cluster that gives no row; ``reason`` is one of a few fixed texts, so that they can be counted."""

    def __init__(self, reason: str, detail: str = ""):
        super().__init__(f"{reason} ({detail})" if detail else reason)
        self.reason, self.detail = reason, detail


@dataclass(frozen=True)
class Record:
    """One raw cluster, or (``raw`` is then the text as it stood) why it could not be read."""

    where: str  # file:line, file:row or the cluster's folder
    raw: Any
    problem: str = ""
    detail: str = ""
    size: int = 0  # bytes that it takes in its file, where the reader knows

    @property
    def id(self) -> str:
        """The row's own; else the file name and line, which are unique within a corpus of differently named files."""
        own = self.raw.get("id") if isinstance(self.raw, dict) else None
        return str(own) if own not in (None, "") else Path(self.where).name

    def cluster(self) -> dict[str, Any]:
        """The raw cluster with its ``id``. Raises Rejected where it could not be read."""
        if self.problem:
            raise Rejected(self.problem, self.detail)
        if not isinstance(self.raw, dict):
            raise Rejected("not an object with title and documents")
        return self.raw | {"id": self.id}


def decoded_row(where: str, content: bytes) -> str:
    """Decode a row as UTF-8, with U+FFFD for a few invalid bytes. Raises UnicodeDecodeError if there are more."""
    try:
        return content.decode()
    except UnicodeDecodeError:
        if (text := repaired(content, where)) is None:
            raise
        return text


def not_utf8(where: str, text: bytes, error: UnicodeDecodeError) -> Record:
    """Return the rejected row of a text in another encoding."""
    return Record(where, text.decode("utf-8", "replace"), "not UTF-8", f"byte {error.start}{_LATIN}")


def bounded_lines(readline: Callable[[int], AnyStr]) -> Iterator[AnyStr | None]:
    """The lines of a file; None for one that is too long, of which no more than that is ever held."""
    while line := readline(LONGEST + 1):
        if len(line) <= LONGEST:
            yield line
            continue
        while line and line[-1:] not in ("\n", "\r", b"\n"):
            line = readline(1 << 20)
        yield None


def parse_json(text: str) -> Any:
    """Raises ValueError where ``text`` is not JSON, Rejected where it is nested too deep or says a thing twice."""
    with suppress(RecursionError):
        value = _DECODER.decode(text)
        if text.count("[") + text.count("{") <= _DEEPEST:
            return value
        level = [value]
        for _ in range(_DEEPEST):
            level = [part for item in level for part in _parts(item) if isinstance(part, dict | list)]
            if not level:
                return value
    raise Rejected("nested too deep", f"more than {_DEEPEST} levels")


def _parts(value: Any) -> Iterable[Any]:
    return value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        ((key, _),) = Counter(key for key, _ in pairs).most_common(1)
        raise Rejected("a key stands twice in an object", key)
    return found


_DECODER = json.JSONDecoder(object_pairs_hook=_unique)


def check_columns(path: Path, columns: Sequence[str]) -> None:
    """Raises UserError where a table has two columns of one name."""
    if len(set(columns)) < len(columns):
        ((name, _),) = Counter(columns).most_common(1)
        raise UserError(f"{path} has the column `{name}` twice; rename or remove one")


def table_record(where: str, row: dict[str, Any]) -> Record:
    """The row of a table as a raw cluster."""
    lists = ("documents", "paragraphs", "summaries")
    try:
        return Record(where, {key: listed_texts(value) if key in lists else value for key, value in row.items()})
    except Rejected as error:
        return Record(where, row, error.reason, error.detail)


def listed_texts(value: Any) -> Any:
    """What is no text as it is; of a text the JSON list that it holds, or it as the one item of a list.

    Raises Rejected as :func:`parse_json`.
    """
    if not isinstance(value, str):
        return value
    if value.lstrip().startswith("["):
        try:
            return parse_json(value)
        except ValueError:
            pass  # a document that begins with a bracket
    return [value] if value.strip() else []
