"""One raw cluster into rows of sentences, in the documents' order: what extractive models learn of and take.

M sentences, S their tokens. A row has the columns of any other (see raysum.data.rows), each sentence as a paragraph.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import groupby
from typing import TYPE_CHECKING

import numpy as np

from raysum.metrics.labels import greedy_labels
from raysum.prepare.cluster import Cluster, columns_of
from raysum.prepare.corpus_stats import language_counts
from raysum.prepare.passages import Passage, passages
from raysum.sources.record import Rejected
from raysum.text.cleaning import normalize, pieces
from raysum.text.tfidf import count_words, words

if TYPE_CHECKING:
    from raysum.data.recipe import Recipe
    from raysum.data.rows import Row
    from raysum.tokenizers.tokenizer import Tokenizer

MOST_SENTENCES = 2000  # of a cluster to extract from, the first so many
_DOCUMENT = 30  # sentences of a row to pre-train on, at most (HIBERT, section 4.1)
_READ = 64  # characters for each token that is kept: what is longer is not looked at whole


def extraction_row(cluster: Cluster, recipe: Recipe, vocabulary: Tokenizer) -> tuple[Row, Counter[str]]:
    """All sentences of a cluster with their ``labels``, and what was dropped on the way.

    Nothing is left out as a clone of the summary: to find it is the task. Raises Rejected where there is no sentence.
    """
    everything = passages(cluster)
    found, encoded = _encoded(everything[:MOST_SENTENCES], recipe, vocabulary)
    row = columns_of(cluster, recipe, vocabulary) | _columns(found, encoded, recipe)
    references = [words(text) for text in (row["summary"], *row["other_summaries"]) if text]
    row["labels"] = greedy_labels(
        [words(head(passage.quote, recipe.paragraph_tokens)) for passage in found], references
    )
    counts = _counts(cluster, everything, encoded, recipe)
    counts["words_ranked_out"] = sum(count_words(passage.quote) for passage in everything[MOST_SENTENCES:])
    counts["without_summary"] = int(not references)
    return row, counts


def pretraining_rows(cluster: Cluster, recipe: Recipe, vocabulary: Tokenizer) -> tuple[list[Row], Counter[str]]:
    """Rows of at most 30 sentences of one document each; about equally long where there are several of one."""
    found, encoded = _encoded(passages(cluster), recipe, vocabulary)
    common = columns_of(cluster, recipe, vocabulary)
    parts = [*_parts([passage.document for passage in found])]
    rows = [
        common
        | _columns(found[part.start : part.stop], encoded[part.start : part.stop], recipe)
        | {"id": f"{cluster.id}.{number}", "target_ids": np.empty(0, np.int32), "summary": ""}
        for number, part in enumerate(parts, 1)
    ]
    return rows, _counts(cluster, found, encoded, recipe)


def as_sentences(row: Row) -> Row:
    """A row of paragraphs as the sentences of what it has of the documents; a row of sentences as it is.

    Each sentence has its document, its place there and the paragraph that it begins in; there are no ids.
    """
    if "labels" in row:
        return row
    order = np.lexsort((row["char_start"], row["document"])).tolist()
    laid = [_laid(row, [*group]) for _, group in groupby(order, key=lambda number: int(row["document"][number]))]
    found = passages(Cluster(row["id"], row["title"], [("", text) for text, _ in laid], False, [], {}))
    held = [laid[one.document][1] for one in found]  # the paragraphs of a sentence's document, in its order
    starts = [row["char_start"][numbers] for numbers in held]
    places = [m[np.searchsorted(s, one.start, "right") - 1] for one, m, s in zip(found, held, starts, strict=True)]
    return row | {
        "text": [one.quote for one in found],
        "document": row["document"][places],
        "paragraph": row["paragraph"][places],
        "char_start": np.array([one.start for one in found], np.int32),
        "char_end": np.array([one.end for one in found], np.int32),
    }


def _laid(row: Row, numbers: list[int]) -> tuple[str, list[int]]:
    """The text of a document of which a row has the paragraphs ``numbers``, and these.

    Each stands in its place, with blanks around it: lines that follow each other are parted by one break, others by an
    empty line.
    """
    text, paragraph = "", None
    for number in numbers:
        gap, parted = int(row["char_start"][number]) - len(text), paragraph not in (None, row["paragraph"][number])
        text += ("\n\n"[:gap] if parted else "").ljust(gap) + row["text"][number]
        paragraph = row["paragraph"][number]
    return text, numbers


def _parts(documents: Sequence[int]) -> Iterator[range]:
    """Runs of sentences of one document, 30 at most."""
    for _, group in groupby(range(len(documents)), key=documents.__getitem__):
        run = [*group]
        for part in np.array_split(run, -(-len(run) // _DOCUMENT)):
            yield range(int(part[0]), int(part[-1]) + 1)


def _encoded(found: Sequence[Passage], recipe: Recipe, vocabulary: Tokenizer) -> tuple[list[Passage], list[list[int]]]:
    """The sentences of which the vocabulary makes anything, and their ids, not yet cut."""
    ids = vocabulary.encode_all(
        [normalize(head(passage.quote, recipe.paragraph_tokens), recipe.normalize) for passage in found]
    )
    kept = [number for number, one in enumerate(ids) if one]
    if not kept:
        raise Rejected("no text in the documents")
    return [found[number] for number in kept], [ids[number] for number in kept]


def head(text: str, tokens: int) -> str:
    """As much of a sentence as its first ``tokens`` can be of."""
    return next(pieces(text, _READ * tokens))


def _columns(found: Sequence[Passage], encoded: Sequence[list[int]], recipe: Recipe) -> Row:
    cut = [ids[: recipe.paragraph_tokens] for ids in encoded]
    return {
        "ids": np.concatenate(cut).astype(np.int32),
        "title_tokens": 0,
        "paragraph_offsets": np.cumsum([0, *map(len, cut)], dtype=np.int32),
        "document": np.array([passage.document for passage in found], np.int32),
        "paragraph": np.array([passage.paragraph for passage in found], np.int32),
        "char_start": np.array([passage.start for passage in found], np.int32),
        "char_end": np.array([passage.end for passage in found], np.int32),
        "text": [passage.quote for passage in found],
    }


def _counts(cluster: Cluster, found: Sequence[Passage], encoded: Sequence[list[int]], recipe: Recipe) -> Counter[str]:
    tokens = np.array([*map(len, encoded)])
    held = sum(count_words(passage.quote) for passage in found)
    return language_counts(cluster) + Counter(
        words_cleaned_away=max(sum(count_words(text) for _, text in cluster.documents) - held, 0),
        sentences_cut=int((tokens > recipe.paragraph_tokens).sum()),
        words=held,
        tokens=int(tokens.sum()),
        tokens_cut=int(np.maximum(tokens - recipe.paragraph_tokens, 0).sum()),
    )
