"""Rows of sentences: labelled ones to learn extraction from, or those of documents to pre-train on."""

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from raysum.config.sections import SourceConfig
from raysum.data.rows import Row
from raysum.models.special_ids import EOS
from raysum.stream.kinds.base import Arrays, Kind, long
from raysum.stream.kinds.summarization import cut_source
from raysum.systems import Spec

if TYPE_CHECKING:
    from raysum.models.systems.hibert import SentenceBatch


@dataclass(frozen=True)
class Sentences(Kind):
    """Cost: tokens, with the EOS that ends each sentence; weight: sentences of a row with a summary.

    Of each row the first ``source.max_paragraphs`` sentences are read, in windows of at most ``window`` of about the
    same length. ``max_tokens`` does not hold, as sentences are read one by one.
    """

    dataset_kind = "extraction"
    columns: ClassVar[tuple[str, ...]] = ("ids", "paragraph_offsets", "labels")

    window: int = 30

    @classmethod
    def of(cls, spec: Spec) -> "Sentences":
        kind = cls if spec.extracts else Documents
        return kind(getattr(spec, "window", cls.window))

    def costs(self, lengths: np.ndarray, source: SourceConfig) -> tuple[np.ndarray, np.ndarray]:
        """Where sentences are cut the cost is an upper bound."""
        tokens, sentences, target = lengths.astype(np.int64).T
        sentences = np.minimum(sentences, source.max_paragraphs)
        costs = np.minimum(tokens, sentences * source.paragraph_tokens) + sentences
        return costs, np.where(self.counts(target), sentences, 0)

    def counts(self, target: np.ndarray) -> np.ndarray:
        """Whether something is learned of rows with such ``target`` tokens."""
        return target > 0

    def pack(self, rows: list[Row], source: SourceConfig) -> Arrays:
        """``ids`` [S] and ``lengths`` [P] with the EOS of each sentence, ``counts`` of each window, ``labels`` [P]."""
        whole = source.model_copy(update={"max_tokens": None})
        ids, lengths = zip(*(cut_source(row, whole) for row in rows), strict=True)
        sizes = [len(part) for each in lengths for part in np.array_split(each, -(-len(each) // self.window))]
        arrays = {
            "ids": np.concatenate([np.insert(i, np.cumsum(n), EOS) for i, n in zip(ids, lengths, strict=True)]),
            "lengths": np.concatenate(lengths, dtype=np.int32) + 1,
            "counts": np.array(sizes, np.int32),
        }
        if "labels" in self.columns:
            labels = [row["labels"][: len(each)] for row, each in zip(rows, lengths, strict=True)]
            arrays["labels"] = np.concatenate(labels)
        return arrays

    def tokens(self, arrays: Arrays) -> tuple[int, int]:
        return len(arrays["ids"]), len(arrays["lengths"])

    def collate(self, arrays: Arrays) -> "SentenceBatch":
        from raysum.models.batch import Source
        from raysum.models.systems.hibert import SentenceBatch

        source = Source(*(long(arrays[name]) for name in ("ids", "lengths", "counts")))
        return SentenceBatch(source, long(arrays["labels"]) if "labels" in arrays else None)


@dataclass(frozen=True)
class Documents(Sentences):
    """To pre-train on: every row counts, and none has labels."""

    dataset_kind = "pretraining"
    columns = ("ids", "paragraph_offsets")

    def counts(self, target: np.ndarray) -> np.ndarray:
        return np.ones(len(target), bool)
