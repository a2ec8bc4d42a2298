"""Suggest a mapping of fields for rows with other names, by the names and the lengths of their columns."""

import re
from collections.abc import Mapping, Sequence
from itertools import chain
from statistics import mean
from typing import Any

from raysum.sources.record import as_list

_SUMMARY = re.compile(r"(?i).*(summ|abstract|highlight|tl;?dr|gist|reference|target|tgt)")
_HEADLINE = re.compile(r"(?i).*headline")  # a summary if no other column is one, otherwise a title
_TITLE = re.compile(r"(?i).*(title|subject|topic|query|question)")
MIN_WORDS, _MAX_TITLE = 5, 40  # words of a document, and of a title
_TIMES_LONGER = 1.5  # the documents than the summary, at least, if no name says which column is the summary
_MAX_NAME = 4  # words of the name of a column, which the first line of a text exceeds
_Row = Mapping[str, Any]


def suggested_map(rows: Sequence[_Row]) -> list[str]:
    """Return ``field=path`` pairs for rows without our fields, or nothing if no column is long enough."""
    words = {name: mean_words(rows, name) for name in dict.fromkeys(chain.from_iterable(rows))}
    texts = [name for name, length in words.items() if length]
    summary = next((name for name in texts if _SUMMARY.match(name)), None)
    title = next((name for name in texts if _TITLE.match(name) and words[name] <= _MAX_TITLE), None)
    headline = next((name for name in texts if _HEADLINE.match(name)), None)
    others = [name for name in texts if name not in (summary, title, headline) and not _SUMMARY.match(name)]
    documents = max(others, key=words.__getitem__, default=None)
    if not summary and len(others) > 1 and documents:  # the next longest column, if it is much shorter
        path = _path(rows, documents)
        rest = [name for name in others if _path(rows, name) != path]
        length = sum(words[name] for name in others if name not in rest)
        second = max(rest, key=words.__getitem__, default=None)
        summary = second if second and MIN_WORDS <= words[second] <= length / _TIMES_LONGER else None
    if not summary:
        summary = headline
    elif not title:
        title = headline
    is_header = all(len(str(name).split()) <= _MAX_NAME for name in words)
    if documents is None or words[documents] < MIN_WORDS or not is_header:
        return []
    pairs = [f"documents={_path(rows, documents)}"]
    if summary and summary != "summary":
        path = _path(rows, summary)
        several = "*" in path or isinstance(_first(rows, summary), list)
        pairs.append(f"{'summaries' if several else 'summary'}={path}")
    return pairs + ([f"title={title}"] if title and title != "title" else [])


def _path(rows: Sequence[_Row], name: str) -> str:
    """Return the path of the texts in a column, and in those that differ from it by a number."""
    stem = name.rstrip("0123456789")
    if stem != name and sum(bool(re.fullmatch(rf"{re.escape(stem)}\d+", other)) for other in rows[0]) > 1:
        return f"{stem}*"
    value = _first(rows, name)
    item = next((item for item in value if isinstance(item, dict)), None) if isinstance(value, list) else None
    return f"{name}[].{max(item, key=lambda key: _words(item[key]))}" if item else name


def _first(rows: Sequence[_Row], name: str) -> Any:
    value = next((row[name] for row in rows if row.get(name)), None)
    return as_list(value) if isinstance(value, str) and value.lstrip().startswith("[") else value


def mean_words(rows: Sequence[_Row], name: str) -> float:
    """Return the mean number of words in all texts of a column."""
    return round(mean([_words(row.get(name)) for row in rows] or [0]), 1)


def _words(value: Any) -> int:
    if isinstance(value, str):
        return len(value.split())
    items = value.values() if isinstance(value, Mapping) else value if isinstance(value, list) else ()
    return sum(map(_words, items))
