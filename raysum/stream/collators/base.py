"""The interface of dataset kinds for the stream and for training. Each kind has a file beside this one."""

import zlib
from typing import TYPE_CHECKING, Any, ClassVar, Protocol

import numpy as np

from raysum import systems
from raysum.config.decoding import SourceConfig
from raysum.data.dataset import Dataset
from raysum.errors import UserError

if TYPE_CHECKING:
    from torch import Tensor

Arrays = dict[str, np.ndarray]


class Kind(Protocol):
    """A hashable kind of rows: it computes their costs, packs them flat (numpy only), and makes tensors (torch)."""

    dataset_kinds: ClassVar[tuple[str, ...]] = ("summarization",)  # readable datasets, its own kind first
    draws_references: ClassVar[bool] = False  # whether an epoch draws one of a row's references

    @classmethod
    def of(cls, spec: systems.Spec) -> "Kind":
        """Return the kind for the model of a spec."""
        return cls()

    @property
    def columns(self) -> tuple[str, ...]:
        """The columns to read."""

    def check(self, dataset: Dataset) -> None:
        """Raises UserError if rows of ``dataset`` lack an input of the model."""

    def costs(self, lengths: np.ndarray, source: SourceConfig) -> tuple[np.ndarray, np.ndarray]:
        """Return from ``lengths`` [rows, 3] the costs in the batch budget [rows] and the loss weights [rows]."""

    def cut(self, row: Any, source: SourceConfig) -> tuple[np.ndarray, np.ndarray]:
        """Return the ids [S] that the model reads of a row, and the tokens [P] of its paragraphs; none without text."""
        return np.zeros(0, np.int32), np.zeros(0, np.int32)

    def pack(self, rows: list[Any], source: SourceConfig) -> Arrays:
        """Return flat arrays of one micro-batch of at least one row."""

    def tokens(self, arrays: Arrays) -> tuple[int, int]:
        """Return the source and target tokens of one micro-batch for statistics; the second is its weight."""

    def padding(self, arrays: Arrays) -> int:
        """Return the number of padding positions that the model's layers compute, without pairs in attention."""
        return 0

    def collate(self, arrays: Arrays) -> Any:
        """Return the tensors of one micro-batch."""


def kind_of(spec: systems.Spec, dataset: Dataset) -> Kind:
    """Return the kind for the model of ``spec``. Raises UserError if that model cannot read ``dataset``."""
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
    """Return the CRC-32 of all arrays, to compare the data of two micro-batches."""
    return zlib.crc32(b"".join(array.tobytes() for array in arrays.values()))


def room(lengths: np.ndarray) -> int:
    """Return the number of padding positions of rows of such ``lengths``."""
    return len(lengths) * int(lengths.max()) - int(lengths.sum())


def padded(values: np.ndarray, lengths: np.ndarray, fill: int) -> np.ndarray:
    """Return flat ``values`` [sum of lengths, ...] as [B, longest, ...], padded with ``fill``."""
    full = np.full((len(lengths), int(lengths.max()), *values.shape[1:]), fill, values.dtype)
    full[np.arange(full.shape[1]) < lengths[:, None]] = values
    return full


def long(array: np.ndarray) -> "Tensor":
    import torch

    return torch.from_numpy(array.astype(np.int64))
