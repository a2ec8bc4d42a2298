"""Check the fields of a raw cluster."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import chain
from typing import Any

from raysum.sources.field_mapping import describe_keys
from raysum.sources.record import Rejected

_MAX_REFERENCES = 64  # of a cluster: each is a column of the table of lengths


@dataclass(frozen=True)
class Cluster:
    """A checked raw cluster."""

    id: str
    title: str
    documents: list[tuple[str, str]]  # name and text
    cut_into_paragraphs: bool  # each document is one paragraph
    summaries: list[str]  # the references
    raw: Mapping[str, Any]


def read_cluster(raw: Mapping[str, Any]) -> Cluster:
    """Return the checked cluster. Raises Rejected with the wrong field."""
    if not isinstance(raw, Mapping):
        raise Rejected("not an object with title and documents")
    for field in ("title", "summary"):
        if not isinstance(raw.get(field), str | None):
            raise Rejected(f"{field} is not a text")
    title, others = raw.get("title") or "", raw.get("summaries") or []
    if not isinstance(others, list) or not all(isinstance(summary, str) for summary in others):
        raise Rejected("summaries is not a list of texts")
    if len(others) > _MAX_REFERENCES:
        raise Rejected(f"more than {_MAX_REFERENCES} summaries", str(len(others)))
    summaries = [summary for summary in dict.fromkeys([raw.get("summary") or "", *others]) if summary.strip()]
    documents, paragraphs = raw.get("documents"), raw.get("paragraphs")
    if "paragraph_ids" in raw:
        raise Rejected("rows of ids need the vocabulary that made them", "prepare them with --vocab FILE.model")
    if not documents and not paragraphs:
        raise Rejected("no documents", "" if {"documents", "paragraphs"} & raw.keys() else describe_keys(raw))
    if documents and paragraphs:
        raise Rejected("both documents and paragraphs")
    kind, items = ("document", documents) if documents else ("paragraph", paragraphs)
    if not isinstance(items, list):
        raise Rejected(f"{kind}s is not a list")
    texts = [_document(item, f"{kind} {number}") for number, item in enumerate(items, 1)]
    id = "" if raw.get("id") is None else str(raw["id"])
    try:
        for text in (id, title, *summaries, *chain.from_iterable(texts)):
            text.encode()
    except UnicodeEncodeError:
        raise Rejected("a text is not valid Unicode", "half of a surrogate pair") from None
    return Cluster(id, " ".join(title.split()), texts, not documents, summaries, raw)


def _document(item: Any, name: str) -> tuple[str, str]:
    if isinstance(item, Mapping):
        name, item = item.get("source") or name, item.get("text")
    if not isinstance(item, str) or not isinstance(name, str):
        raise Rejected("a document is neither a text nor an object with source and text")
    return name, item
