"""The citations of a summary: quotes from the paragraphs of its row, and how much of each sentence they support.

M paragraphs of a row.
"""

from collections.abc import Iterator, Sequence
from functools import cached_property
from itertools import chain
from typing import Any

import numpy as np

from raysum.data.rows import Row
from raysum.decode.summary import Citation, Sentence, Span, Summary
from raysum.metrics import citations
from raysum.metrics.support import Said, TextIndex, said, supported_share
from raysum.text.names import unsupported
from raysum.text.sentences import quick_sentence_spans

_LONGEST = 3  # sentences of a quote
_WORD, _MORE = 0.3, 0.9  # a word other than a name counts 0.3; each sentence of a quote costs 0.9


class SourceIndex:
    """The paragraphs of a row and their sentences, each indexed once."""

    def __init__(self, row: Row):
        self.row = row
        self.title, self.everything = TextIndex([row["title"]]), TextIndex([row["title"], *row["text"]])
        self._sentences: dict[int, list[tuple[tuple[int, int], TextIndex]]] = {}

    @cached_property
    def passages(self) -> list[TextIndex]:
        return [TextIndex([text]) for text in self.row["text"]]

    def sentences(self, paragraph: int) -> list[tuple[tuple[int, int], TextIndex]]:
        """Return the span and the content of each sentence of a paragraph."""
        if paragraph not in self._sentences:
            text = self.row["text"][paragraph]
            sentences = [((start, end), TextIndex([text[start:end]])) for start, end in quick_sentence_spans(text)]
            self._sentences[paragraph] = sentences
        return self._sentences[paragraph]


def annotated(
    row: Row, texts: Sequence[str], weights: Sequence[np.ndarray] | None = None, mode: str = "both", **values: Any
) -> Summary:
    """Return the summary of ``row`` with the sentences ``texts``; ``values`` are its other fields.

    Sentences cite by ``mode`` (``decode.citations``) and their attention ``weights`` [M]; without weights they do not.
    """
    index, sentences = SourceIndex(row), []
    doubted: list[Span] = []
    supported, total, start = 0.0, 0, 0
    chosen = [[]] * len(texts) if weights is None else list(_chosen(index, texts, weights, mode))
    for text, cited in zip(texts, chosen, strict=True):
        parts = said(text)
        near = [index.title, *(index.passages[m] for m, _ in cited)] if cited else [index.everything]
        support, weight = supported_share(parts, near), sum(part.weight for part in parts)
        supported, total = supported + (support or 0.0) * weight, total + weight
        spans = unsupported(text, index.everything)
        citations_of = [_citation(index, m, weight_of, parts) for m, weight_of in cited]
        sentences.append(Sentence(text=text, citations=citations_of, support=support, unsupported=_spans(text, spans)))
        doubted += _spans(text, spans, start)
        start += len(text) + 1
    values = {"id": row["id"], "attention": [], "score": 0.0, **values}
    whole = 100 * supported / total if total else None
    return Summary(summary=" ".join(texts), sentences=sentences, support=whole, unsupported=doubted, **values)


def _chosen(
    index: SourceIndex, texts: Sequence[str], weights: Sequence[np.ndarray], mode: str
) -> Iterator[list[tuple[int, float]]]:
    """Yield the paragraphs that each sentence cites, with their weights."""
    row = index.row
    if mode == "both":
        yield from map(citations.strongest, citations.combined(texts, weights, index.passages, row["title"]))
    else:
        yield from map(citations.cited, citations.lexical(texts, row["text"]) if mode == "lexical" else weights)


def _citation(index: SourceIndex, paragraph: int, weight: float, parts: Sequence[Said]) -> Citation:
    row, text = index.row, index.row["text"][paragraph]
    document, before = int(row["document"][paragraph]), int(row["char_start"][paragraph])
    start, end = nearest_sentences(index.sentences(paragraph), parts) or (0, len(text))
    return Citation(
        document=document,
        paragraph=int(row["paragraph"][paragraph]),
        weight=weight,
        source=row["source"][document],
        quote=text[start:end],
        start=before + start,
        end=before + end,
    )


def nearest_sentences(
    sentences: Sequence[tuple[tuple[int, int], TextIndex]], parts: Sequence[Said]
) -> tuple[int, int] | None:
    """Return the span of the ``sentences`` of a paragraph that contain most of ``parts``: usually one sentence.

    A second and third one are added if each brings a name, a number or four other words. None if no sentence contains
    any part: the whole paragraph is then the quote.
    """
    contained = [{i for i, part in enumerate(parts) if passage.holds(part)} for _, passage in sentences]

    def value(run: range) -> float:
        indices = set(chain.from_iterable(contained[i] for i in run))
        return sum(1.0 if parts[i].name else _WORD for i in indices) - _MORE * len(run)

    starts = [i for i, indices in enumerate(contained) if indices]
    runs = [range(i, i + n) for n in range(1, _LONGEST + 1) for i in starts if i + n <= len(contained)]
    best = max(runs, key=value, default=None)
    return (sentences[best[0]][0][0], sentences[best[-1]][0][1]) if best else None


def _spans(text: str, spans: Sequence[tuple[int, int]], offset: int = 0) -> list[Span]:
    return [Span(start=offset + start, end=offset + end, text=text[start:end]) for start, end in spans]
