"""What a summary cites, word for word, and what of it stands there: from its sentences and the row that it is of.

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
from raysum.metrics.support import Passage, Said, said, share
from raysum.text.names import unsupported
from raysum.text.sentences import quick_sentence_spans

_LONGEST = 3  # sentences of a quote
_WORD, _MORE = 0.3, 0.9  # of a name: what another word counts for, what a further sentence must bring


class Ground:
    """The paragraphs of a row, each looked into once."""

    def __init__(self, row: Row):
        self.row = row
        self.title, self.everything = Passage([row["title"]]), Passage([row["title"], *row["text"]])
        self._sentences: dict[int, list[tuple[tuple[int, int], Passage]]] = {}

    @cached_property
    def passages(self) -> list[Passage]:
        return [Passage([text]) for text in self.row["text"]]

    def sentences(self, place: int) -> list[tuple[tuple[int, int], Passage]]:
        """The sentences of a paragraph: where they begin and end, and what they hold."""
        if place not in self._sentences:
            text = self.row["text"][place]
            found = [((start, end), Passage([text[start:end]])) for start, end in quick_sentence_spans(text)]
            self._sentences[place] = found
        return self._sentences[place]


def annotated(
    row: Row, texts: Sequence[str], paid: Sequence[np.ndarray] | None = None, mode: str = "both", **values: Any
) -> Summary:
    """The summary of ``row`` in the sentences ``texts``; ``values`` are further fields of it.

    They cite by ``mode`` (``decode.citations``) and the attention [M] ``paid`` by each, and nothing without it.
    """
    ground, sentences = Ground(row), []
    doubted: list[Span] = []
    held, total, start = 0.0, 0, 0
    chosen = [[]] * len(texts) if paid is None else list(_chosen(ground, texts, paid, mode))
    for text, cited in zip(texts, chosen, strict=True):
        parts = said(text)
        near = [ground.title, *(ground.passages[m] for m, _ in cited)] if cited else [ground.everything]
        support, weight = share(parts, near), sum(part.weight for part in parts)
        held, total = held + (support or 0.0) * weight, total + weight
        spans = unsupported(text, ground.everything)
        made = [_citation(ground, m, share_of, parts) for m, share_of in cited]
        sentences.append(Sentence(text=text, citations=made, support=support, unsupported=_spans(text, spans)))
        doubted += _spans(text, spans, start)
        start += len(text) + 1
    values = {"id": row["id"], "attention": [], "score": 0.0, **values}
    whole = 100 * held / total if total else None
    return Summary(summary=" ".join(texts), sentences=sentences, support=whole, unsupported=doubted, **values)


def _chosen(
    ground: Ground, texts: Sequence[str], paid: Sequence[np.ndarray], mode: str
) -> Iterator[list[tuple[int, float]]]:
    """The paragraphs that each sentence cites, and their weights."""
    row = ground.row
    if mode == "both":
        yield from map(citations.strongest, citations.combined(texts, paid, ground.passages, row["title"]))
    else:
        yield from map(citations.cited, citations.lexical(texts, row["text"]) if mode == "lexical" else paid)


def _citation(ground: Ground, place: int, weight: float, parts: Sequence[Said]) -> Citation:
    row, text = ground.row, ground.row["text"][place]
    document, before = int(row["document"][place]), int(row["char_start"][place])
    start, end = nearest(ground.sentences(place), parts) or (0, len(text))
    return Citation(
        document=document,
        paragraph=int(row["paragraph"][place]),
        weight=weight,
        source=row["source"][document],
        quote=text[start:end],
        start=before + start,
        end=before + end,
    )


def nearest(sentences: Sequence[tuple[tuple[int, int], Passage]], parts: Sequence[Said]) -> tuple[int, int] | None:
    """Where those of the ``sentences`` of a paragraph begin and end that hold most of what is said: as a rule one.

    Up to three in a row, where a further one brings a name or number, or four other words, that the others lack. None
    where none holds anything of it: the whole paragraph is then the quote.
    """
    held = [{i for i, part in enumerate(parts) if passage.holds(part)} for _, passage in sentences]

    def worth(run: range) -> float:
        found = set(chain.from_iterable(held[i] for i in run))
        return sum(1.0 if parts[i].name else _WORD for i in found) - _MORE * len(run)

    starts = [i for i, some in enumerate(held) if some]
    runs = [range(i, i + n) for n in range(1, _LONGEST + 1) for i in starts if i + n <= len(held)]
    best = max(runs, key=worth, default=None)
    return (sentences[best[0]][0][0], sentences[best[-1]][0][1]) if best else None


def _spans(text: str, spans: Sequence[tuple[int, int]], offset: int = 0) -> list[Span]:
    return [Span(start=offset + start, end=offset + end, text=text[start:end]) for start, end in spans]
