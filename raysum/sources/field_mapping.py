"""Map the fields of raw rows to ours, by paths such as ``articles[].text``.

A path is names with dots between them; ``[]`` after a name applies the rest of the path to each item of a list. A text
that holds JSON, as in the column of a table, is parsed. Fields that hold a list take several paths (``rev1,rev2``, or
``rev*`` for all matching names in natural order) and concatenate their values.
"""

import json
import re
import reprlib
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from fnmatch import fnmatchcase
from itertools import chain
from pathlib import Path
from typing import Any

from raysum.errors import UserError
from raysum.sources.documents.file_positions import ORIGIN, Origin
from raysum.sources.formats import FORMATS
from raysum.sources.published import PUBLISHED, published_dataset, with_our_fields
from raysum.sources.record import LISTS, Record, Rejected, as_list, parse_json
from raysum.sources.staging import natural_key

# Separators that join a list of texts to one text: the field itself, or one item of a field that is a list.
_JOINTS = {"id": " ", "title": " ", "summary": "\n", "split": " "}
_JOINTS |= {"documents": "\n\n", "paragraphs": " ", "summaries": "\n"}
_CLUSTERS, _SOURCE, _SEPARATOR, _JOINED = "clusters", "source", "separator", "joined"
_KINDS = ("documents", "paragraphs")
_SEVERAL = (*LISTS, _SOURCE)  # fields that take several paths
FIELDS = (*_JOINTS, _SOURCE, _CLUSTERS)
_STEP = re.compile(r"[^.\[\]]+|\[\]")
_PATH = re.compile(r"[^.\[\]]+(\[\])*(\.[^.\[\]]+(\[\])*)*")
_PATTERN = re.compile("[*?]")
_MAX_KEYS = 20  # in a message


