"""Build the dataset rows of one raw cluster: check, clean, rank and encode. `prepare` and inference share this module.

Rows of kind summarization and ranking hold paragraphs, rows of kind extraction and pretraining hold sentences in
document order. Clusters that come as ids of the vocabulary, such as the published ranked WikiSum, keep their ids.
M kept paragraphs or sentences, S their tokens, L and N as in the recipe. Columns: see raysum.data.rows.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from itertools import chain, groupby, islice
from typing import TYPE_CHECKING, Any

import numpy as np

from raysum.data.recipe import Recipe
from raysum.data.rows import title_tokens
from raysum.metrics.labels import greedy_labels
from raysum.prepare.cluster import Cluster, read_cluster
from raysum.prepare.corpus_stats import bigram_counts, language_counts
from raysum.prepare.graphs import NO_EDGES, Edges, discourse_graph, similarity_graph
from raysum.prepare.paragraphs import Paragraph, clean_paragraphs, paragraphs_of, split_paragraphs
from raysum.prepare.passages import MAX_SENTENCES, Passage, passages
from raysum.prepare.ranking import best_first, rank_scores
from raysum.sources.record import Rejected
from raysum.text.cleaning import normalize, pieces
from raysum.text.tfidf import count_words, words
from raysum.tokenizers.special_tokens import PUBLISHED

if TYPE_CHECKING:
    from raysum.data.rows import Row
    from raysum.prepare.learned import LearnedRanker
    from raysum.tokenizers.tokenizer import Tokenizer

IDS = "paragraph_ids"  # the field of clusters that come as ids
_PRETRAINING_SENTENCES = 30  # of a row, at most (HIBERT, section 4.1)
# More characters than the kept tokens of a paragraph can have: encoding a text takes 60 times its size in memory.
_MIN_CHARACTERS, _CHARACTERS_PER_TOKEN = 1 << 16, 64
_GRAPHS = {"similarity": ("sim_graph", "topic_graph"), "discourse": ("discourse_graph",)}


def prepare_rows(
    raw: Mapping[str, Any], recipe: Recipe, vocabulary: Tokenizer, ranker: LearnedRanker | None = None
) -> tuple[list[Row], Counter[str]]:
    """Return all rows of a raw cluster and its counts, as ``prepare_counted``. Only kind pretraining gives several."""
    if recipe.kind == "pretraining":
        return _pretraining_rows(read_cluster(_with_texts(raw, vocabulary)), recipe, vocabulary)
    row, counts = prepare_counted(raw, recipe, vocabulary, ranker)
    return [row], counts


def prepare_example(
    raw: Mapping[str, Any], recipe: Recipe, vocabulary: Tokenizer, ranker: LearnedRanker | None = None
) -> Row:
    """Return the dataset row of a raw cluster: lists as numpy arrays, ``text`` and ``source`` as lists of str.

    A ``recipe`` with a learned ranker needs that ``ranker``. A cluster without summary gives empty ``target_ids``.
    Raises Rejected if the cluster has no readable text.
    """
    return prepare_counted(raw, recipe, vocabulary, ranker, whole=False)[0]


def sentence_row(raw: Mapping[str, Any], recipe: Recipe, vocabulary: Tokenizer) -> Row:
    """Return a raw cluster as a row of kind extraction without labels, for a ``recipe`` of any kind.

    Raises Rejected if the cluster has no sentence.
    """
    unlabelled = {name: value for name, value in raw.items() if name not in ("summary", "summaries")}
    return prepare_example(unlabelled, recipe.model_copy(update={"kind": "extraction"}), vocabulary)


def prepare_counted(
    raw: Mapping[str, Any],
    recipe: Recipe,
    vocabulary: Tokenizer,
    ranker: LearnedRanker | None = None,
    whole: bool = True,
) -> tuple[Row, Counter[str]]:
    """Return the row of ``prepare_example`` and counts of the dropped paragraphs, words and tokens.

    ``whole`` also counts the tokens of long paragraphs that are never read, and bigrams and languages; it takes longer.
    """
    if IDS in raw and recipe.kind == "summarization" and ranker is None:
        return _row_of_ids(raw, recipe, vocabulary)
    cluster = read_cluster(_with_texts(raw, vocabulary))
    if recipe.kind == "extraction":
        return _extraction_row(cluster, recipe, vocabulary)
    return _paragraph_row(cluster, recipe, vocabulary, ranker, whole)


def _paragraph_row(
    cluster: Cluster, recipe: Recipe, vocabulary: Tokenizer, ranker: LearnedRanker | None, whole: bool
) -> tuple[Row, Counter[str]]:
    paragraphs = list(paragraphs_of(cluster, recipe.paragraph_separator))
    if not paragraphs:
        raise Rejected("no text in the documents")
    cleaned, repeated = clean_paragraphs(cluster, paragraphs, recipe)
    ranked, scores = _rank(cluster, cleaned, recipe, vocabulary, ranker)
    kept = ranked[: None if recipe.kind == "ranking" else recipe.max_paragraphs]
    row, tokens, encoded = _encode_paragraphs(cluster, kept, scores[: len(kept)], recipe, vocabulary, whole)
    num_words = sum(len(p.words) for p in ranked)
    counts = repeated + Counter(
        paragraphs_found=len(paragraphs),
        paragraphs_cleaned_away=len(paragraphs) - len(cleaned),
        paragraphs_ranked_out=len(ranked) - len(kept),
        words_cleaned_away=sum(len(p.words) for p in paragraphs) - sum(len(p.words) for p in cleaned),
        paragraphs_cut=int((tokens > recipe.paragraph_tokens).sum()),
        words=num_words,
        words_ranked_out=num_words - sum(len(p.words) for p in kept),
        tokens=int(tokens.sum()),
        tokens_cut=int(tokens.sum()) - len(row["ids"]),
        without_summary=int(not len(row["target_ids"])),
        without_title=int(not cluster.title),
    )
    if whole:
        kept_words, all_words = [p.words for p in encoded], [p.words for p in cleaned]
        counts += bigram_counts(row, tokens.tolist(), kept_words, all_words, recipe, vocabulary)
        counts += language_counts(cluster)
    return row, counts


def _rank(
    cluster: Cluster,
    paragraphs: list[Paragraph],
    recipe: Recipe,
    vocabulary: Tokenizer,
    ranker: LearnedRanker | None,
) -> tuple[list[Paragraph], np.ndarray]:
    """Return the paragraphs and their scores, best first; long paragraphs are split if the recipe splits them."""
    if recipe.long_paragraphs == "split":
        paragraphs = list(split_paragraphs(cluster, paragraphs, recipe, vocabulary))
    if ranker:
        scores = ranker.scores(cluster.title, [p.text for p in paragraphs])
    else:
        scores = rank_scores(recipe.ranker, words(cluster.title), [p.words for p in paragraphs])
    order = best_first(scores)
    ranked, scores = [paragraphs[i] for i in order], scores[order]
    if recipe.long_paragraphs == "split":  # the title opens the first paragraph and takes some of its tokens
        room = recipe.paragraph_tokens - len(_encode_title(cluster, recipe, vocabulary))
        first = list(split_paragraphs(cluster, ranked[:1], recipe, vocabulary, room))
        ranked, scores = first + ranked[1:], np.concatenate([scores[:1].repeat(len(first)), scores[1:]])
    return ranked, scores


def _encode_title(cluster: Cluster, recipe: Recipe, vocabulary: Tokenizer) -> list[int]:
    """Return the ids of the title, which opens paragraph 0 as a sentence and takes at most half of its tokens."""
    head = next(pieces(cluster.title, _max_characters(recipe)))
    ids = vocabulary.encode(normalize(head, recipe.normalize))
    return [*ids[: recipe.paragraph_tokens // 2], *vocabulary.marks.title_end]


def _max_characters(recipe: Recipe) -> int:
    return max(_MIN_CHARACTERS, _CHARACTERS_PER_TOKEN * recipe.paragraph_tokens)


def _encode_paragraphs(
    cluster: Cluster,
    paragraphs: list[Paragraph],
    scores: np.ndarray,
    recipe: Recipe,
    vocabulary: Tokenizer,
    whole: bool,
) -> tuple[Row, np.ndarray, list[Paragraph]]:
    """Return the row, [M] the tokens of each paragraph before truncation, and the paragraphs that have tokens.

    Unless ``whole``, the tokens of a very long paragraph are only counted as far as needed.
    """
    most = _max_characters(recipe)
    tokenized = vocabulary.encode_sentences([next(pieces(p.text, most)) for p in paragraphs], recipe.normalize)
    real = [i for i, sentences in enumerate(tokenized) if any(sentences)]
    if not real:
        raise Rejected("no text in the documents")
    paragraphs, tokenized = [paragraphs[i] for i in real], [tokenized[i] for i in real]
    tokenized[0] = [_encode_title(cluster, recipe, vocabulary), *tokenized[0]]
    ids, paragraph_offsets, sentence_offsets = _flatten(tokenized, recipe.paragraph_tokens)
    edges = NO_EDGES
    if recipe.graph == "similarity":
        edges = similarity_graph([p.words for p in paragraphs])
    elif recipe.graph == "discourse":
        edges = discourse_graph([p.text for p in paragraphs], [(p.document, p.position) for p in paragraphs])
    row: Row = {
        **_cluster_columns(cluster, recipe, vocabulary),
        **_source_columns([(p.document, p.number, p.start, p.end, p.text) for p in paragraphs]),
        "ids": ids,
        "title_tokens": len(tokenized[0][0]),
        "paragraph_offsets": paragraph_offsets,
        "sentence_offsets": sentence_offsets,
        "rank_score": scores[real].astype(np.float32),
        "graph_row": edges[0],
        "graph_col": edges[1],
        "graph_value": edges[2],
    }
    unread = (islice(pieces(p.text, most), 1, None if whole else 1) for p in paragraphs)
    extra = [sum(len(vocabulary.encode(normalize(text, recipe.normalize))) for text in texts) for texts in unread]
    sizes = np.array([sum(map(len, sentences)) + more for sentences, more in zip(tokenized, extra, strict=True)])
    return row, sizes, paragraphs


def _flatten(paragraphs: list[list[list[int]]], max_tokens: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return ids [S], paragraph offsets and sentence offsets; each paragraph is truncated to ``max_tokens``."""
    ids: list[int] = []
    paragraph_offsets, sentence_offsets = [0], []
    for paragraph in paragraphs:
        end = len(ids) + max_tokens
        for sentence in paragraph:
            if sentence and len(ids) < end:
                sentence_offsets.append(len(ids))
                ids += sentence[: end - len(ids)]
        paragraph_offsets.append(len(ids))
    sentence_offsets.append(len(ids))
    return np.array(ids, np.int32), np.array(paragraph_offsets, np.int32), np.array(sentence_offsets, np.int32)


