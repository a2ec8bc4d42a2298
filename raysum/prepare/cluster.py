"""A checked raw cluster, and the columns of a row that tell of it as a whole."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import chain
from typing import TYPE_CHECKING, Any

import numpy as np

from raysum.data.recipe import Recipe
from raysum.sources.record import Rejected
from raysum.sources.shape import keys_told

if TYPE_CHECKING:
    from raysum.data.rows import Row
    from raysum.tokenizers.tokenizer import Tokenizer

_MOST_REFERENCES = 64  # of a cluster: each is a column of the table of lengths


@dataclass(frozen=True)
class Cluster:
    """A checked raw cluster."""

    id: str
    title: str
    documents: list[tuple[str, str]]  # name and text
    cut_into_paragraphs: bool  # each document is one paragraph already
    summaries: list[str]  # the references
    raw: Mapping[str, Any]


def read_cluster(raw: Mapping[str, Any]) -> Cluster:
    """Check the fields of a raw cluster. Raises Rejected naming the field."""
    if not isinstance(raw, Mapping):
        raise Rejected("not an object with title and documents")
    for field in ("title", "summary"):
        if not isinstance(raw.get(field), str | None):
            raise Rejected(f"{field} is not a text")
    title, others = raw.get("title") or "", raw.get("summaries") or []
    if not isinstance(others, list) or not all(isinstance(one, str) for one in others):
        raise Rejected("summaries is not a list of texts")
    if len(others) > _MOST_REFERENCES:
        raise Rejected(f"more than {_MOST_REFERENCES} summaries", str(len(others)))
    summaries = [one for one in dict.fromkeys([raw.get("summary") or "", *others]) if one.strip()]
    documents, paragraphs = raw.get("documents"), raw.get("paragraphs")
    if "paragraph_ids" in raw:
        raise Rejected("rows of ids need the vocabulary that made them", "prepare them with --vocab FILE.model")
    if not documents and not paragraphs:
        raise Rejected("no documents", "" if {"documents", "paragraphs"} & raw.keys() else keys_told(raw))
    if documents and paragraphs:
        raise Rejected("both documents and paragraphs")
    kind, given = ("document", documents) if documents else ("paragraph", paragraphs)
    if not isinstance(given, list):
        raise Rejected(f"{kind}s is not a list")
    named = [_document(item, f"{kind} {number}") for number, item in enumerate(given, 1)]
    name = "" if raw.get("id") is None else str(raw["id"])
    try:
        for text in (name, title, *summaries, *chain.from_iterable(named)):
            text.encode()
    except UnicodeEncodeError:
        raise Rejected("a text is not valid Unicode", "half of a surrogate pair") from None
    return Cluster(name, " ".join(title.split()), named, not documents, summaries, raw)


def _document(item: Any, name: str) -> tuple[str, str]:
    if isinstance(item, Mapping):
        name, item = item.get("source") or name, item.get("text")
    if not isinstance(item, str) or not isinstance(name, str):
        raise Rejected("a document is neither a text nor an object with source and text")
    return name, item


def columns_of(cluster: Cluster, recipe: Recipe, vocabulary: Tokenizer) -> Row:
    """Id, title, names of the documents, references and kept fields. Raises Rejected where these are no JSON."""
    targets = [(text, vocabulary.encode_summary(text, recipe.normalize)) for text in cluster.summaries]
    empty = 2 + len(vocabulary.marks.target_prefix)  # start and end
    targets = [(text, ids) for text, ids in targets if len(ids) > empty]
    (summary, target), *others = targets or [("", [])]
    return {
        "id": cluster.id,
        "title": cluster.title,
        "source": [name for name, _ in cluster.documents],
        "target_ids": np.array(target, np.int32),
        "summary": summary,
        "other_target_ids": np.array([*chain.from_iterable(ids for _, ids in others)], np.int32),
        "other_target_offsets": np.cumsum([0, *(len(ids) for _, ids in others)] if others else [], dtype=np.int32),
        "other_summaries": [text for text, _ in others],
        "extra": _extra(cluster.raw, recipe),
    }


def _extra(raw: Mapping[str, Any], recipe: Recipe) -> str:
    kept = {name: raw[name] for name in recipe.keep if raw.get(name)}
    try:
        return json.dumps(kept) if kept else ""
    except (TypeError, ValueError, RecursionError) as error:
        raise Rejected("a kept field cannot be written as JSON", str(error)) from None
