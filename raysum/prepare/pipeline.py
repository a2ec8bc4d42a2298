"""One raw cluster into one dataset row: check, clean, rank, encode. Used by `prepare`, and by inference for new ones.

M kept paragraphs, S their tokens, L and N as in the recipe.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from itertools import islice, zip_longest
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from raysum.data.recipe import Recipe
from raysum.prepare.cluster import Cluster, columns_of, read_cluster
from raysum.prepare.corpus_stats import bigram_counts, language_counts
from raysum.prepare.encoded import IDS, decoded, encoded_row
from raysum.prepare.graphs import NO_EDGES, discourse_graph, similarity_graph
from raysum.prepare.long_paragraphs import cut_at_spaces, split_spans
from raysum.prepare.ranking import best_first, rank_scores
from raysum.prepare.repeated import mark, near_duplicates
from raysum.prepare.sentences import extraction_row, pretraining_rows
from raysum.sources.record import Rejected
from raysum.text.cleaning import Parting, bigrams, is_clone, normalize, on_one_line, paragraph_spans, pieces
from raysum.text.tfidf import words

if TYPE_CHECKING:
    from raysum.data.rows import Row
    from raysum.prepare.learned import LearnedRanker
    from raysum.tokenizers.tokenizer import Tokenizer

_LARGE = 1 << 20  # characters of a cluster from which on it is worth the time to save memory
# Characters of a paragraph that are cut into sentences: more than its tokens can be of. A text that is encoded at once
# takes 60 times its size.
_READ, _READ_OF_TOKEN = 1 << 16, 64


class Paragraph(NamedTuple):
    """A paragraph, or a piece of a long one."""

    document: int
    number: int  # of the paragraph within the document
    place: int  # of the piece within the document
    start: int
    end: int
    text: str
    words: list[str]


def prepare_example(
    raw: Mapping[str, Any], recipe: Recipe, vocabulary: Tokenizer, ranker: LearnedRanker | None = None
) -> Row:
    """The dataset row of a raw cluster: lists as numpy arrays, ``text`` and ``source`` as lists of str.

    ``ranker`` is the one that a ``recipe`` with a learned one tells of. A cluster without summary gives empty
    ``target_ids``. Raises Rejected where nothing of it can be read.
    """
    return prepare_counted(raw, recipe, vocabulary, ranker, whole=False)[0]


def sentence_row(raw: Mapping[str, Any], recipe: Recipe, vocabulary: Tokenizer) -> Row:
    """A raw cluster as a row of kind extraction without labels, whatever rows ``recipe`` makes.

    Raises Rejected where it has no sentence.
    """
    unlabelled = {name: value for name, value in raw.items() if name not in ("summary", "summaries")}
    return prepare_example(unlabelled, recipe.model_copy(update={"kind": "extraction"}), vocabulary)


def prepare_rows(
    raw: Mapping[str, Any], recipe: Recipe, vocabulary: Tokenizer, ranker: LearnedRanker | None = None
) -> tuple[list[Row], Counter[str]]:
    """The rows that a raw cluster adds to a dataset, several where it is to pre-train on; as ``prepare_counted``."""
    if recipe.kind == "pretraining":
        return pretraining_rows(read_cluster(_texts(raw, vocabulary)), recipe, vocabulary)
    row, counts = prepare_counted(raw, recipe, vocabulary, ranker)
    return [row], counts


def prepare_counted(
    raw: Mapping[str, Any],
    recipe: Recipe,
    vocabulary: Tokenizer,
    ranker: LearnedRanker | None = None,
    whole: bool = True,
) -> tuple[Row, Counter[str]]:
    """``prepare_example`` and what was dropped on the way, in paragraphs, words and tokens.

    Tokens of a paragraph that are too far back to be read are counted where it is encoded ``whole``, which costs time.
    """
    if IDS in raw and recipe.kind == "summarization" and ranker is None:  # in their order
        return encoded_row(raw, recipe, vocabulary)
    cluster = read_cluster(_texts(raw, vocabulary))
    if recipe.kind == "extraction":
        return extraction_row(cluster, recipe, vocabulary)
    found = list(paragraphs_of(cluster, recipe.parted_by))
    if not found:
        raise Rejected("no text in the documents")
    cleaned, repeated = _cleaned(cluster, found, recipe)
    ranked, scores = _ranked(cluster, cleaned, recipe, vocabulary, ranker)
    kept = ranked[: None if recipe.kind == "ranking" else recipe.max_paragraphs]
    row, tokens, read = _encode(cluster, kept, scores[: len(kept)], recipe, vocabulary, whole)
    num_words = sum(len(p.words) for p in ranked)
    counts = Counter(
        paragraphs_found=len(found),
        paragraphs_cleaned_away=len(found) - len(cleaned),
        paragraphs_ranked_out=len(ranked) - len(kept),
        words_cleaned_away=sum(len(p.words) for p in found) - sum(len(p.words) for p in cleaned),
        paragraphs_cut=int((tokens > recipe.paragraph_tokens).sum()),
        words=num_words,
        words_ranked_out=num_words - sum(len(p.words) for p in kept),
        tokens=int(tokens.sum()),
        tokens_cut=int(tokens.sum()) - len(row["ids"]),
        without_summary=int(not len(row["target_ids"])),
        without_title=int(not cluster.title),
    )
    counts += repeated
    if whole:
        held, everything = ([p.words for p in some] for some in (read, cleaned))
        counts += bigram_counts(row, tokens.tolist(), held, everything, recipe, vocabulary)
        counts += language_counts(cluster)
    return row, counts


def _texts(raw: Mapping[str, Any], vocabulary: Tokenizer) -> Mapping[str, Any]:
    return decoded(raw, vocabulary) if IDS in raw else raw


def paragraphs_of(cluster: Cluster, parted_by: Parting) -> Iterator[Paragraph]:
    """All of them, in the documents' order."""
    seen: dict[str, str] | None = {} if sum(len(text) for _, text in cluster.documents) > _LARGE else None
    for number, (_, text) in enumerate(cluster.documents):
        spans = paragraph_spans(text, parted_by)
        if cluster.cut_into_paragraphs and spans:
            spans = [(spans[0][0], spans[-1][1])]
        for place, (start, end) in enumerate(spans):
            piece = text[start:end] if parted_by == "lines" else on_one_line(text[start:end])
            yield Paragraph(number, place, place, start, end, piece, words(piece, seen))


