"""Clusters of other shapes than ours: where each of our fields stands in them, by paths such as ``articles[].text``.

A path is names with dots between them; ``[]`` behind a name goes on with each item of the list that is there. A text
that holds JSON, as in a table's column, is gone into like any other value. Fields that hold a list take several paths
(``rev1,rev2``, or ``rev*`` for all names of that form, in natural order) and join what these find.
"""

import json
import re
import reprlib
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from fnmatch import fnmatchcase
from itertools import chain
from pathlib import Path
from typing import Any

from raysum.errors import UserError
from raysum.sources.formats import FORMATS
from raysum.sources.published_datasets import KNOWN, as_ours, known_as
from raysum.sources.record import Record, Rejected, listed_texts, parse_json
from raysum.sources.staging import natural

# What a list of texts is joined by where one text is wanted; sentences of a summary may stand on lines.
_TEXTS = {"id": " ", "title": " ", "summary": "\n", "split": " "}
_LISTS = {"documents": "\n\n", "paragraphs": " ", "summaries": "\n"}
_CLUSTERS, _SOURCE, _SEPARATOR, _JOINED = "clusters", "source", "separator", "joined"
_KINDS = ("documents", "paragraphs")
_SEVERAL = (*_LISTS, _SOURCE)  # fields that take several paths
FIELDS = (*_TEXTS, *_LISTS, _SOURCE, _CLUSTERS)
_STEP = re.compile(r"[^.\[\]]+|\[\]")
_PATH = re.compile(r"[^.\[\]]+(\[\])*(\.[^.\[\]]+(\[\])*)*")
_KEYS_SHOWN = 20