# Columns that all kinds share


def _cluster_columns(cluster: Cluster, recipe: Recipe, vocabulary: Tokenizer) -> Row:
    """Return id, title, document names, references and kept fields. Raises Rejected if a field is not JSON."""
    targets = [(text, vocabulary.encode_summary(text, recipe.normalize)) for text in cluster.summaries]
    empty = 2 + len(vocabulary.marks.target_prefix)  # start and end
    targets = [(text, ids) for text, ids in targets if len(ids) > empty]
    (summary, target), *others = targets or [("", [])]
    extra = {name: cluster.raw[name] for name in recipe.keep if cluster.raw.get(name)}
    try:
        extra_json = json.dumps(extra) if extra else ""
    except (TypeError, ValueError, RecursionError) as error:
        raise Rejected("a kept field cannot be written as JSON", str(error)) from None
    return {
        "id": cluster.id,
        "title": cluster.title,
        "source": [name for name, _ in cluster.documents],
        "target_ids": np.array(target, np.int32),
        "summary": summary,
        "other_target_ids": np.array([*chain.from_iterable(ids for _, ids in others)], np.int32),
        "other_target_offsets": np.cumsum([0, *(len(ids) for _, ids in others)] if others else [], dtype=np.int32),
        "other_summaries": [text for text, _ in others],
        "extra": extra_json,
    }