@dataclass(frozen=True)
class FieldMapping:
    """``paths`` by our field; ``separator`` splits a text into documents.

    The field ``source`` names each document, and ``clusters`` is the list of clusters in a row. Without ``paths``,
    the keys of rows identify published datasets. ``format`` is the format of the files, or the dataset of the rows.
    ``summaries`` is the path of the summaries of documents, ``table`` the name of a table in a file of several.
    ``used`` collects the options that had an effect on the rows read so far.
    """

    paths: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    separator: str | None = None
    format: str | None = None
    summaries: str | None = None
    table: str = ""
    used: set[str] = field(default_factory=set, compare=False)

    @classmethod
    def of(
        cls, pairs: Iterable[str], separator: str | None = None, format: str | None = None, summaries: str | None = None
    ) -> "FieldMapping":
        """Return the mapping of ``field=path`` pairs. Raises ValueError for a wrong pair or an unknown format."""
        format, _, table = (format or "").partition(":")
        if format and format not in (*FORMATS, *PUBLISHED):
            raise ValueError(
                f"unknown format {reprlib.repr(format)}; name a format of files ({', '.join(FORMATS)}) or a dataset "
                f"({', '.join(PUBLISHED)})"
            )
        found = dict[str, tuple[str, ...]]()
        for pair in pairs:
            name, _, path = pair.partition("=")
            paths = tuple(map(str.strip, path.split(","))) if name in _SEVERAL else (path,)
            if name not in FIELDS or not all(map(_PATH.fullmatch, paths)):
                raise ValueError(
                    f"{pair!r} is not field=path, such as documents=articles[].text; the fields are {', '.join(FIELDS)}"
                )
            found[name] = (*found.get(name, ()), *paths)
            if len(found[name]) > 1 and name not in _SEVERAL:
                raise ValueError(f"maps {name} twice, to {' and '.join(found[name])}; it takes one path: remove one")
        if "documents" in found and "paragraphs" in found:
            raise ValueError("maps both documents and paragraphs; a cluster has only one of them: remove one")
        return cls(found, separator, format or None, summaries, table)

    def unused_options(self) -> list[str]:
        """Return a message for each option that had no effect on the rows read.

        A single path of documents is omitted, since rows without documents are rejected anyway.
        """
        messages = {
            f"{name}={path}": f"--map {name}={path} finds nothing"
            for name, paths in self.paths.items()
            for path in paths
            if name not in _KINDS or len(paths) > 1
        }
        messages |= {_SEPARATOR: f"--separator {self.separator!r} does not occur"} if self.separator else {}
        return [message for option, message in messages.items() if option not in self.used]

    def joined_summaries(self) -> str:
        """Return a message if several texts became one summary in the rows read, otherwise ""."""
        if _JOINED not in self.used:
            return ""
        (path,) = self.paths["summary"]
        return f"--map summary={path} joins several texts to one summary; {_list_remedy(path)}"

    def check_columns(self, path: Path, columns: Collection[str]) -> None:
        """Raises UserError if a table lacks a column of documents, or the first column of a path."""
        if not self.paths and published_dataset(columns, self.format):
            return
        mapped = [(name, column) for name, paths in self.paths.items() for column in paths]
        missing = [(name, _STEP.findall(column)[0]) for name, column in mapped if not _expand(name, column, columns)]
        if {*_KINDS, _CLUSTERS}.isdisjoint(self.paths) and {*_KINDS}.isdisjoint(columns):
            missing = [(_KINDS[0], "documents` or `paragraphs")]
        if missing:
            (name, column), available = missing[0], ", ".join(columns) or "nothing"
            raise UserError(f"{path} has no column `{column}`, only {available}; name one with --map {name}=COLUMN")

    def check_texts(self, name: str | Path) -> None:
        """Raises UserError if there are paths for ``name``, which holds plain texts."""
        if self.paths:
            raise UserError(f"--map maps the fields of rows, but {name} is plain text without fields; remove --map")

    def split_document(self, document: Any) -> list[Any]:
        """Return the documents that the separator makes of one, which is a text or ``{source, text}``."""
        text = document.get("text") if isinstance(document, dict) else document
        if not (self.separator and isinstance(text, str)):
            return [document]
        parts = [part.strip() for part in text.split(self.separator)]
        self.used.update({_SEPARATOR} if len(parts) > 1 else ())
        if not isinstance(document, dict):
            return parts
        parts = [part for part in parts if part] or [""]
        name = document.get(_SOURCE) if len(parts) > 1 else None
        sources = [{_SOURCE: f"{name}, part {number}"} if name else {} for number in range(1, len(parts) + 1)]
        rest = {key: value for key, value in document.items() if key != ORIGIN}  # it has positions in the whole text
        rest |= {ORIGIN: Origin(is_extracted=True)} if Origin.of(document).is_extracted else {}
        return [rest | {"text": part} | source for part, source in zip(parts, sources, strict=True)]

    def apply(self, record: Record) -> Iterator[Record]:
        """Yield the record, or each cluster in it, with our fields."""
        parts = [record]
        if _CLUSTERS in self.paths and isinstance(record.raw, dict) and not record.problem:
            (path,) = self.paths[_CLUSTERS]
            clusters = _value_at(record.raw, _STEP.findall(path))
            if not isinstance(clusters, list):
                yield record.rejected(_missing(_CLUSTERS, path, record.raw))
                return
            self.used.add(f"{_CLUSTERS}={path}")
            numbered = enumerate(clusters, 1)
            parts = [replace(record, where=f"{record.where}:{n}", raw=raw, size=0) for n, raw in numbered]
        for part in parts:
            if part.problem or not isinstance(part.raw, dict):
                yield part
                continue
            try:
                rows = [part.raw] if self.paths else with_our_fields(part.raw, self.format)
            except Rejected as error:
                yield part.rejected(error)
                continue
            for number, row in enumerate(rows, 1):
                one = part if len(rows) == 1 else replace(part, where=f"{part.where}:{number}", size=0)
                try:
                    yield replace(one, raw=self._mapped(row) if self.is_set else row)
                except Rejected as error:
                    yield replace(one, raw=row).rejected(error)

    @property
    def is_set(self) -> bool:
        """Whether rows have other fields than ours, or texts of several documents."""
        return bool(self.paths or self.separator)

    def _mapped(self, raw: dict[str, Any]) -> dict[str, Any]:
        """Return a row with our fields. Raises Rejected if a mapped field does not have its shape."""
        paths = {name: path for name, path in self.paths.items() if name != _CLUSTERS}
        if self.separator and not {*_KINDS} & paths.keys():
            name = "paragraphs" if "paragraphs" in raw and "documents" not in raw else "documents"
            paths[name] = (name,)
        values = {name: self._value(raw, name, path) for name, path in paths.items()}
        if isinstance(summary := values.get("summary"), list) and len(summary) > 1:
            if "[]" not in paths["summary"][0]:
                raise Rejected("summary is a list of texts", _list_remedy(paths["summary"][0]))
            self.used.add(_JOINED)
        ours = {name: value for name, value in raw.items() if name not in paths}
        for name, joint in _JOINTS.items():
            value = as_list(values.get(name)) if name in LISTS else values.get(name)
            if value is not None and name in LISTS:
                ours[name] = [_as_text(item, joint) for item in (value if isinstance(value, list) else [value])]
            elif value is not None:
                ours[name] = _as_text(value, joint)
        kind = next((name for name in _KINDS if name in paths), None)
        if kind is None:
            return ours
        if kind not in ours:
            raise _missing(kind, ",".join(paths[kind]), raw)
        texts = [part for item in ours[kind] for part in self.split_document(item)]
        names = values.get(_SOURCE)
        if names is not None:
            names = names if isinstance(names, list) else [names]
            if len(names) != len(texts):
                raise Rejected("not as many sources as documents", f"{len(names)} and {len(texts)}")
            named = zip(names, texts, strict=True)
            texts = [{"source": _as_text(name, " "), "text": text} for name, text in named if text]
        others = {name: value for name, value in ours.items() if name not in _KINDS}
        return others | {kind: [text for text in texts if text not in (None, "")]}

    def _value(self, raw: Mapping[str, Any], name: str, paths: Sequence[str]) -> Any:
        """Return the value of our field ``name``: the value at its path, or the list of all values at its paths."""
        values = list[Any]()
        for path in paths:
            at_path = [_value_at(raw, _STEP.findall(column)) for column in _expand(name, path, raw)]
            at_path = [value for value in at_path if value is not None]
            values += at_path
            self.used.update([f"{name}={path}"] if at_path else [])
        if len(values) < 2 and len(paths) == 1 and not _PATTERN.search(paths[0]):
            return values[0] if values else None
        lists = [value if name == _SOURCE else as_list(value) or "" for value in values]
        return [*chain.from_iterable(value if isinstance(value, list) else [value] for value in lists)] or None