@dataclass(frozen=True)
class Shape:
    """``paths`` by our field, with commas between several; ``separator`` parts a text into documents. Without either,
    rows are as they should be.

    ``source`` names each document. ``clusters`` is where rows hold several clusters. Rows of published datasets are
    known by their keys where ``paths`` are not given. ``format`` says what files hold, or of which dataset rows are.
    """

    paths: Mapping[str, str] = field(default_factory=dict)
    separator: str | None = None
    format: str | None = None
    found: set[str] = field(default_factory=set, compare=False)  # of paths and separator, by the rows that were read

    @classmethod
    def of(cls, pairs: Iterable[str], separator: str | None = None, format: str | None = None) -> "Shape":
        """From ``field=path`` pairs. Raises ValueError naming what is wrong with one, or a format that is not known."""
        paths = dict[str, str]()
        if format is not None and format not in (*FORMATS, *KNOWN):
            raise ValueError(
                f"no format {reprlib.repr(format)}; of files there are {', '.join(FORMATS)}, of rows {', '.join(KNOWN)}"
            )
        for pair in pairs:
            name, _, path = pair.partition("=")
            if name not in FIELDS or not all(map(_PATH.fullmatch, _split(name, path))):
                raise ValueError(
                    f"{pair!r} is not field=path, such as documents=articles[].text; the fields are {', '.join(FIELDS)}"
                )
            if name in paths and name not in _SEVERAL:
                raise ValueError(f"maps {name} twice, to {paths[name]} and {path}; it takes one path: leave one out")
            paths[name] = f"{paths[name]},{path}" if name in paths else path
        if "documents" in paths and "paragraphs" in paths:
            raise ValueError("maps both documents and paragraphs; a cluster has one of them")
        return cls(paths, separator, format)

    def idle(self) -> list[str]:
        """What was of no use in the rows that were read; rows without documents are rejected anyway."""
        paths = {name: _split(name, path) for name, path in self.paths.items()}
        told = {
            f"{name}={path}": f"--map {name}={path} finds nothing"
            for name, several in paths.items()
            for path in several
            if name not in _KINDS or len(several) > 1
        }
        told |= {_SEPARATOR: f"--separator {self.separator!r} stands in no text"} if self.separator else {}
        return [line for name, line in told.items() if name not in self.found]

    def joined_summaries(self) -> str:
        """A line where the rows that were read hold several texts in the place of a summary; empty otherwise."""
        path = self.paths.get("summary", "")
        return f"--map summary={path} joins several texts to one summary; {_of_lists(path)}" * (_JOINED in self.found)

    def check_columns(self, path: Path, columns: Collection[str]) -> None:
        """Raises UserError where a table lacks the column of documents, or one that a path begins with."""
        if not self.paths and known_as(columns, self.format):
            return
        asked = [(name, path) for name, paths in self.paths.items() for path in _split(name, paths)]
        lacking = [_STEP.findall(path)[0] for name, path in asked if not _columns(name, path, columns)]
        if not {*_KINDS} & {*columns, *self.paths} and _CLUSTERS not in self.paths:
            lacking = ["documents` or `paragraphs"]
        if lacking:
            found = ", ".join(columns) or "nothing"
            name = next((name for name, path in asked if _STEP.findall(path)[0] == lacking[0]), _KINDS[0])
            raise UserError(f"{path} has no column `{lacking[0]}`, only {found}; name one with --map {name}=COLUMN")

    def check_texts(self, name: str | Path) -> None:
        """Raises UserError where paths are given for ``name``, which holds plain texts."""
        if self.paths:
            raise UserError(f"--map tells where fields stand in rows; {name} is plain text, without any: leave it out")

    def parted(self, document: Any) -> list[Any]:
        """A document, a text or ``{source, text}``, as what ``separator`` parts it into, with names of their own."""
        text = document.get("text") if isinstance(document, dict) else document
        if not (self.separator and isinstance(text, str)):
            return [document]
        parts = [part.strip() for part in text.split(self.separator)]
        self.found.update({_SEPARATOR} if len(parts) > 1 else ())
        if not isinstance(document, dict):
            return parts
        parts = [part for part in parts if part] or [""]
        name, several = document.get(_SOURCE), len(parts) > 1
        own = [{_SOURCE: f"{name}, part {number}"} if name and several else {} for number in range(1, len(parts) + 1)]
        left = {name: value for name, value in document.items() if name != "places"}  # they are of the whole text
        return [left | {"text": part} | source for part, source in zip(parts, own, strict=True)]

    def applied(self, record: Record) -> Iterator[Record]:
        """The record, or the clusters in it, with our fields."""
        if record.problem or not isinstance(record.raw, dict):
            yield record
            return
        if not self.paths:
            record = as_ours(record, self.format)
        if not (self.paths or self.separator):
            yield record
            return
        if _CLUSTERS not in self.paths:
            yield self._mapped(record)
            return
        inside = _at(record.raw, _STEP.findall(self.paths[_CLUSTERS]))
        if not isinstance(inside, list):
            yield _without(record, _CLUSTERS, self.paths[_CLUSTERS])
            return
        self.found.add(f"{_CLUSTERS}={self.paths[_CLUSTERS]}")
        for number, raw in enumerate(inside, 1):
            part = replace(record, where=f"{record.where}:{number}", raw=raw, size=0)
            yield self._mapped(part) if isinstance(raw, dict) else part

    def _value(self, raw: Mapping[str, Any], name: str, paths: str) -> Any:
        """What stands in ``raw`` for our field ``name``: at its path, or the list of what is at all of its paths."""
        values = list[Any]()
        for path in _split(name, paths):
            found = [(one, _at(raw, _STEP.findall(one))) for one in _columns(name, path, raw)]
            values += [value for _, value in found if value is not None]
            self.found.update([f"{name}={path}"] if any(value is not None for _, value in found) else [])
        if len(values) < 2 and "," not in paths and not _is_pattern(paths):
            return values[0] if values else None
        listed = [value if name == _SOURCE else listed_texts(value) or "" for value in values]
        return [*chain.from_iterable(value if isinstance(value, list) else [value] for value in listed)] or None

    def _mapped(self, record: Record) -> Record:
        try:
            return self._with_our_fields(record)
        except Rejected as error:
            return replace(record, problem=error.reason, detail=error.detail)

    def _with_our_fields(self, record: Record) -> Record:
        paths = {name: path for name, path in self.paths.items() if name != _CLUSTERS}
        if self.separator and not {*_KINDS} & paths.keys():
            given = "paragraphs" if "paragraphs" in record.raw and "documents" not in record.raw else "documents"
            paths[given] = given
        values = {name: self._value(record.raw, name, path) for name, path in paths.items()}
        if isinstance(found := values.get("summary"), list) and len(found) > 1:
            if "[]" not in paths["summary"]:
                raise Rejected("summary is a list of texts", _of_lists(paths["summary"]))
            self.found.add(_JOINED)
        raw = {name: value for name, value in record.raw.items() if name not in paths}
        for name, joint in _TEXTS.items():
            if values.get(name) is not None:
                raw[name] = _text(values[name], joint)
        for name, joint in _LISTS.items():
            value = listed_texts(values.get(name))
            if value is not None:
                raw[name] = [_text(item, joint) for item in (value if isinstance(value, list) else [value])]
        kind = next((name for name in _KINDS if name in paths), None)
        if kind is None:
            return replace(record, raw=raw)
        raw.pop("paragraphs" if kind == "documents" else "documents", None)
        texts = raw.get(kind)
        if texts is None:
            return _without(record, kind, paths[kind])
        texts = [part for item in texts for part in self.parted(item)]
        names = values.get(_SOURCE)
        if names is not None:
            names = names if isinstance(names, list) else [names]
            if len(names) != len(texts):
                raise Rejected("not as many sources as documents", f"{len(names)} and {len(texts)}")
            texts = [
                {"source": _text(name, " "), "text": text} for name, text in zip(names, texts, strict=True) if text
            ]
        return replace(record, raw=raw | {kind: [text for text in texts if text not in (None, "")]})