def _source_columns(spans: Sequence[tuple[int, int, int, int, str]]) -> Row:
    """Return the columns for M texts of (document, paragraph, first character, last character + 1, text)."""
    documents, paragraphs, starts, ends, texts = zip(*spans, strict=True) if spans else ((),) * 5
    return {
        "document": np.array(documents, np.int32),
        "paragraph": np.array(paragraphs, np.int32),
        "char_start": np.array(starts, np.int32),
        "char_end": np.array(ends, np.int32),
        "text": [*texts],
    }


# Clusters of ids


def _with_texts(raw: Mapping[str, Any], vocabulary: Tokenizer) -> Mapping[str, Any]:
    """Return a cluster of ids as texts, any other as it is. Raises Rejected if ids are wrong."""
    return _decode(raw, *_read_ids(raw, vocabulary), vocabulary) if IDS in raw else raw


def _read_ids(raw: Mapping[str, Any], vocabulary: Tokenizer) -> tuple[list[np.ndarray], np.ndarray]:
    """Return the ids of each paragraph, and of the summary."""
    if vocabulary.marks != PUBLISHED:
        raise Rejected("rows of ids are in the pieces of a SentencePiece vocabulary", "with <T>, <S> and </S>")
    if not isinstance(raw[IDS], list):
        raise Rejected("paragraphs of ids are no list of lists")
    paragraphs = [_id_array(ids, vocabulary) for ids in raw[IDS]]
    if not any(map(len, paragraphs)):
        raise Rejected("no text in the documents")
    if not len(paragraphs[0]):  # the first paragraph with ids opens with the title
        paragraphs.sort(key=lambda ids: not len(ids))
    return paragraphs, _id_array(raw.get("target_ids") or [], vocabulary)


