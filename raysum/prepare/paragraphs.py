"""The paragraphs of a cluster: find them, drop clones and repetitions, and split long ones."""

from __future__ import annotations

import hashlib
import re
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import chain, count, islice, zip_longest
from math import ceil
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from raysum.prepare.cluster import Cluster
from raysum.sources.record import Rejected
from raysum.text.cleaning import ParagraphSeparator, bigrams, is_clone, normalize, on_one_line, paragraph_spans
from raysum.text.sentences import quick_sentence_spans
from raysum.text.tfidf import words

if TYPE_CHECKING:
    from raysum.data.recipe import Recipe
    from raysum.tokenizers.tokenizer import Tokenizer

Span = tuple[int, int]
Unit = tuple[int, int, int]  # start, end, tokens
CountTokens = Callable[[list[str]], list[int]]

_LARGE = 1 << 20  # characters: larger clusters share equal words to save memory, which takes time
_SHINGLE = 3  # words
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


def _text_of(text: str, paragraph_separator: ParagraphSeparator) -> str:
    return text if paragraph_separator == "lines" else on_one_line(text)


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


def mark(paragraph: Sequence[str]) -> str:
    """Return the hash of a paragraph's words."""
    return hashlib.blake2b(" ".join(paragraph).encode(), digest_size=8).hexdigest()


def near_duplicates(paragraphs: Sequence[Sequence[str]], limit: float) -> list[bool]:
    """[M] whether a paragraph has a Jaccard similarity of at least ``limit`` (0 to 1) to an earlier unique paragraph.

    The similarity is that of their sets of three-word shingles. It is exact, while MinHash estimates: if two sets in a
    common order are so similar, their first 1 - limit elements share one (Chaudhuri et al., 2006). The rarest shingles
    come first, so few pairs are compared.
    """
    index = defaultdict[int, list[int]](list)  # unique paragraphs by each of their first shingles
    unique = dict[int, frozenset[int]]()
    is_duplicate = [False] * len(paragraphs)
    shingles, shared = _shingles(paragraphs)
    for number, own in enumerate(shingles):
        first = own[: len(own) - ceil(limit * len(own) - 1e-9) + 1]
        candidates = first[first.searchsorted(shared) :].tolist()
        if not candidates:
            continue
        own_set = frozenset[int](own.tolist())
        others = dict.fromkeys(chain.from_iterable(map(index.__getitem__, candidates)))  # in order, without repeats
        is_duplicate[number] = any(_similarity(own_set, unique[other]) >= limit for other in others)
        if not is_duplicate[number]:
            unique[number] = own_set
            for shingle in candidates:
                index[shingle].append(number)
    return is_duplicate


def _similarity(first: frozenset[int], second: frozenset[int]) -> float:
    common = len(first & second)
    return common / (len(first) + len(second) - common)


def _shingles(paragraphs: Sequence[Sequence[str]]) -> tuple[list[np.ndarray], int]:
    """Return [M] the distinct shingles of each paragraph, and the lowest number of a shingle that occurs repeatedly.

    Shingles are numbered from the rarest, and ascend.
    """
    filled = [[*paragraph, *[""] * (_SHINGLE - len(paragraph))] for paragraph in paragraphs]
    numbers: dict[str, int] = defaultdict(count().__next__)  # a new word takes the next number
    words = np.array([*map(numbers.__getitem__, chain.from_iterable(filled))], np.uint64)
    ends, scale = np.cumsum([*map(len, filled)], dtype=np.int64), np.uint64(len(numbers))
    starts = np.delete(np.arange(len(words)), np.concatenate([ends - 1, ends - 2]))
    # Exact up to two million different words; with more, 64 bits make collisions very unlikely.
    codes = (words[starts] * scale + words[starts + 1]) * scale + words[starts + 2]
    values, positions, counts = np.unique(codes, return_inverse=True, return_counts=True)
    order = np.argsort(counts, kind="stable")
    ranks = np.empty(len(values), np.int64)
    ranks[order] = np.arange(len(values))
    owner = np.searchsorted(ends, starts, "right")
    cells = np.sort(owner * len(values) + ranks[positions])  # np.unique takes five times as long
    owner, own = np.divmod(cells[np.diff(cells, prepend=-1) > 0], len(values))
    parts = np.split(own, np.cumsum(np.bincount(owner, minlength=len(paragraphs)))[:-1])
    return parts, int(np.searchsorted(counts[order], 2))


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
        # Without such marks, pieces can only begin after white space, unless one word is too long.
        is_spaced = text.isascii() or not _UNSPACED_END.search(text)
        is_short = is_spaced and vocabulary.within(normalize(text, recipe.normalize), limit)
        spans = [] if is_short else split_spans(text, limit, count_tokens)
        position = paragraph.position + added[paragraph.document]
        if len(spans) < 2:
            yield paragraph._replace(position=position) if position > paragraph.position else paragraph
            continue
        for number, (start, end) in enumerate(spans):
            piece = _text_of(text[start:end], recipe.paragraph_separator)
            yield paragraph._replace(
                position=position + number,
                start=paragraph.start + start,
                end=paragraph.start + end,
                text=piece,
                words=words(piece),
            )
        added[paragraph.document] += len(spans) - 1