def _cleaned(cluster: Cluster, found: list[Paragraph], recipe: Recipe) -> tuple[list[Paragraph], Counter[str]]:
    """The paragraphs to rank, and how many are left out as boilerplate and near duplicates. What would leave nothing of
    a cluster is not done: one of single facts is still one."""
    summaries = [bigrams(words(summary)) for summary in cluster.summaries]
    own = [p for p in found if not any(is_clone(p.words, one, recipe.clone_recall) for one in summaries)]
    long = [p for p in own if len(p.words) >= recipe.min_words] or own
    if not long:
        raise Rejected("every paragraph is a clone of the summary")
    marks = frozenset(recipe.boilerplate_marks or ())
    own = [p for p in long if mark(p.words) not in marks] or long if marks else long
    again = near_duplicates([p.words for p in own], recipe.near_duplicates) if recipe.near_duplicates else ()
    left = [p for p, is_again in zip_longest(own, again) if not is_again]
    return left, Counter(paragraphs_boilerplate=len(long) - len(own), paragraphs_near_duplicates=len(own) - len(left))


def _ranked(
    cluster: Cluster,
    paragraphs: list[Paragraph],
    recipe: Recipe,
    vocabulary: Tokenizer,
    ranker: LearnedRanker | None,
) -> tuple[list[Paragraph], np.ndarray]:
    """The paragraphs, long ones in pieces where the recipe says so, best first; and their scores."""
    if recipe.long_paragraphs == "split":
        paragraphs = list(_split(cluster, paragraphs, recipe, vocabulary))
    if ranker:
        scores = ranker.scores(cluster.title, [p.text for p in paragraphs])
    else:
        scores = rank_scores(recipe.ranker, words(cluster.title), [p.words for p in paragraphs])
    order = best_first(scores)
    ranked, scores = [paragraphs[i] for i in order], scores[order]
    if recipe.long_paragraphs == "split":  # the title opens the first one and takes some of its tokens
        room = recipe.paragraph_tokens - len(_title_ids(cluster, recipe, vocabulary))
        first = list(_split(cluster, ranked[:1], recipe, vocabulary, room))
        ranked, scores = first + ranked[1:], np.concatenate([scores[:1].repeat(len(first)), scores[1:]])
    return ranked, scores