def _id_array(values: Any, vocabulary: Tokenizer) -> np.ndarray:
    try:
        ids = np.asarray(values if len(values) else np.empty(0, np.int64))
    except (ValueError, TypeError):
        raise Rejected("paragraphs of ids are no list of lists") from None
    if ids.ndim != 1 or not np.issubdtype(ids.dtype, np.integer):
        raise Rejected("ids are no whole numbers")
    if len(ids) and not 0 <= ids.min() <= ids.max() < len(vocabulary):
        raise Rejected("an id is not of the vocabulary", f"{ids.min()} to {ids.max()} of {len(vocabulary)} pieces")
    return ids


def _decode(
    raw: Mapping[str, Any], paragraphs: list[np.ndarray], target: np.ndarray, vocabulary: Tokenizer
) -> dict[str, Any]:
    """Return the cluster as texts: the title (which opens the first paragraph), the paragraphs, and the summary."""
    num_title = title_tokens(paragraphs[0])
    texts = raw.get("paragraph_texts")
    if not isinstance(texts, list) or len(texts) != len(paragraphs):
        without_title = [paragraphs[0][num_title:], *paragraphs[1:]]
        texts = [vocabulary.decode(ids.tolist()) for ids in without_title]
    used = (IDS, "target_ids", "paragraph_texts", "graphs")
    others = {name: value for name, value in raw.items() if name not in used}
    title = raw.get("title") or vocabulary.decode(paragraphs[0][:num_title].tolist())
    summary = others.get("summary") or "\n".join(vocabulary.sentences(target.tolist()))
    return others | {"title": title, "paragraphs": texts, "summary": summary}