def _of_lists(path: str) -> str:
    bare = path.removesuffix("[]")
    lines = "" if "[]" in path else f", summary={path}[] joins them as the lines of one"
    return f"--map summaries={bare} takes them as references of which each counts{lines}"


def _is_pattern(path: str) -> bool:
    return "*" in path or "?" in path


def _split(name: str, paths: str) -> list[str]:
    """The paths of our field ``name``: those between commas where it takes several."""
    return [path.strip() for path in paths.split(",")] if name in _SEVERAL else [paths]


def _columns(name: str, path: str, columns: Collection[str]) -> list[str]:
    """``path`` with each of the ``columns`` that its first name tells, in natural order; none where there is none."""
    first = _STEP.findall(path)[0]
    if first in columns or not (name in _SEVERAL and _is_pattern(first)):
        return [path] if first in columns else []
    found = sorted((one for one in columns if fnmatchcase(one, first)), key=natural)
    return [one + path.removeprefix(first) for one in found]


def keys_told(raw: Mapping[str, Any]) -> str:
    """The keys that a row without documents has, besides an id, and what to do with them."""
    shown = sorted({*map(str, raw)} - {"id"})[:_KEYS_SHOWN]
    return f"found {', '.join(shown) or 'nothing'}; name them with --map documents=..."


def _without(record: Record, name: str, path: str) -> Record:
    return replace(record, problem=f"no {name}", detail=f"nothing at {path}; {keys_told(record.raw)}")


def _at(value: Any, steps: list[str]) -> Any:
    """What is at a path from ``value``; None where there is nothing. Lists inside of lists become one."""
    if not steps:
        return value
    if isinstance(value, str) and value.lstrip()[:1] in ("[", "{"):
        try:
            value = parse_json(value)
        except (ValueError, Rejected):
            return None
    first, *rest = steps
    if first != "[]":
        return _at(value.get(first), rest) if isinstance(value, dict) else None
    if not isinstance(value, list):
        return None
    found = [_at(item, rest) for item in value]
    return [part for group in found for part in group or []] if "[]" in rest else found


def _text(value: Any, joint: str) -> Any:
    """``value`` as one text where it can be: a number, or a list of texts."""
    if isinstance(value, list) and all(isinstance(part, str) for part in value):
        return joint.join(value)
    return json.dumps(value) if isinstance(value, int | float) else value
