"""The paragraphs of a cluster: find them, drop clones and repetitions, and split long ones."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from itertools import islice, zip_longest
from math import ceil
from typing import TYPE_CHECKING, NamedTuple

from raysum.prepare.cluster import Cluster
from raysum.prepare.repeated import mark, near_duplicates
from raysum.sources.record import Rejected
from raysum.text.cleaning import ParagraphSeparator, bigrams, is_clone, normalize, on_one_line, paragraph_spans
from raysum.text.sentences import quick_sentence_spans
from raysum.text.tfidf import words

if TYPE_CHECKING:
    from raysum.data.recipe import Recipe
    from raysum.tokenizers.tokenizer import Tokenizer

Unit = tuple[int, int, int]  # start, end, tokens
CountTokens = Callable[[list[str]], list[int]]

_LARGE = 1 << 20  # characters: larger clusters share equal words to save memory, which takes time
_WORD = re.compile(r"\S+")
_UNSPACED_END = re.compile("[。！？｡]")  # ends of sentences without a following space
_BATCH_TEXTS = 64
_LONG = 64  # characters per allowed token: longer texts are split without counting their tokens
_SLICE = 8  # characters per allowed token in the slices of a long word


class Paragraph(NamedTuple):
    """A paragraph, or a piece of a long one."""

    document: int
    number: int  # of the paragraph within the document
    position: int  # of the piece within the document
    start: int
    end: int
    text: str
    words: list[str]


def paragraphs_of(cluster: Cluster, paragraph_separator: ParagraphSeparator) -> Iterator[Paragraph]:
    """Yield all paragraphs in document order."""
    shared_words: dict[str, str] | None = {} if sum(len(text) for _, text in cluster.documents) > _LARGE else None
    for document, (_, text) in enumerate(cluster.documents):
        spans = paragraph_spans(text, paragraph_separator)
        if cluster.cut_into_paragraphs and spans:
            spans = [(spans[0][0], spans[-1][1])]
        for number, (start, end) in enumerate(spans):
            content = _text_of(text[start:end], paragraph_separator)
            yield Paragraph(document, number, number, start, end, content, words(content, shared_words))


def clean_paragraphs(
    cluster: Cluster, paragraphs: list[Paragraph], recipe: Recipe
) -> tuple[list[Paragraph], Counter[str]]:
    """Return the paragraphs to rank, and the numbers of dropped boilerplate and near duplicates.

    A filter that would drop every paragraph is skipped, except for clones of the summary: then the cluster is Rejected.
    """
    summaries = [bigrams(words(summary)) for summary in cluster.summaries]
    originals = [
        paragraph
        for paragraph in paragraphs
        if not any(is_clone(paragraph.words, summary, recipe.clone_recall) for summary in summaries)
    ]
    long = [paragraph for paragraph in originals if len(paragraph.words) >= recipe.min_words] or originals
    if not long:
        raise Rejected("every paragraph is a clone of the summary")
    marks = frozenset(recipe.boilerplate_marks or ())
    content = [paragraph for paragraph in long if mark(paragraph.words) not in marks] or long if marks else long
    duplicates = near_duplicates([p.words for p in content], recipe.near_duplicates) if recipe.near_duplicates else ()
    unique = [paragraph for paragraph, is_duplicate in zip_longest(content, duplicates) if not is_duplicate]
    return unique, Counter(
        paragraphs_boilerplate=len(long) - len(content), paragraphs_near_duplicates=len(content) - len(unique)
    )


def split_paragraphs(
    cluster: Cluster, paragraphs: list[Paragraph], recipe: Recipe, vocabulary: Tokenizer, max_tokens: int | None = None
) -> Iterator[Paragraph]:
    """Yield ``paragraphs``, document by document. Those of more than ``max_tokens`` are split into pieces.

    ``max_tokens`` defaults to that of the recipe.
    """

    def count_tokens(texts: list[str]) -> list[int]:
        return vocabulary.counts([normalize(text, recipe.normalize) for text in texts])

    limit = max_tokens or recipe.paragraph_tokens
    added = Counter[int]()  # by document: pieces beyond one per paragraph so far
    for paragraph in paragraphs:
        text = cluster.documents[paragraph.document][1][paragraph.start : paragraph.end]
        is_short = can_only_split_at_spaces(text) and vocabulary.within(normalize(text, recipe.normalize), limit)
        spans = [] if is_short else split_spans(text, limit, count_tokens)
        if len(spans) < 2:
            shift = added[paragraph.document]
            yield paragraph._replace(position=paragraph.position + shift) if shift else paragraph
            continue
        for number, (start, end) in enumerate(spans):
            piece = _text_of(text[start:end], recipe.paragraph_separator)
            yield paragraph._replace(
                position=paragraph.position + added[paragraph.document] + number,
                start=paragraph.start + start,
                end=paragraph.start + end,
                text=piece,
                words=words(piece),
            )
        added[paragraph.document] += len(spans) - 1


def _text_of(text: str, paragraph_separator: ParagraphSeparator) -> str:
    return text if paragraph_separator == "lines" else on_one_line(text)


def split_spans(text: str, max_tokens: int, count_tokens: CountTokens) -> list[tuple[int, int]]:
    """Return the character spans of pieces of ``text``, at most ``max_tokens`` each and about equally long.

    Pieces end at the ends of sentences. A longer sentence is split between words, and a longer word anywhere. Only
    white space between pieces is lost. ``count_tokens`` must count a text as the sum of its words.
    """
    units: list[Unit] = []
    for start, end, tokens in _with_tokens(text, quick_sentence_spans(text), max_tokens, count_tokens):
        if tokens <= max_tokens:
            units.append((start, end, tokens))
        else:
            units += _merge(_split_words(text, start, end, max_tokens, count_tokens), max_tokens)
    total = sum(tokens for _, _, tokens in units)
    num_pieces = ceil(total / max_tokens) or 1
    return [(start, end) for start, end, _ in _merge(units, max_tokens, total / num_pieces)]


def can_only_split_at_spaces(text: str) -> bool:
    """Return whether pieces of ``text`` can only begin after white space, unless one word is too long."""
    return text.isascii() or not _UNSPACED_END.search(text)


def _split_words(text: str, start: int, end: int, max_tokens: int, count_tokens: CountTokens) -> Iterator[Unit]:
    spans = (match.span() for match in _WORD.finditer(text, start, end))
    for first, last, tokens in _with_tokens(text, spans, max_tokens, count_tokens):
        if tokens <= max_tokens:
            yield first, last, tokens
        else:
            for position in range(first, last, _SLICE * max_tokens):
                slice_end = min(position + _SLICE * max_tokens, last)
                yield from _split_in_halves(text, position, slice_end, max_tokens, count_tokens)


def _split_in_halves(text: str, start: int, end: int, max_tokens: int, count_tokens: CountTokens) -> Iterator[Unit]:
    (tokens,) = count_tokens([text[start:end]])
    if tokens <= max_tokens or end - start == 1:
        yield start, end, tokens
    else:
        middle = (start + end) // 2
        yield from _split_in_halves(text, start, middle, max_tokens, count_tokens)
        yield from _split_in_halves(text, middle, end, max_tokens, count_tokens)


def _with_tokens(
    text: str, spans: Iterable[tuple[int, int]], max_tokens: int, count_tokens: CountTokens
) -> Iterator[Unit]:
    """Yield a unit for each span. Spans that are certainly too long are not counted and get ``max_tokens + 1``."""
    remaining, longest = iter(spans), _LONG * max_tokens
    while batch := list(islice(remaining, _BATCH_TEXTS)):
        counts = count_tokens([text[start:end] if end - start <= longest else "" for start, end in batch])
        for (start, end), tokens in zip(batch, counts, strict=True):
            yield start, end, tokens if end - start <= longest else max_tokens + 1


def _merge(units: Iterable[Unit], max_tokens: int, enough: float | None = None) -> list[Unit]:
    """Join neighbours to units of at most ``max_tokens``; a unit with ``enough`` tokens takes no more."""
    merged: list[Unit] = []
    first, last, size, full = 0, 0, max_tokens, enough or max_tokens
    for start, end, tokens in units:
        if size + tokens <= max_tokens and size < full:
            size += tokens
        else:
            merged.append((first, last, size))
            first, size = start, tokens
        last = end
    return [*merged[1:], (first, last, size)] if merged else []