def _list_remedy(path: str) -> str:
    bare = path.removesuffix("[]")
    lines = "" if "[]" in path else f", and --map summary={path}[] joins them as lines of one summary"
    return f"--map summaries={bare} makes each text a separate reference{lines}"


def _expand(name: str, path: str, columns: Collection[str]) -> list[str]:
    """Return ``path`` with each of the ``columns`` that match its first name, in natural order."""
    first = _STEP.findall(path)[0]
    if first in columns or not (name in _SEVERAL and _PATTERN.search(first)):
        return [path] if first in columns else []
    matching = sorted((column for column in columns if fnmatchcase(column, first)), key=natural_key)
    return [column + path.removeprefix(first) for column in matching]


def describe_keys(raw: Mapping[str, Any]) -> str:
    """Return the keys of a row without documents, except its id, and the option that maps them."""
    keys = sorted({*map(str, raw)} - {"id"})[:_MAX_KEYS]
    return f"found {', '.join(keys) or 'nothing'}; name them with --map documents=..."


def _missing(name: str, path: str, raw: Mapping[str, Any]) -> Rejected:
    return Rejected(f"no {name}", f"nothing at {path}; {describe_keys(raw)}")


def _value_at(value: Any, steps: list[str]) -> Any:
    """Return the value at a path in ``value``, or None. Nested lists become one list."""
    if not steps:
        return value
    if isinstance(value, str) and value.lstrip()[:1] in ("[", "{"):
        try:
            value = parse_json(value)
        except (ValueError, Rejected):
            return None
    first, *rest = steps
    if first != "[]":
        return _value_at(value.get(first), rest) if isinstance(value, dict) else None
    if not isinstance(value, list):
        return None
    values = [_value_at(item, rest) for item in value]
    return [part for group in values for part in group or []] if "[]" in rest else values


def _as_text(value: Any, joint: str) -> Any:
    """Return a number or a list of texts as one text, and other values unchanged."""
    if isinstance(value, list) and all(isinstance(part, str) for part in value):
        return joint.join(value)
    return json.dumps(value) if isinstance(value, int | float) else value