def _row_of_ids(raw: Mapping[str, Any], recipe: Recipe, vocabulary: Tokenizer) -> tuple[Row, Counter[str]]:
    """Return the row of a cluster of ids, which has the best paragraph first, and its counts."""
    paragraphs, target = _read_ids(raw, vocabulary)
    cluster = read_cluster(_decode(raw, paragraphs, target, vocabulary))
    marks = vocabulary.marks
    if len(target) and (target[0] != marks.start or target[-1] != marks.end):
        raise Rejected("target ids do not begin with <S> and end with </S>")
    real = [number for number, ids in enumerate(paragraphs) if len(ids)]
    kept = real[: recipe.max_paragraphs]
    sizes = [len(paragraphs[number]) for number in kept]
    truncated = [paragraphs[number][: recipe.paragraph_tokens] for number in kept]
    offsets = np.cumsum([0, *map(len, truncated)]).astype(np.int32)
    texts = [cluster.documents[number][1] for number in kept]
    edges = _edges_between(raw, recipe, kept)
    row: Row = {
        **_cluster_columns(cluster, recipe, vocabulary),
        **_source_columns([(number, 0, 0, len(text), text) for number, text in zip(kept, texts, strict=True)]),
        "target_ids": target.astype(np.int32),
        "ids": np.concatenate(truncated).astype(np.int32),
        "title_tokens": title_tokens(truncated[0]),
        "paragraph_offsets": offsets,
        "sentence_offsets": offsets,
        "rank_score": np.zeros(len(kept), np.float32),
        "graph_row": edges[0],
        "graph_col": edges[1],
        "graph_value": edges[2],
    }
    num_words = [len(text.split()) for _, text in cluster.documents]
    counts = Counter(
        paragraphs_found=len(real),
        paragraphs_ranked_out=len(real) - len(kept),
        paragraphs_cut=sum(size > recipe.paragraph_tokens for size in sizes),
        words=sum(num_words),
        words_ranked_out=sum(num_words) - sum(num_words[number] for number in kept),
        tokens=sum(sizes),
        tokens_cut=sum(sizes) - len(row["ids"]),
        without_summary=int(not len(target)),
    )
    all_words = [words(text) for _, text in cluster.documents]
    kept_words = [all_words[number] for number in kept]
    counts += bigram_counts(row, sizes, kept_words, all_words, recipe, vocabulary)
    return row, counts + language_counts(cluster)


def _edges_between(raw: Mapping[str, Any], recipe: Recipe, kept: Sequence[int]) -> Edges:
    """Return the edges of the cluster's own graph between the kept paragraphs."""
    if recipe.graph == "none":
        return NO_EDGES
    graphs = raw.get("graphs") or {}
    name = next((name for name in _GRAPHS[recipe.graph] if name in graphs), None)
    if name is None:
        raise Rejected(f"no {recipe.graph} graph in a row of ids", f"it has {', '.join(graphs) or 'none'}")
    try:
        values = np.asarray(graphs[name], np.float32)[np.ix_(kept, kept)]
    except (ValueError, TypeError, IndexError):
        raise Rejected("the graph is no square of numbers for the paragraphs", name) from None
    np.fill_diagonal(values, 0)
    rows, columns = np.nonzero(values)
    return rows.astype(np.int16), columns.astype(np.int16), values[rows, columns]


# Rows of sentences


def _extraction_row(cluster: Cluster, recipe: Recipe, vocabulary: Tokenizer) -> tuple[Row, Counter[str]]:
    """Return the sentences of a cluster with their ``labels``, and its counts.

    Clones of the summary stay, because extraction has to find them. Raises Rejected if there is no sentence.
    """
    everything = passages(cluster)
    sentences, ids = _encode_sentences(everything[:MAX_SENTENCES], recipe, vocabulary)
    row = _cluster_columns(cluster, recipe, vocabulary) | _sentence_columns(sentences, ids, recipe)
    references = [words(text) for text in (row["summary"], *row["other_summaries"]) if text]
    heads = [words(readable_head(sentence.quote, recipe.paragraph_tokens)) for sentence in sentences]
    row["labels"] = greedy_labels(heads, references)
    counts = _sentence_counts(cluster, everything, ids, recipe)
    counts["words_ranked_out"] = sum(count_words(sentence.quote) for sentence in everything[MAX_SENTENCES:])
    counts["without_summary"] = int(not references)
    return row, counts


def _pretraining_rows(cluster: Cluster, recipe: Recipe, vocabulary: Tokenizer) -> tuple[list[Row], Counter[str]]:
    """Return rows of at most 30 sentences of one document. A longer document gives several, about equally long."""
    sentences, ids = _encode_sentences(passages(cluster), recipe, vocabulary)
    common = _cluster_columns(cluster, recipe, vocabulary)
    rows = [
        common
        | _sentence_columns(sentences[part], ids[part], recipe)
        | {"id": f"{cluster.id}.{number}", "target_ids": np.empty(0, np.int32), "summary": ""}
        for number, part in enumerate(_document_parts([sentence.document for sentence in sentences]), 1)
    ]
    return rows, _sentence_counts(cluster, sentences, ids, recipe)