def _split(
    cluster: Cluster, paragraphs: list[Paragraph], recipe: Recipe, vocabulary: Tokenizer, room: int | None = None
) -> Iterator[Paragraph]:
    """``paragraphs``, those of more than ``room`` tokens (by default the recipe's) in pieces; document by document."""

    def count(texts: list[str]) -> list[int]:
        return vocabulary.counts([normalize(text, recipe.normalize) for text in texts])

    most = room or recipe.paragraph_tokens
    more = Counter[int]()  # pieces than paragraphs so far, by document
    for paragraph in paragraphs:
        whole = cluster.documents[paragraph.document][1][paragraph.start : paragraph.end]
        known = cut_at_spaces(whole) and vocabulary.within(normalize(whole, recipe.normalize), most)
        spans = [] if known else split_spans(whole, most, count)
        if len(spans) < 2:
            shift = more[paragraph.document]
            yield paragraph._replace(place=paragraph.place + shift) if shift else paragraph
            continue
        for piece, (start, end) in enumerate(spans):
            text = whole[start:end] if recipe.parted_by == "lines" else on_one_line(whole[start:end])
            yield paragraph._replace(
                place=paragraph.place + more[paragraph.document] + piece,
                start=paragraph.start + start,
                end=paragraph.start + end,
                text=text,
                words=words(text),
            )
        more[paragraph.document] += len(spans) - 1


def _title_ids(cluster: Cluster, recipe: Recipe, vocabulary: Tokenizer) -> list[int]:
    """The title opens paragraph 0 as a sentence of its own; a long one leaves that paragraph half of its tokens."""
    head = next(pieces(cluster.title, _most_read(recipe)))
    ids = vocabulary.encode(normalize(head, recipe.normalize))
    return [*ids[: recipe.paragraph_tokens // 2], *vocabulary.marks.title_end]


def _most_read(recipe: Recipe) -> int:
    return max(_READ, _READ_OF_TOKEN * recipe.paragraph_tokens)


def _encode(
    cluster: Cluster,
    paragraphs: list[Paragraph],
    scores: np.ndarray,
    recipe: Recipe,
    vocabulary: Tokenizer,
    whole: bool,
) -> tuple[Row, np.ndarray, list[Paragraph]]:
    """The row; [M] the tokens that each paragraph had before it was cut, as far as they were encoded; and these."""
    most = _most_read(recipe)
    heads = [next(pieces(p.text, most)) for p in paragraphs]
    tokenized = vocabulary.encode_sentences(heads, recipe.normalize)
    real = [i for i, group in enumerate(tokenized) if any(group)]
    if not real:
        raise Rejected("no text in the documents")
    paragraphs, tokenized = [paragraphs[i] for i in real], [tokenized[i] for i in real]
    tokenized[0] = [_title_ids(cluster, recipe, vocabulary), *tokenized[0]]
    ids, paragraph_offsets, sentence_offsets = _flatten(tokenized, recipe.paragraph_tokens)
    edges = NO_EDGES
    if recipe.graph == "similarity":
        edges = similarity_graph([p.words for p in paragraphs])
    elif recipe.graph == "discourse":
        edges = discourse_graph([p.text for p in paragraphs], [(p.document, p.place) for p in paragraphs])
    row: Row = {
        **columns_of(cluster, recipe, vocabulary),
        "ids": ids,
        "title_tokens": len(tokenized[0][0]),
        "paragraph_offsets": paragraph_offsets,
        "sentence_offsets": sentence_offsets,
        "document": np.array([p.document for p in paragraphs], np.int32),
        "paragraph": np.array([p.number for p in paragraphs], np.int32),
        "char_start": np.array([p.start for p in paragraphs], np.int32),
        "char_end": np.array([p.end for p in paragraphs], np.int32),
        "text": [p.text for p in paragraphs],
        "rank_score": scores[real].astype(np.float32),
        "graph_row": edges[0],
        "graph_col": edges[1],
        "graph_value": edges[2],
    }
    beyond = (islice(pieces(p.text, most), 1, None if whole else 1) for p in paragraphs)
    unread = [sum(len(vocabulary.encode(normalize(text, recipe.normalize))) for text in texts) for texts in beyond]
    sizes = np.array([sum(map(len, group)) + more for group, more in zip(tokenized, unread, strict=True)])
    return row, sizes, paragraphs


def _flatten(paragraphs: list[list[list[int]]], most: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Ids [S] of paragraphs of sentences, a paragraph cut at ``most`` tokens; offsets of paragraphs and sentences."""
    ids: list[int] = []
    paragraph_offsets, sentence_offsets = [0], []
    for paragraph in paragraphs:
        end = len(ids) + most
        for sentence in paragraph:
            if sentence and len(ids) < end:
                sentence_offsets.append(len(ids))
                ids += sentence[: end - len(ids)]
        paragraph_offsets.append(len(ids))
    sentence_offsets.append(len(ids))
    return np.array(ids, np.int32), np.array(paragraph_offsets, np.int32), np.array(sentence_offsets, np.int32)
