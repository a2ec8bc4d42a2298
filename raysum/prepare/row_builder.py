"""Build the dataset rows of one raw cluster: check, clean, rank and encode. `prepare` and inference share this module.

Rows of kind summarization and ranking hold paragraphs, rows of kind extraction and pretraining hold sentences in
document order. Clusters that come as ids of the vocabulary, such as the published ranked WikiSum, keep their ids.
M kept paragraphs or sentences, S their tokens, L and N as in the recipe. Columns: see raysum.data.rows.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain, groupby, pairwise
from typing import TYPE_CHECKING, Any

import numpy as np

from raysum.data.recipe import Recipe
from raysum.data.rows import title_tokens
from raysum.metrics.labels import greedy_labels
from raysum.prepare.cluster import Cluster, read_cluster
from raysum.prepare.graphs import NO_EDGES, Edges, discourse_graph, similarity_graph
from raysum.prepare.paragraphs import Paragraph, clean_paragraphs, paragraphs_of, split_paragraphs
from raysum.prepare.passages import MAX_SENTENCES, Passage, passages
from raysum.prepare.ranking import best_first, rank_scores
from raysum.sources.record import Rejected
from raysum.text.cleaning import Normalization, covered_bigrams, normalize, pieces
from raysum.text.languages import LANGUAGE, language
from raysum.text.tfidf import count_words, words

if TYPE_CHECKING:
    from raysum.data.rows import Row
    from raysum.prepare.learned import LearnedRanker
    from raysum.tokenizers.tokenizer import Tokenizer

_PRETRAINING_SENTENCES = 30  # of a row, at most (HIBERT, section 4.1)
# Only the head of a text is encoded at once, which takes 60 times its size in memory.
_CHARACTERS_PER_TOKEN, _MIN_HEAD = 64, 1024  # more than a token has; tokens of a paragraph's head
_GRAPHS = {"similarity": ("sim_graph", "topic_graph"), "discourse": ("discourse_graph",)}
_Encoded = tuple[Passage, list[int]]  # a sentence and its ids
_SAMPLED, _CHARACTERS = 4, 300  # documents of a cluster to detect its language; characters from the middle of each


def prepare_example(
    raw: Mapping[str, Any], recipe: Recipe, vocabulary: Tokenizer, ranker: LearnedRanker | None = None
) -> Row:
    """Return the dataset row of a raw cluster: lists as numpy arrays, ``text`` and ``source`` as lists of str.

    A ``recipe`` with a learned ranker needs that ``ranker``. A cluster without summary gives empty ``target_ids``.
    Raises Rejected if the cluster has no readable text.
    """
    return RowBuilder(recipe, vocabulary, ranker).rows(raw, with_counts=False)[0][0]


def sentence_row(raw: Mapping[str, Any], recipe: Recipe, vocabulary: Tokenizer) -> Row:
    """Return a raw cluster as a row of kind extraction without labels, for a ``recipe`` of any kind.

    Raises Rejected if the cluster has no sentence.
    """
    unlabelled = {name: value for name, value in raw.items() if name not in ("summary", "summaries")}
    return prepare_example(unlabelled, recipe.model_copy(update={"kind": "extraction"}), vocabulary)


@dataclass(frozen=True)
class RowBuilder:
    """Builds the rows of clusters by a ``recipe``; one with a learned ranker needs that ``ranker``."""

    recipe: Recipe
    vocabulary: Tokenizer
    ranker: LearnedRanker | None = None

    def rows(self, raw: Mapping[str, Any], with_counts: bool = True) -> tuple[list[Row], Counter[str]]:
        """Return the rows of a raw cluster, several only for kind pretraining, and counts of its words and tokens.

        The counts take longer: unread tokens of long paragraphs, the reference's bigrams, languages and kept fields.
        Raises Rejected if the cluster has no readable text.
        """
        cluster = read_cluster(raw, self.vocabulary)
        if self.recipe.kind in ("extraction", "pretraining"):
            rows, counts = self._sentence_rows(cluster)
        elif cluster.ids is not None and self.recipe.kind == "summarization" and self.ranker is None:
            rows, counts = self._row_of_ids(raw, cluster, cluster.ids)
        else:
            rows, counts = self._paragraph_row(cluster, with_counts)
        if with_counts and self.recipe.kind != "pretraining":
            counts["without_summary"] = int(not len(rows[0]["target_ids"]))
        if with_counts:
            counts.update(f"keep:{name}" for name in self.recipe.keep if cluster.raw.get(name))
        return rows, counts + _language_counts(cluster) if with_counts else counts

    def _paragraph_row(self, cluster: Cluster, with_counts: bool) -> tuple[list[Row], Counter[str]]:
        recipe = self.recipe
        found = list(paragraphs_of(cluster, recipe.paragraph_separator))
        if not found:
            raise Rejected("no text in the documents")
        cleaned, counts = clean_paragraphs(cluster, found, recipe)
        ranked, scores = self._rank(cluster, cleaned)
        best = ranked[: None if recipe.kind == "ranking" else recipe.max_paragraphs]
        most = max(recipe.paragraph_tokens, _MIN_HEAD)
        heads = [readable_head(p.text, most) for p in best]
        tokenized = self.vocabulary.encode_sentences(heads, recipe.normalize)
        real = [i for i, sentences in enumerate(tokenized) if any(sentences)]
        if not real:
            raise Rejected("no text in the documents")
        kept, tokenized = [best[i] for i in real], [tokenized[i] for i in real]
        title = self._encode_title(cluster)
        tokenized[0] = [title, *tokenized[0]]
        row = self._row(cluster, kept, tokenized, len(title), scores[real], self._edges(kept))
        if with_counts:
            rests = (p.text[len(heads[i]) :] for i, p in zip(real, kept, strict=True))
            sizes = [sum(map(len, one)) + self._size(rest) for one, rest in zip(tokenized, rests, strict=True)]
            counts += self._paragraph_counts(row, kept, sizes, (found, cleaned, ranked, best))
            counts["without_title"] = int(not cluster.title)
        return [row], counts

    def _rank(self, cluster: Cluster, paragraphs: list[Paragraph]) -> tuple[list[Paragraph], np.ndarray]:
        """Return the paragraphs and their scores, best first; long paragraphs are split if the recipe splits them."""
        recipe, splits = self.recipe, self.recipe.long_paragraphs == "split"
        if splits:
            paragraphs = list(split_paragraphs(cluster, paragraphs, recipe, self.vocabulary))
        if self.ranker:
            scores = self.ranker.scores(cluster.title, [p.text for p in paragraphs])
        else:
            scores = rank_scores(recipe.ranker, words(cluster.title), [p.words for p in paragraphs])
        order = best_first(scores)
        ranked, scores = [paragraphs[i] for i in order], scores[order]
        if splits:  # the title opens the first paragraph and takes some of its tokens
            room = recipe.paragraph_tokens - len(self._encode_title(cluster))
            first = list(split_paragraphs(cluster, ranked[:1], recipe, self.vocabulary, room))
            ranked, scores = first + ranked[1:], np.concatenate([scores[:1].repeat(len(first)), scores[1:]])
        return ranked, scores

    def _encode_title(self, cluster: Cluster) -> list[int]:
        """Return the ids of the title, which opens paragraph 0 as a sentence and takes at most half of its tokens."""
        most = self.recipe.paragraph_tokens // 2
        (ids,) = encode_heads([cluster.title], most, self.vocabulary, self.recipe.normalize)
        return [*ids[:most], *self.vocabulary.marks.title_end]

    def _edges(self, paragraphs: Sequence[Paragraph]) -> Edges:
        if self.recipe.graph == "similarity":
            return similarity_graph([p.words for p in paragraphs])
        if self.recipe.graph == "discourse":
            return discourse_graph([p.text for p in paragraphs], [(p.document, p.position) for p in paragraphs])
        return NO_EDGES

    def _row_of_ids(
        self, raw: Mapping[str, Any], cluster: Cluster, ids: list[np.ndarray]
    ) -> tuple[list[Row], Counter[str]]:
        """Return the row of a cluster of ids, which has the best paragraph first, and its counts."""
        marks, target, recipe = self.vocabulary.marks, np.array(cluster.target_ids, np.int32), self.recipe
        if len(target) and (target[0] != marks.start or target[-1] != marks.end):
            raise Rejected("target ids do not begin with <S> and end with </S>")
        texts = [(number, text) for number, (_, text) in enumerate(cluster.documents) if len(ids[number])]
        found = [Paragraph(number, 0, 0, 0, len(text), text, words(text)) for number, text in texts]
        kept = found[: recipe.max_paragraphs]
        numbers = [paragraph.document for paragraph in kept]
        opening = title_tokens(ids[numbers[0]][: recipe.paragraph_tokens])
        tokenized, edges = [[ids[number].tolist()] for number in numbers], _edges_between(raw, recipe, numbers)
        row = self._row(cluster, kept, tokenized, opening, np.zeros(len(kept)), edges)
        row["target_ids"] = target
        sizes = [len(ids[number]) for number in numbers]
        return [row], self._paragraph_counts(row, kept, sizes, (found, found, found, kept))

    def _sentence_rows(self, cluster: Cluster) -> tuple[list[Row], Counter[str]]:
        """Return one row with ``labels``, or rows of at most 30 sentences of one document, about equally long.

        Clones of the summary stay, because extraction has to find them. Raises Rejected if there is no sentence.
        """
        recipe, is_extraction = self.recipe, self.recipe.kind == "extraction"
        found = passages(cluster)
        best = found[: MAX_SENTENCES if is_extraction else None]
        quotes = [sentence.quote for sentence in best]
        encoded = encode_heads(quotes, recipe.paragraph_tokens, self.vocabulary, recipe.normalize)
        kept = [(sentence, ids) for sentence, ids in zip(best, encoded, strict=True) if ids]
        if not kept:
            raise Rejected("no text in the documents")
        common = self._cluster_columns(cluster if is_extraction else replace(cluster, summaries=[]))
        parts = [kept] if is_extraction else [*_document_parts(kept)]
        rows = [common | self._sentence_columns(part) for part in parts]
        if is_extraction:
            references = [words(text) for text in (common["summary"], *common["other_summaries"]) if text]
            heads = [words(readable_head(sentence.quote, recipe.paragraph_tokens)) for sentence, _ in kept]
            rows[0]["labels"] = greedy_labels(heads, references)
        else:
            for number, row in enumerate(rows, 1):
                row["id"] = f"{cluster.id}.{number}"
        num_words = [sum(count_words(sentence.quote) for sentence in part) for part in (found, found[len(best) :])]
        total = sum(count_words(text) for _, text in cluster.documents)
        counts = self._token_counts("sentences", [len(ids) for _, ids in kept], rows)
        return rows, counts + Counter(
            words=num_words[0],
            words_ranked_out=num_words[1],
            words_cleaned_away=max(total - num_words[0], 0),
        )

    def _row(
        self,
        cluster: Cluster,
        paragraphs: list[Paragraph],
        tokenized: list[list[list[int]]],
        num_title: int,
        scores: np.ndarray,
        edges: Edges,
    ) -> Row:
        """Return the row of ``paragraphs`` [M] with the ids of their sentences, the first of which is the title."""
        return {
            **self._cluster_columns(cluster),
            **_place_columns([(p.document, p.number, p.start, p.end, p.text) for p in paragraphs]),
            **self._token_columns(tokenized),
            "title_tokens": num_title,
            "rank_score": scores.astype(np.float32),
            "graph_row": edges[0],
            "graph_col": edges[1],
            "graph_value": edges[2],
        }

    def _sentence_columns(self, sentences: Sequence[_Encoded]) -> Row:
        return {
            **_place_columns([sentence for sentence, _ in sentences]),
            **self._token_columns([[ids] for _, ids in sentences]),
            "title_tokens": 0,
        }

    def _cluster_columns(self, cluster: Cluster) -> Row:
        """Return id, title, document names, references and kept fields. Raises Rejected if a field is not JSON."""
        marks = self.vocabulary.marks
        targets = [(text, self.vocabulary.encode_summary(text, self.recipe.normalize)) for text in cluster.summaries]
        empty = 2 + len(marks.target_prefix)  # start and end
        targets = [(text, ids) for text, ids in targets if len(ids) > empty]
        (summary, target), *others = targets or [("", [])]
        extra = {name: cluster.raw[name] for name in self.recipe.keep if cluster.raw.get(name)}
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

    def _token_columns(self, tokenized: Sequence[list[list[int]]]) -> Row:
        """Return ids and offsets of texts, given the ids of their sentences; each text is truncated to N tokens."""
        ids: list[int] = []
        paragraph_offsets, sentence_offsets = [0], []
        for sentences in tokenized:
            end = len(ids) + self.recipe.paragraph_tokens
            for sentence in sentences:
                if sentence and len(ids) < end:
                    sentence_offsets.append(len(ids))
                    ids += sentence[: end - len(ids)]
            paragraph_offsets.append(len(ids))
        sentence_offsets.append(len(ids))
        return {
            "ids": np.array(ids, np.int32),
            "paragraph_offsets": np.array(paragraph_offsets, np.int32),
            "sentence_offsets": np.array(sentence_offsets, np.int32),
        }

    def _size(self, text: str) -> int:
        """Return the number of tokens of a text of any length, which is encoded in parts."""
        parts = pieces(text, _CHARACTERS_PER_TOKEN * _MIN_HEAD) if text else ()
        return sum(len(self.vocabulary.encode(normalize(part, self.recipe.normalize))) for part in parts)

    def _paragraph_counts(
        self, row: Row, kept: list[Paragraph], sizes: list[int], stages: Sequence[list[Paragraph]]
    ) -> Counter[str]:
        """Count a row of the paragraphs ``kept``, which have ``sizes`` tokens before truncation.

        ``stages`` are all paragraphs, the clean ones, those that are ranked (long ones are split), and the best.
        """
        found, cleaned, ranked, best = map(len, stages)
        words_found, words_cleaned, words_ranked, words_best = (sum(len(p.words) for p in stage) for stage in stages)
        counts = self._token_counts("paragraphs", sizes, [row]) + Counter(
            paragraphs_found=found,
            paragraphs_cleaned_away=found - cleaned,
            paragraphs_ranked_out=ranked - best,
            words_cleaned_away=words_found - words_cleaned,
            words=words_ranked,
            words_ranked_out=words_ranked - words_best,
        )
        bigrams = {*pairwise(words(row["summary"]))}
        if bigrams:
            starts = pairwise([row["title_tokens"], *row["paragraph_offsets"][1:].tolist()])
            kept_words = (
                p.words if size <= self.recipe.paragraph_tokens else words(self.vocabulary.decode(ids))
                for p, size, ids in zip(kept, sizes, (row["ids"][a:b].tolist() for a, b in starts), strict=True)
            )
            in_source = covered_bigrams(bigrams, (p.words for p in stages[1]))
            counts["reference_bigrams"] = len(in_source)
            counts["reference_bigrams_kept"] = len(covered_bigrams(in_source, kept_words))
        return counts

    def _token_counts(self, unit: str, sizes: list[int], rows: list[Row]) -> Counter[str]:
        """Count the tokens of texts that have ``sizes`` tokens before truncation; ``unit`` names the texts."""
        return Counter(
            {
                f"{unit}_cut": sum(size > self.recipe.paragraph_tokens for size in sizes),
                "tokens": sum(sizes),
                "tokens_cut": sum(sizes) - sum(len(row["ids"]) for row in rows),
            }
        )


def encode_heads(texts: Sequence[str], max_tokens: int, vocabulary: Tokenizer, how: Normalization) -> list[list[int]]:
    """Return the ids of texts, normalized by ``how``; long ones may lack ids after the first ``max_tokens``."""
    return vocabulary.encode_all([normalize(readable_head(text, max_tokens), how) for text in texts])


def readable_head(text: str, max_tokens: int) -> str:
    """Return the head of ``text`` that surely holds its first ``max_tokens`` tokens."""
    return next(pieces(text, _CHARACTERS_PER_TOKEN * max_tokens))


def _place_columns(texts: Sequence[tuple[int, int, int, int, str]]) -> Row:
    """Return the columns for M texts of (document, paragraph, first character, last character + 1, text)."""
    documents, paragraphs, starts, ends, contents = zip(*texts, strict=True) if texts else ((),) * 5
    return {
        "document": np.array(documents, np.int32),
        "paragraph": np.array(paragraphs, np.int32),
        "char_start": np.array(starts, np.int32),
        "char_end": np.array(ends, np.int32),
        "text": [*contents],
    }


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


def _language_counts(cluster: Cluster) -> Counter[str]:
    """Count the languages of a few documents, evenly sampled from the cluster."""
    texts = [text for _, text in cluster.documents[:: -(-len(cluster.documents) // _SAMPLED)] if text.strip()]
    middles = [max(len(text) - _CHARACTERS, 0) // 2 for text in texts]
    samples = (text[start : start + _CHARACTERS] for text, start in zip(texts, middles, strict=True))
    return Counter(LANGUAGE + language(sample) for sample in samples)


def _document_parts(sentences: Sequence[_Encoded]) -> Iterator[Sequence[_Encoded]]:
    """Yield runs of at most 30 sentences of the same document, about equally long."""
    for _, group in groupby(sentences, key=lambda pair: pair[0].document):
        run = [*group]
        for part in np.array_split(np.arange(len(run)), -(-len(run) // _PRETRAINING_SENTENCES)):
            yield run[part[0] : part[-1] + 1]


def as_sentences(row: Row) -> Row:
    """Return a row of paragraphs as the sentences of its paragraphs, without ids; a row of sentences as it is.

    Each sentence has its document, its position there and its first paragraph.
    """
    if "labels" in row:
        return row
    order = np.lexsort((row["char_start"], row["document"])).tolist()
    documents = [[*group] for _, group in groupby(order, key=lambda number: int(row["document"][number]))]
    texts = [("", _document_text(row, numbers)) for numbers in documents]
    places = list[Passage]()
    for sentence in passages(Cluster(row["id"], row["title"], texts, False, [], {})):
        numbers = documents[sentence.document]  # the paragraphs of the document, in order
        number = numbers[np.searchsorted(row["char_start"][numbers], sentence.start, "right") - 1]
        places.append(sentence._replace(document=row["document"][number], paragraph=row["paragraph"][number]))
    return row | _place_columns(places)


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
