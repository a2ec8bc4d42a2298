"""The citations of a summary: quotes from the paragraphs of its row, and how much of each sentence they support.

M paragraphs of a row.
"""

from collections.abc import Sequence
from functools import cached_property
from itertools import chain
from typing import Any

import numpy as np

from raysum.data.rows import Row
from raysum.decode.summary import Citation, Sentence, Span, Summary
from raysum.metrics import citations
from raysum.metrics.citations import Said, TextIndex, said, supported_share
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
            spans = quick_sentence_spans(text)
            self._sentences[paragraph] = [((start, end), TextIndex([text[start:end]])) for start, end in spans]
        return self._sentences[paragraph]


def annotated(
    row: Row, texts: Sequence[str], weights: Sequence[np.ndarray] | None = None, mode: str = "both", **values: Any
) -> Summary:
    """Return the summary of ``row`` with the sentences ``texts``; ``values`` are its other fields.

    Sentences cite by ``mode`` (``decode.citations``) and their attention ``weights`` [M]; without weights they do not.
    """
    index = SourceIndex(row)
    chosen: Sequence[list[tuple[int, float]]] = [[]] * len(texts)
    if weights is not None and mode == "both":
        combined = citations.combined(texts, weights, index.passages, row["title"])
        chosen = [citations.strongest(share) for share in combined]
    elif weights is not None:
        chosen = [*map(citations.cited, citations.lexical(texts, row["text"]) if mode == "lexical" else weights)]
    sentences, doubted = list[Sentence](), list[Span]()
    supported, total, start = 0.0, 0, 0
    for text, cited in zip(texts, chosen, strict=True):
        parts = said(text)
        near = [index.title, *(index.passages[m] for m, _ in cited)] if cited else [index.everything]
        support, weight = supported_share(parts, near), sum(part.weight for part in parts)
        supported, total = supported + (support or 0.0) * weight, total + weight
        quotes = [(m, share, nearest_sentences(index.sentences(m), parts)) for m, share in cited]
        spans = [Span(start=a, end=b, text=text[a:b]) for a, b in unsupported(text, index.everything)]
        sentences.append(
            Sentence(
                text=text,
                start=start,
                end=start + len(text),
                citations=[Citation.of(row, m, share, *quote) for m, share, quote in quotes],
                support=support,
                unsupported=spans,
            )
        )
        doubted += [Span(start=start + span.start, end=start + span.end, text=span.text) for span in spans]
        start += len(text) + 1
    values = {"id": row["id"], "attention": [], "score": 0.0, **values}
    whole = 100 * supported / total if total else None
    return Summary(summary=" ".join(texts), sentences=sentences, support=whole, unsupported=doubted, **values)


def nearest_sentences(
    sentences: Sequence[tuple[tuple[int, int], TextIndex]], parts: Sequence[Said]
) -> tuple[int, int] | tuple[()]:
    """Return the span of the ``sentences`` of a paragraph that contain most of ``parts``: usually one sentence.

    A second and third one are added if each brings a name, a number or four other words. The result is empty if no
    sentence contains any part: the whole paragraph is then the quote.
    """
    contained = [{i for i, part in enumerate(parts) if passage.holds(part)} for _, passage in sentences]

    def value(run: range) -> float:
        indices = set(chain.from_iterable(contained[i] for i in run))
        return sum(1.0 if parts[i].name else _WORD for i in indices) - _MORE * len(run)

    starts = [i for i, indices in enumerate(contained) if indices]
    runs = [range(i, i + n) for n in range(1, _LONGEST + 1) for i in starts if i + n <= len(contained)]
    best = max(runs, key=value, default=None)
    return (sentences[best[0]][0][0], sentences[best[-1]][0][1]) if best else ()