def as_sentences(row: Row) -> Row:
    """Return a row of paragraphs as the sentences of its paragraphs, without ids; a row of sentences as it is.

    Each sentence has its document, its position there and its first paragraph.
    """
    if "labels" in row:
        return row
    order = np.lexsort((row["char_start"], row["document"])).tolist()
    documents = [[*group] for _, group in groupby(order, key=lambda number: int(row["document"][number]))]
    texts = [("", _document_text(row, numbers)) for numbers in documents]
    spans = []
    for sentence in passages(Cluster(row["id"], row["title"], texts, False, [], {})):
        numbers = documents[sentence.document]  # the paragraphs of the document, in order
        number = numbers[np.searchsorted(row["char_start"][numbers], sentence.start, "right") - 1]
        document, paragraph = row["document"][number], row["paragraph"][number]
        spans.append((document, paragraph, sentence.start, sentence.end, sentence.quote))
    return row | _source_columns(spans)


def _document_text(row: Row, numbers: list[int]) -> str:
    """Return the text of a document from its paragraphs ``numbers``, each at its position, with blanks around it.

    One line break separates the lines of a paragraph, and an empty line separates paragraphs.
    """
    text, paragraph = "", None
    for number in numbers:
        gap, is_next = int(row["char_start"][number]) - len(text), paragraph not in (None, row["paragraph"][number])
        text += ("\n\n"[:gap] if is_next else "").ljust(gap) + row["text"][number]
        paragraph = row["paragraph"][number]
    return text


def _document_parts(documents: Sequence[int]) -> Iterator[slice]:
    """Yield runs of at most 30 sentences with the same document."""
    for _, group in groupby(range(len(documents)), key=documents.__getitem__):
        run = [*group]
        for part in np.array_split(run, -(-len(run) // _PRETRAINING_SENTENCES)):
            yield slice(int(part[0]), int(part[-1]) + 1)


def _encode_sentences(
    sentences: Sequence[Passage], recipe: Recipe, vocabulary: Tokenizer
) -> tuple[list[Passage], list[list[int]]]:
    """Return the sentences that have tokens, and their ids without truncation."""
    heads = [readable_head(sentence.quote, recipe.paragraph_tokens) for sentence in sentences]
    encoded = vocabulary.encode_all([normalize(head, recipe.normalize) for head in heads])
    pairs = [(sentence, ids) for sentence, ids in zip(sentences, encoded, strict=True) if ids]
    if not pairs:
        raise Rejected("no text in the documents")
    return [sentence for sentence, _ in pairs], [ids for _, ids in pairs]


def readable_head(text: str, max_tokens: int) -> str:
    """Return the head of ``text`` that surely holds its first ``max_tokens`` tokens."""
    return next(pieces(text, _CHARACTERS_PER_TOKEN * max_tokens))


def _sentence_columns(sentences: Sequence[Passage], ids: Sequence[list[int]], recipe: Recipe) -> Row:
    truncated = [sentence_ids[: recipe.paragraph_tokens] for sentence_ids in ids]
    return {
        **_source_columns([(s.document, s.paragraph, s.start, s.end, s.quote) for s in sentences]),
        "ids": np.concatenate(truncated).astype(np.int32),
        "title_tokens": 0,
        "paragraph_offsets": np.cumsum([0, *map(len, truncated)], dtype=np.int32),
    }


def _sentence_counts(
    cluster: Cluster, sentences: Sequence[Passage], ids: Sequence[list[int]], recipe: Recipe
) -> Counter[str]:
    tokens = np.array([*map(len, ids)])
    num_words = sum(count_words(sentence.quote) for sentence in sentences)
    return language_counts(cluster) + Counter(
        words_cleaned_away=max(sum(count_words(text) for _, text in cluster.documents) - num_words, 0),
        sentences_cut=int((tokens > recipe.paragraph_tokens).sum()),
        words=num_words,
        tokens=int(tokens.sum()),
        tokens_cut=int(np.maximum(tokens - recipe.paragraph_tokens, 0).sum()),
    )
