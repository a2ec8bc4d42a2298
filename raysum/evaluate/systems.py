"""Systems that are compared: a trained run, the same with swapped sources, and the extractive ones of the papers."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Protocol

import numpy as np

from raysum.config.sections import DecodeConfig
from raysum.data.rows import Row
from raysum.data.sentences import sentence_spans
from raysum.decode.summarizer import Summarizer
from raysum.decode.summary import Sentence, Summary
from raysum.prepare.ranking import lexrank


class System(Protocol):
    @property
    def name(self) -> str: ...

    def summarize(self, rows: Sequence[Row], others: Sequence[Row]) -> list[Summary]:
        """One summary for each row; ``others`` are rows of other clusters, one for each row."""
        ...


@dataclass(frozen=True)
class Trained:
    """A run's model: batched beam search, as `raysum summarize` does it."""

    name: str
    summarizer: Summarizer
    settings: DecodeConfig

    def summarize(self, rows: Sequence[Row], others: Sequence[Row]) -> list[Summary]:
        return self.summarizer.summarize_rows(rows, self.settings)


@dataclass(frozen=True)
class Swapped:
    """The control: the same model with the row's own title but another cluster's paragraphs.

    What it still scores comes from the language and the title, not from reading.
    """

    name: str
    summarizer: Summarizer
    settings: DecodeConfig

    def summarize(self, rows: Sequence[Row], others: Sequence[Row]) -> list[Summary]:
        mixed = [swap(row, other) for row, other in zip(rows, others, strict=True)]
        found = self.summarizer.summarize_rows(mixed, self.settings)
        texts = [[sentence.text for sentence in summary.sentences] for summary in found]
        return [_uncited(row, sentences) for row, sentences in zip(rows, texts, strict=True)]


@dataclass(frozen=True)
class Lead:
    """Title and ranked paragraphs in order, cut to the reference's length in words (HT and PHT papers, baselines)."""

    name: str = "lead"

    def summarize(self, rows: Sequence[Row], others: Sequence[Row]) -> list[Summary]:
        return [_extract(row, [row["title"], *row["text"]]) for row in rows]


@dataclass(frozen=True)
class LexRank:
    """The most central paragraphs first, cut to the reference's length in words (Erkan and Radev, 2004)."""

    name: str = "lexrank"

    def summarize(self, rows: Sequence[Row], others: Sequence[Row]) -> list[Summary]:
        outputs = []
        for row in rows:
            order = np.argsort(-lexrank(row["text"]), kind="stable")
            outputs.append(_extract(row, [row["text"][index] for index in order]))
        return outputs


@dataclass(frozen=True)
class Oracle:
    """Paragraphs that add most bigrams of the reference, cut to its length: about the best that extraction reaches."""

    name: str = "oracle"

    def summarize(self, rows: Sequence[Row], others: Sequence[Row]) -> list[Summary]:
        return [_extract(row, _covering(row["text"], row["summary"])) for row in rows]


EXTRACTIVE: dict[str, type[Lead] | type[LexRank] | type[Oracle]] = {"lead": Lead, "lexrank": LexRank, "oracle": Oracle}


def swap(row: Row, other: Row) -> Row:
    """``row`` with the paragraphs of ``other``, before which the title pieces of ``row`` stand."""
    own, foreign = row["title_tokens"], other["title_tokens"]
    shift = own - foreign
    paragraphs = other["paragraph_offsets"].copy()
    paragraphs[1:] += shift
    sentences = other["sentence_offsets"].copy()
    sentences[1:] += shift
    ids = np.concatenate((row["ids"][:own], other["ids"][foreign:]))
    foreign_parts: Row = {"ids": ids, "paragraph_offsets": paragraphs, "sentence_offsets": sentences}
    kept: Row = {
        "id": row["id"],
        "title": row["title"],
        "title_tokens": own,
        "summary": row["summary"],
        "target_ids": row["target_ids"],
        "extra": row["extra"],
    }
    return other | kept | foreign_parts


def _extract(row: Row, texts: Sequence[str]) -> Summary:
    """The first words of ``texts``, as many as the reference has, in sentences; every text starts a new one."""
    left = len(row["summary"].split())
    sentences = []
    for text in texts:
        for start, end in sentence_spans(text):
            words = text[start:end].split()[:left]
            left -= len(words)
            if words:
                sentences.append(" ".join(words))
    return _uncited(row, sentences)


def _uncited(row: Row, texts: Sequence[str]) -> Summary:
    """A summary without attention and citations."""
    sentences = [Sentence(text=text, citations=[]) for text in texts]
    return Summary(id=row["id"], summary=" ".join(texts), sentences=sentences, attention=[], score=0.0)


def _covering(texts: Sequence[str], reference: str) -> list[str]:
    """``texts`` in the order of a greedy choice: each adds most bigrams of the reference that were not there before."""
    missing, left, chosen = _bigrams(reference), list(texts), []
    while left:
        gains = [(missing & _bigrams(text)).total() for text in left]
        best = left.pop(int(np.argmax(gains)))
        missing -= _bigrams(best)
        chosen.append(best)
    return chosen


def _bigrams(text: str) -> Counter[tuple[str, str]]:
    return Counter(pairwise(text.lower().split()))
