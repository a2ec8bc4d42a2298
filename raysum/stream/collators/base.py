"""What a kind of rows is to the stream and to training; one file a kind beside this one."""

import zlib
from typing import TYPE_CHECKING, Any, ClassVar, Protocol

import numpy as np

from raysum import systems
from raysum.config.sources import SourceConfig
from raysum.data.dataset import Dataset
from raysum.errors import UserError

if TYPE_CHECKING:
    from torch import Tensor

Arrays = dict[str, np.ndarray]


class Kind(Protocol):
    """How rows are counted, packed flat (numpy only), and made tensors (torch): the one way into a model. Hashable."""

    dataset_kinds: ClassVar[tuple[str, ...]] = ("summarization",)  # of the datasets it reads, its own first
    draws_references: ClassVar[bool] = False  # reads one of a row's references in place of the first

    @classmethod
    def of(cls, spec: systems.Spec) -> "Kind":
        """What the model of a spec reads."""
        return cls()

    @property
    def columns(self) -> tuple[str, ...]:
        """Those that are read."""

    def check(self, dataset: Dataset) -> None:
        """Raises UserError where rows of ``dataset`` lack what the model reads."""

    def costs(self, lengths: np.ndarray, source: SourceConfig) -> tuple[np.ndarray, np.ndarray]:
        """From ``lengths`` [rows, 3]: units of the batch budget [rows], weights in the loss denominator [rows]."""

    def cut(self, row: Any, source: SourceConfig) -> tuple[np.ndarray, np.ndarray]:
        """Of a row what is read: ids [S] and the tokens [P] of its paragraphs. Nothing of rows that hold no text."""
        return np.zeros(0, np.int32), np.zeros(0, np.int32)

    def pack(self, rows: list[Any], source: SourceConfig) -> Arrays:
        """Flat arrays of one micro-batch of at least one row."""

    def tokens(self, arrays: Arrays) -> tuple[int, int]:
        """Source and target tokens of one micro-batch, for the statistics; the second is its weight."""

    def padding(self, arrays: Arrays) -> int:
        """Positions without a token that the model's layers compute of one micro-batch; pairs in attention aside."""
        return 0

    def collate(self, arrays: Arrays) -> Any:
        """Tensors of one micro-batch."""


def kind_of(spec: systems.Spec, dataset: Dataset) -> Kind:
    """How the rows of ``dataset`` reach the model of ``spec``. Raises UserError where they cannot."""
    kind: Kind = systems.kind(spec)
    if dataset.kind not in kind.dataset_kinds:
        raise UserError(
            f"{dataset.place} is a dataset of kind {dataset.kind!r}; "
            f"this {spec.system} reads one of kind {kind.dataset_kinds[0]!r}, made by "
            f"`raysum prepare --kind {kind.dataset_kinds[0]}`"
        )
    kind.check(dataset)
    return kind


def digest(arrays: Arrays) -> int:
    """A number that tells whether two micro-batches hold the same data (CRC-32 of all arrays)."""
    return zlib.crc32(b"".join(array.tobytes() for array in arrays.values()))


def room(lengths: np.ndarray) -> int:
    """Places left in rows of such ``lengths`` that are padded to the longest."""
    return len(lengths) * int(lengths.max()) - int(lengths.sum())


def padded(values: np.ndarray, lengths: np.ndarray, fill: int) -> np.ndarray:
    """Flat ``values`` [sum of lengths, ...] -> [B, longest, ...], ``fill`` where there is none."""
    full = np.full((len(lengths), int(lengths.max()), *values.shape[1:]), fill, values.dtype)
    full[np.arange(full.shape[1]) < lengths[:, None]] = values
    return full


def long(array: np.ndarray) -> "Tensor":
    import torch

    return torch.from_numpy(array.astype(np.int64))
