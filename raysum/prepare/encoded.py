"""Clusters that come as ids of the vocabulary, as the published ranked WikiSum does: kept exactly as they are."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from raysum.data.recipe import Recipe
from raysum.data.rows import title_tokens
from raysum.prepare.cluster import columns_of, read_cluster
from raysum.prepare.corpus_stats import bigram_counts, language_counts
from raysum.prepare.graphs import NO_EDGES, Edges
from raysum.sources.record import Rejected
from raysum.text.tfidf import words
from raysum.tokenizers.special_tokens import PUBLISHED

if TYPE_CHECKING:
    from raysum.data.rows import Row
    from raysum.tokenizers.tokenizer import Tokenizer

IDS = "paragraph_ids"
_GRAPHS = {"similarity": ("sim_graph", "topic_graph"), "discourse": ("discourse_graph",)}


def decoded(raw: Mapping[str, Any], vocabulary: Tokenizer) -> dict[str, Any]:
    """The cluster as texts: each paragraph, the title that opens the first, and the summary where there is none yet.

    Raises Rejected where ids are wrong.
    """
    return _texts(raw, *_read(raw, vocabulary), vocabulary)


def _read(raw: Mapping[str, Any], vocabulary: Tokenizer) -> tuple[list[np.ndarray], np.ndarray]:
    """The ids of each paragraph, and of the summary."""
    if vocabulary.marks != PUBLISHED:
        raise Rejected("rows of ids are in the pieces of a SentencePiece vocabulary", "with <T>, <S> and </S>")
    return _paragraphs(raw, vocabulary), _ids(raw.get("target_ids") or [], vocabulary)


def _texts(
    raw: Mapping[str, Any], paragraphs: list[np.ndarray], target: np.ndarray, vocabulary: Tokenizer
) -> dict[str, Any]:
    first = title_tokens(paragraphs[0])
    texts = raw.get("paragraph_texts")
    if not isinstance(texts, list) or len(texts) != len(paragraphs):
        opened = [paragraphs[0][first:], *paragraphs[1:]]
        texts = [vocabulary.decode(ids.tolist()) for ids in opened]
    left = {name: value for name, value in raw.items() if name not in (IDS, "target_ids", "paragraph_texts", "graphs")}
    title = raw.get("title") or vocabulary.decode(paragraphs[0][:first].tolist())
    summary = left.get("summary") or "\n".join(vocabulary.sentences(target.tolist()))
    return left | {"title": title, "paragraphs": texts, "summary": summary}


def encoded_row(raw: Mapping[str, Any], recipe: Recipe, vocabulary: Tokenizer) -> tuple[Row, Counter[str]]:
    """The row of a cluster of ids, best paragraph first, and what was cut. Raises Rejected where ids are wrong."""
    paragraphs, target = _read(raw, vocabulary)
    cluster = read_cluster(_texts(raw, paragraphs, target, vocabulary))
    marks = vocabulary.marks
    if len(target) and (target[0] != marks.start or target[-1] != marks.end):
        raise Rejected("target ids do not begin with <S> and end with </S>")
    real = [number for number, ids in enumerate(paragraphs) if len(ids)]
    kept = real[: recipe.max_paragraphs]
    cut = [paragraphs[number][: recipe.paragraph_tokens] for number in kept]
    texts = [cluster.documents[number][1] for number in kept]
    edges = _edges(raw, recipe, kept)
    row: Row = {
        **columns_of(cluster, recipe, vocabulary),
        "ids": np.concatenate(cut).astype(np.int32),
        "title_tokens": title_tokens(cut[0]),
        "paragraph_offsets": np.cumsum([0, *map(len, cut)]).astype(np.int32),
        "sentence_offsets": np.cumsum([0, *map(len, cut)]).astype(np.int32),
        "document": np.array(kept, np.int32),
        "paragraph": np.zeros(len(kept), np.int32),
        "char_start": np.zeros(len(kept), np.int32),
        "char_end": np.array([len(text) for text in texts], np.int32),
        "text": texts,
        "rank_score": np.zeros(len(kept), np.float32),
        "graph_row": edges[0],
        "graph_col": edges[1],
        "graph_value": edges[2],
    }
    row["target_ids"] = target.astype(np.int32)
    tokens = sum(len(paragraphs[number]) for number in kept)
    lengths = [len(text.split()) for _, text in cluster.documents]
    counts = Counter(
        paragraphs_found=len(real),
        paragraphs_ranked_out=len(real) - len(kept),
        paragraphs_cut=sum(len(paragraphs[number]) > recipe.paragraph_tokens for number in kept),
        words=sum(lengths),
        words_ranked_out=sum(lengths) - sum(lengths[number] for number in kept),
        tokens=tokens,
        tokens_cut=tokens - len(row["ids"]),
        without_summary=int(not len(target)),
    )
    everything = [words(text) for _, text in cluster.documents]
    sizes, held = [len(paragraphs[number]) for number in kept], [everything[number] for number in kept]
    return row, counts + bigram_counts(row, sizes, held, everything, recipe, vocabulary) + language_counts(cluster)


def _paragraphs(raw: Mapping[str, Any], vocabulary: Tokenizer) -> list[np.ndarray]:
    given = raw[IDS]
    if not isinstance(given, list):
        raise Rejected("paragraphs of ids are no list of lists")
    found = [_ids(ids, vocabulary) for ids in given]
    if not any(map(len, found)):
        raise Rejected("no text in the documents")
    if not len(found[0]):  # the title stands in the first that has any
        found.sort(key=lambda ids: not len(ids))
    return found


def _ids(given: Any, vocabulary: Tokenizer) -> np.ndarray:
    try:
        ids = np.asarray(given if len(given) else np.empty(0, np.int64))
    except (ValueError, TypeError):
        raise Rejected("paragraphs of ids are no list of lists") from None
    if ids.ndim != 1 or not np.issubdtype(ids.dtype, np.integer):
        raise Rejected("ids are no whole numbers")
    if len(ids) and not 0 <= ids.min() <= ids.max() < len(vocabulary):
        raise Rejected("an id is not of the vocabulary", f"{ids.min()} to {ids.max()} of {len(vocabulary)} pieces")
    return ids


def _edges(raw: Mapping[str, Any], recipe: Recipe, kept: Sequence[int]) -> Edges:
    """Those of the row's own graph between the kept paragraphs."""
    if recipe.graph == "none":
        return NO_EDGES
    graphs = raw.get("graphs") or {}
    name = next((name for name in _GRAPHS[recipe.graph] if name in graphs), None)
    if name is None:
        raise Rejected(f"no {recipe.graph} graph in a row of ids", f"it has {', '.join(graphs) or 'none'}")
    try:
        values = np.asarray(graphs[name], np.float32)
        values = values[np.ix_(kept, kept)]
    except (ValueError, TypeError, IndexError):
        raise Rejected("the graph is no square of numbers for the paragraphs", name) from None
    np.fill_diagonal(values, 0)
    rows, columns = np.nonzero(values)
    return rows.astype(np.int16), columns.astype(np.int16), values[rows, columns]
