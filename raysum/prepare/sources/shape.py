"""Clusters of other shapes than ours: where each of our fields stands in them, by paths such as ``articles[].text``.

A path is names with dots between them; ``[]`` behind a name goes on with each item of the list that is there. A text
that holds JSON, as in a table's column, is gone into like any other value.
"""

import json
import re
import reprlib
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from raysum.errors import UserError
from raysum.prepare.sources.formats import FORMATS
from raysum.prepare.sources.known import KNOWN, as_ours, known_as
from raysum.prepare.sources.record import Record, Rejected, listed_texts, parse_json

# What a list of texts is joined by where one text is wanted; sentences of a summary may stand on lines.
_TEXTS = {"id": " ", "title": " ", "summary": "\n", "split": " "}
_LISTS = {"documents": "\n\n", "paragraphs": " ", "summaries": "\n"}
_CLUSTERS, _SOURCE, _SEPARATOR = "clusters", "source", "separator"
_KINDS = ("documents", "paragraphs")
FIELDS = (*_TEXTS, *_LISTS, _SOURCE, _CLUSTERS)
_STEP = re.compile(r"[^.\[\]]+|\[\]")
_PATH = re.compile(r"[^.\[\]]+(\[\])*(\.[^.\[\]]+(\[\])*)*")
_KEYS_SHOWN = 20


@dataclass(frozen=True)
class Shape:
    """``paths`` by our field; ``separator`` parts a text into documents. Without either, rows are as they should be.

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
        paths = {}
        if format is not None and format not in (*FORMATS, *KNOWN):
            raise ValueError(
                f"no format {reprlib.repr(format)}; of files there are {', '.join(FORMATS)}, of rows {', '.join(KNOWN)}"
            )
        for pair in pairs:
            name, _, path = pair.partition("=")
            if name not in FIELDS or not _PATH.fullmatch(path):
                raise ValueError(
                    f"{pair!r} is not field=path, such as documents=articles[].text; the fields are {', '.join(FIELDS)}"
                )
            paths[name] = path
        if "documents" in paths and "paragraphs" in paths:
            raise ValueError("maps both documents and paragraphs; a cluster has one of them")
        return cls(paths, separator, format)

    def idle(self) -> list[str]:
        """What was of no use in the rows that were read; rows without documents are rejected anyway."""
        told = {name: f"--map {name}={path} finds nothing" for name, path in self.paths.items() if name not in _KINDS}
        told |= {_SEPARATOR: f"--separator {self.separator!r} stands in no text"} if self.separator else {}
        return [line for name, line in told.items() if name not in self.found]

    def check_columns(self, path: Path, columns: Collection[str]) -> None:
        """Raises UserError where a table lacks the column of documents, or one that a path begins with."""
        if not self.paths and known_as(columns, self.format):
            return
        lacking = [first for path_ in self.paths.values() if (first := _STEP.findall(path_)[0]) not in columns]
        if not {*_KINDS} & {*columns, *self.paths} and _CLUSTERS not in self.paths:
            lacking = ["documents` or `paragraphs"]
        if lacking:
            found = ", ".join(columns) or "nothing"
            raise UserError(f"{path} has no column `{lacking[0]}`, only {found}; name one with --map documents=COLUMN")

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
        self.found.add(_CLUSTERS)
        for number, raw in enumerate(inside, 1):
            part = replace(record, where=f"{record.where}:{number}", raw=raw, size=0)
            yield self._mapped(part) if isinstance(raw, dict) else part

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
        values = {name: _at(record.raw, _STEP.findall(path)) for name, path in paths.items()}
        self.found.update(name for name, value in values.items() if value is not None)
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
