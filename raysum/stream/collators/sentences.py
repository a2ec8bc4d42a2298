"""Rows of sentences: labelled ones to learn extraction from, or those of documents to pre-train on."""

from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from raysum.config.sources import SourceConfig
from raysum.data.dataset import Dataset
from raysum.data.rows import Row
from raysum.errors import UserError
from raysum.runtime.extras import needs
from raysum.stream.collators.base import Arrays, Kind, long, room
from raysum.stream.collators.summarization import cut_source, framed
from raysum.systems import Spec
from raysum.tokenizers.special_tokens import PUBLISHED, SpecialTokens, marks_of

if TYPE_CHECKING:
    from raysum.models.systems.hibert import SentenceBatch


@dataclass(frozen=True)
class Sentences(Kind):
    """Cost: tokens, with the mark that ends each sentence; weight: sentences of a row with a summary.

    Of each row the first ``source.max_paragraphs`` sentences are read, in windows of at most ``window`` of about the
    same length. ``max_tokens`` does not hold, as sentences are read one by one.
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
        """What stands before and behind each sentence."""
        return (), (self.marks.end,)

    def costs(self, lengths: np.ndarray, source: SourceConfig) -> tuple[np.ndarray, np.ndarray]:
        """Where sentences are cut the cost is an upper bound."""
        tokens, sentences, target = lengths.astype(np.int64).T
        sentences = np.minimum(sentences, source.max_paragraphs)
        costs = np.minimum(tokens, sentences * source.paragraph_tokens) + sum(map(len, self.frame)) * sentences
        return costs, np.where(self.counts(target), sentences, 0)

    def counts(self, target: np.ndarray) -> np.ndarray:
        """Whether something is learned of rows with such ``target`` tokens."""
        return target > 0

    def cut(self, row: Row, source: SourceConfig) -> tuple[np.ndarray, np.ndarray]:
        return cut_source(row, source.model_copy(update={"max_tokens": None}))

    def pack(self, rows: list[Row], source: SourceConfig) -> Arrays:
        """``ids`` [S] and ``lengths`` [P] of sentences with their marks, ``counts`` of windows, ``labels`` [P]."""
        ids, lengths = zip(*(self.cut(row, source) for row in rows), strict=True)
        arrays = {
            "ids": np.concatenate([framed(i, n, *self.frame) for i, n in zip(ids, lengths, strict=True)]),
            "lengths": np.concatenate(lengths, dtype=np.int32) + sum(map(len, self.frame)),
            "counts": np.concatenate([self.windows(len(each)) for each in lengths]).astype(np.int32),
        }
        if "labels" in self.columns:
            labels = [row["labels"][: len(each)] for row, each in zip(rows, lengths, strict=True)]
            arrays["labels"] = np.concatenate(labels)
        return arrays

    def windows(self, count: int) -> np.ndarray:
        """How many of a row's ``count`` sentences are read together, window by window."""
        return np.array([len(part) for part in np.array_split(np.arange(count), -(-count // self.window))])

    def tokens(self, arrays: Arrays) -> tuple[int, int]:
        return len(arrays["ids"]), len(arrays["lengths"])

    def collate(self, arrays: Arrays) -> "SentenceBatch":
        from raysum.models.batch import Source
        from raysum.models.systems.hibert import SentenceBatch

        source = Source(*(long(arrays[name]) for name in ("ids", "lengths", "counts")))
        return SentenceBatch(source, long(arrays["labels"]) if "labels" in arrays else None)


@dataclass(frozen=True)
class Blocks(Sentences):
    """For a BERT: [CLS] before each sentence and [SEP] behind it, whole blocks of ``window`` and what is left over."""

    positions: int = 512  # tokens of a block, at most
    cls: int = 101
    sep: int = 102

    @classmethod
    def of(cls, spec: Spec) -> "Blocks":
        return cls(**{field.name: getattr(spec, field.name) for field in fields(cls) if field.name != "marks"})

    def check(self, dataset: Dataset) -> None:
        needs("transformers", "a bert")

    def costs(self, lengths: np.ndarray, source: SourceConfig) -> tuple[np.ndarray, np.ndarray]:
        """Raises UserError where a block of the longest sentences is longer than the model can read."""
        most = self.positions // self.window - 2
        if source.paragraph_tokens > most:
            raise UserError(
                f"blocks of {self.window} sentences of {source.paragraph_tokens} tokens, [CLS] and [SEP] do not fit "
                f"into {self.positions} positions; give source.paragraph_tokens={most}, or a smaller model.window"
            )
        return super().costs(lengths, source)

    @property
    def frame(self) -> tuple[tuple[int, ...], tuple[int, ...]]:
        return (self.cls,), (self.sep,)

    def windows(self, count: int) -> np.ndarray:
        return np.diff([*range(0, count, self.window), count])

    def padding(self, arrays: Arrays) -> int:
        """Blocks are padded to the longest."""
        ends = np.cumsum(arrays["counts"])
        return room(np.add.reduceat(arrays["lengths"], ends - arrays["counts"]))


@dataclass(frozen=True)
class Documents(Sentences):
    """To pre-train on: every row counts, and none has labels.

    What the decoder pads of the sentences that it predicts is drawn in training, and not in ``padding``.
    """

    dataset_kinds = ("pretraining",)
    columns = ("ids", "paragraph_offsets")

    def counts(self, target: np.ndarray) -> np.ndarray:
        return np.ones(len(target), bool)
