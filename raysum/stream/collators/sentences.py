"""Rows of sentences: labelled sentences for extraction, or unlabelled documents for pre-training."""

from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from raysum.config.decoding import SourceConfig
from raysum.data.dataset import Dataset
from raysum.data.rows import Row
from raysum.errors import UserError
from raysum.runtime.extras import needs
from raysum.stream.collators.base import Arrays, Kind, long, room
from raysum.stream.collators.summarization import add_marks, cut_source
from raysum.systems import Spec
from raysum.tokenizers.special_tokens import PUBLISHED, SpecialTokens, marks_of

if TYPE_CHECKING:
    from raysum.models.systems.labellers import SentenceBatch


@dataclass(frozen=True)
class Sentences(Kind):
    """The dataset kind of extraction. Cost: tokens with end marks; weight: sentences of a row with a summary.

    The model reads the first ``source.max_paragraphs`` sentences of a row, in windows of about equal size, at most
    ``window``. ``max_tokens`` does not apply, because each sentence is encoded separately.
    """

    dataset_kinds = ("extraction",)
    columns: ClassVar[tuple[str, ...]] = ("ids", "paragraph_offsets", "labels")

    window: int = 30
    marks: SpecialTokens = PUBLISHED

    @classmethod
    def of(cls, spec: Spec) -> "Sentences":
        kind = cls if spec.extracts else Documents
        return kind(getattr(spec, "window", cls.window), marks_of(spec))

    @property
    def frame(self) -> tuple[tuple[int, ...], tuple[int, ...]]:
        """The marks before and after each sentence."""
        return (), (self.marks.end,)

    def costs(self, lengths: np.ndarray, source: SourceConfig) -> tuple[np.ndarray, np.ndarray]:
        """Return costs and weights; the cost is an upper bound if sentences are cut."""
        tokens, sentences, target = lengths.astype(np.int64).T
        sentences = np.minimum(sentences, source.max_paragraphs)
        costs = np.minimum(tokens, sentences * source.paragraph_tokens) + sum(map(len, self.frame)) * sentences
        return costs, np.where(self.counts(target), sentences, 0)

    def counts(self, target: np.ndarray) -> np.ndarray:
        """Return whether rows with ``target`` tokens have a loss."""
        return target > 0

    def cut(self, row: Row, source: SourceConfig) -> tuple[np.ndarray, np.ndarray]:
        return cut_source(row, source.model_copy(update={"max_tokens": None}))

    def pack(self, rows: list[Row], source: SourceConfig) -> Arrays:
        """Return ``ids`` [S] and ``lengths`` [P] of sentences with marks, ``counts`` of windows, and ``labels`` [P]."""
        ids, lengths = zip(*(self.cut(row, source) for row in rows), strict=True)
        arrays = {
            "ids": np.concatenate([add_marks(i, n, *self.frame) for i, n in zip(ids, lengths, strict=True)]),
            "lengths": np.concatenate(lengths, dtype=np.int32) + sum(map(len, self.frame)),
            "counts": np.concatenate([self.windows(len(sentences)) for sentences in lengths]).astype(np.int32),
        }
        if "labels" in self.columns:
            labels = [row["labels"][: len(sentences)] for row, sentences in zip(rows, lengths, strict=True)]
            arrays["labels"] = np.concatenate(labels)
        return arrays

    def windows(self, count: int) -> np.ndarray:
        """Return the number of sentences in each window of a row with ``count`` sentences."""
        return np.array([len(part) for part in np.array_split(np.arange(count), -(-count // self.window))])

    def tokens(self, arrays: Arrays) -> tuple[int, int]:
        return len(arrays["ids"]), len(arrays["lengths"])

    def collate(self, arrays: Arrays) -> "SentenceBatch":
        from raysum.models.batch import Source
        from raysum.models.systems.labellers import SentenceBatch

        source = Source(*(long(arrays[name]) for name in ("ids", "lengths", "counts")))
        return SentenceBatch(source, long(arrays["labels"]) if "labels" in arrays else None)


@dataclass(frozen=True)
class Blocks(Sentences):
    """The dataset kind of a BERT: [CLS] sentence [SEP], in blocks of ``window`` sentences and a shorter last block."""

    positions: int = 512  # maximum tokens of a block
    cls: int = 101
    sep: int = 102

    @classmethod
    def of(cls, spec: Spec) -> "Blocks":
        return cls(**{field.name: getattr(spec, field.name) for field in fields(cls) if field.name != "marks"})

    def check(self, dataset: Dataset) -> None:
        needs("transformers", "a bert")

    def costs(self, lengths: np.ndarray, source: SourceConfig) -> tuple[np.ndarray, np.ndarray]:
        """Raises UserError if a block of the longest sentences exceeds the positions of the model."""
        limit = self.positions // self.window - 2
        if source.paragraph_tokens > limit:
            raise UserError(
                f"blocks of {self.window} sentences of {source.paragraph_tokens} tokens, [CLS] and [SEP] do not fit "
                f"into {self.positions} positions; set source.paragraph_tokens={limit}, or a smaller model.window"
            )
        return super().costs(lengths, source)

    @property
    def frame(self) -> tuple[tuple[int, ...], tuple[int, ...]]:
        return (self.cls,), (self.sep,)

    def windows(self, count: int) -> np.ndarray:
        return np.diff([*range(0, count, self.window), count])

    def padding(self, arrays: Arrays) -> int:
        """Return the padding of blocks to the longest."""
        ends = np.cumsum(arrays["counts"])
        return room(np.add.reduceat(arrays["lengths"], ends - arrays["counts"]))


@dataclass(frozen=True)
class Documents(Sentences):
    """The dataset kind of pre-training: every row counts, and none has labels.

    ``padding`` omits the decoder's padding, because training draws the sentences that the decoder predicts.
    """

    dataset_kinds = ("pretraining",)
    columns = ("ids", "paragraph_offsets")

    def counts(self, target: np.ndarray) -> np.ndarray:
        return np.ones(len(target), bool)
