"""Check a raw cluster, and decode one that comes as ids of a vocabulary, such as the published ranked WikiSum."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from itertools import chain
from typing import TYPE_CHECKING, Any

import numpy as np

from raysum.sources.field_mapping import describe_keys
from raysum.sources.record import Rejected
from raysum.tokenizers.special_tokens import PUBLISHED

if TYPE_CHECKING:
    from raysum.tokenizers.tokenizer import Tokenizer

IDS = "paragraph_ids"  # the field of clusters that come as ids
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
    # Of a cluster that came as ids: the best paragraph is first and opens with the title.
    ids: list[np.ndarray] | None = None
    target_ids: np.ndarray | None = None


def read_cluster(raw: Mapping[str, Any], vocabulary: Tokenizer | None = None) -> Cluster:
    """Return the checked cluster; ``vocabulary`` decodes one of ids. Raises Rejected with the wrong field."""
    if not isinstance(raw, Mapping):
        raise Rejected("not an object with title and documents")
    if IDS in raw:
        return _decode(raw, vocabulary)
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


def _decode(raw: Mapping[str, Any], vocabulary: Tokenizer | None) -> Cluster:
    from raysum.data.rows import title_tokens  # loads pyarrow

    if vocabulary is None:
        raise Rejected("rows of ids need the vocabulary that made them", "prepare them with --vocab FILE.model")
    if vocabulary.marks != PUBLISHED:
        raise Rejected("rows of ids are in the pieces of a SentencePiece vocabulary", "with <T>, <S> and </S>")
    *paragraphs, target = id_arrays(raw, len(vocabulary))
    if not any(map(len, paragraphs)):
        raise Rejected("no text in the documents")
    if not len(paragraphs[0]):  # the first paragraph with ids opens with the title
        paragraphs.sort(key=lambda ids: not len(ids))
    num_title = title_tokens(paragraphs[0])
    texts = raw.get("paragraph_texts")
    if not isinstance(texts, list) or len(texts) != len(paragraphs):
        without_title = [paragraphs[0][num_title:], *paragraphs[1:]]
        texts = [vocabulary.decode(ids.tolist()) for ids in without_title]
    used = (IDS, "target_ids", "paragraph_texts", "graphs")
    others = {name: value for name, value in raw.items() if name not in used}
    title = raw.get("title") or vocabulary.decode(paragraphs[0][:num_title].tolist())
    summary = others.get("summary") or "\n".join(vocabulary.sentences(target.tolist()))
    cluster = read_cluster(others | {"title": title, "paragraphs": texts, "summary": summary})
    return replace(cluster, ids=paragraphs, target_ids=target)


def id_arrays(raw: Mapping[str, Any], num_pieces: float = math.inf) -> list[np.ndarray]:
    """Return the ids of each paragraph of a cluster of ids, and last those of the target.

    Raises Rejected unless they are whole numbers below ``num_pieces``.
    """
    import pyarrow as pa

    try:
        column = pa.array([*raw[IDS], raw.get("target_ids") or []])
        ids = column.cast(pa.list_(pa.int64())).flatten()
    except (pa.ArrowException, TypeError, OverflowError):
        raise Rejected("ids are no lists of whole numbers") from None
    kind = column.type.value_type
    if column.null_count or ids.null_count or not (pa.types.is_integer(kind) or pa.types.is_null(kind)):
        raise Rejected("ids are no lists of whole numbers")
    values = ids.to_numpy()
    if len(values) and not 0 <= values.min() <= values.max() < num_pieces:
        raise Rejected("an id is not of the vocabulary", f"{values.min()} to {values.max()} of {num_pieces} pieces")
    return np.split(values, column.offsets.to_numpy()[1:-1])