def split_spans(text: str, max_tokens: int, count_tokens: CountTokens) -> list[Span]:
    """Return the character spans of pieces of ``text``, at most ``max_tokens`` each and about equally long.

    Pieces end at the ends of sentences. A longer sentence is split between words, and a longer word anywhere. Only
    white space between pieces is lost. ``count_tokens`` must count a text as the sum of its words.
    """

    units: list[Unit] = []
    for start, end, tokens in _counted(text, quick_sentence_spans(text), max_tokens, count_tokens):
        if tokens <= max_tokens:
            units.append((start, end, tokens))
        else:
            units += _merge(_parts(text, start, end, max_tokens, count_tokens), max_tokens)
    total = sum(tokens for _, _, tokens in units)
    num_pieces = ceil(total / max_tokens) or 1
    return [(start, end) for start, end, _ in _merge(units, max_tokens, total / num_pieces)]


def _parts(
    text: str, start: int, end: int, max_tokens: int, count_tokens: CountTokens, depth: int = 0
) -> Iterator[Unit]:
    """Yield the words of a span; a longer word in slices, and a longer slice in halves, and so on."""
    size, middle = _SLICE * max_tokens, (start + end) // 2
    if depth == 0:
        spans: Iterable[Span] = (match.span() for match in _WORD.finditer(text, start, end))
    elif depth == 1:
        spans = ((position, min(position + size, end)) for position in range(start, end, size))
    else:
        spans = (start, middle), (middle, end)
    for first, last, tokens in _counted(text, spans, max_tokens, count_tokens):
        if tokens <= max_tokens or last - first == 1:
            yield first, last, tokens
        else:
            yield from _parts(text, first, last, max_tokens, count_tokens, depth + 1)


def _counted(text: str, spans: Iterable[Span], max_tokens: int, count_tokens: CountTokens) -> Iterator[Unit]:
    """Yield a unit for each span. Spans that are certainly too long are not counted and get ``max_tokens + 1``."""
    remaining, longest = iter(spans), _LONG * max_tokens
    while batch := list(islice(remaining, _BATCH_TEXTS)):
        counts = count_tokens([text[start:end] if end - start <= longest else "" for start, end in batch])
        for (start, end), tokens in zip(batch, counts, strict=True):
            yield start, end, tokens if end - start <= longest else max_tokens + 1


def _merge(units: Iterable[Unit], max_tokens: int, enough: float | None = None) -> list[Unit]:
    """Join neighbours to units of at most ``max_tokens``; a unit with ``enough`` tokens takes no more."""
    merged: list[Unit] = []
    for start, end, tokens in units:
        first, _, size = merged[-1] if merged else (0, 0, max_tokens)
        if size + tokens <= max_tokens and size < (enough or max_tokens):
            merged[-1] = first, end, size + tokens
        else:
            merged.append((start, end, tokens))
    return merged
