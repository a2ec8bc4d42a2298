"""Systems that are compared: a trained run, the same with swapped sources, and the extractive ones of the papers."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Protocol

import numpy as np

from raysum.config.sections import DecodeConfig
from raysum.data.sentences import sentence_spans
from raysum.data.vocabulary import TITLE_END
from raysum.decode.summarizer import Summarizer
from raysum.evaluate.output import Output, Row
from raysum.prepare.ranking import lexrank


class System(Protocol):
    @property
    def name(self) -> str: ...

    def summarize(self, rows: Sequence[Row], others: Sequence[Row]) -> list[Output]:
        """One output for each row; ``others`` are rows of other clusters, one for each row."""
        ...


@dataclass(frozen=True)
class Trained:
    """A run's model: batched beam search, as `raysum summarize` does it."""

    name: str
    summarizer: Summarizer
    settings: DecodeConfig

    def summarize(self, rows: Sequence[Row], others: Sequence[Row]) -> list[Output]:
        return [Output.of(summary) for summary in self.summarizer.summarize_rows(rows, self.settings)]


@dataclass(frozen=True)
class Swapped:
    """The control: the same model with the row's own title but another cluster's paragraphs.

    What it still scores comes from the language and the title, not from reading.
    """

    name: str
    summarizer: Summarizer
    settings: DecodeConfig

    def summarize(self, rows: Sequence[Row], others: Sequence[Row]) -> list[Output]:
        mixed = [swap(row, other) for row, other in zip(rows, others, strict=True)]
        summaries = self.summarizer.summarize_rows(mixed, self.settings)
        return [Output([sentence.text for sentence in summary.sentences]) for summary in summaries]


@dataclass(frozen=True)
class Lead:
    """Title and ranked paragraphs in order, cut to the reference's length in words (HT and PHT papers, baselines)."""

    name: str = "lead"

    def summarize(self, rows: Sequence[Row], others: Sequence[Row]) -> list[Output]:
        return [_extract([row["title"], *row["text"]], row["summary"]) for row in rows]


@dataclass(frozen=True)
class LexRank:
    """The most central paragraphs first, cut to the reference's length in words (Erkan and Radev, 2004)."""

    name: str = "lexrank"

    def summarize(self, rows: Sequence[Row], others: Sequence[Row]) -> list[Output]:
        outputs = []
        for row in rows:
            order = np.argsort(-lexrank(row["text"]), kind="stable")
            outputs.append(_extract([row["text"][index] for index in order], row["summary"]))
        return outputs


@dataclass(frozen=True)
class Oracle:
    """Paragraphs that add most bigrams of the reference, cut to its length: about the best that extraction reaches."""

    name: str = "oracle"

    def summarize(self, rows: Sequence[Row], others: Sequence[Row]) -> list[Output]:
        return [_extract(_covering(row["text"], row["summary"]), row["summary"]) for row in rows]


EXTRACTIVE: dict[str, type[Lead] | type[LexRank] | type[Oracle]] = {"lead": Lead, "lexrank": LexRank, "oracle": Oracle}


def swap(row: Row, other: Row) -> Row:
    """``row`` with the paragraphs of ``other``, before which the title pieces of ``row`` stand."""
    own, foreign = _title_length(row["ids"]), _title_length(other["ids"])
    shift = own - foreign
    paragraphs = other["paragraph_offsets"].copy()
    paragraphs[1:] += shift
    sentences = other["sentence_offsets"].copy()
    sentences[1:] += shift
    kept = {key: row[key] for key in ("id", "title", "summary", "target_ids", "facts")}
    ids = np.concatenate((row["ids"][:own], other["ids"][foreign:]))
    return other | kept | {"ids": ids, "paragraph_offsets": paragraphs, "sentence_offsets": sentences}


def _title_length(ids: np.ndarray) -> int:
    """Tokens of the title and its end mark at the start of paragraph 0; 0 without a title."""
    ends = np.flatnonzero(ids == TITLE_END)
    return int(ends[0]) + 1 if len(ends) else 0


def _extract(texts: Sequence[str], reference: str) -> Output:
    """The first words of ``texts``, as many as the reference has, in sentences; every text starts a new one."""
    left = len(reference.split())
    sentences = []
    for text in texts:
        for start, end in sentence_spans(text):
            words = text[start:end].split()[:left]
            left -= len(words)
            if words:
                sentences.append(" ".join(words))
    return Output(sentences)


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
