"""From dataset rows to micro-batches of flat arrays, and from those to tensors: one small class a dataset kind."""

import zlib
from dataclasses import dataclass, fields, is_dataclass, replace
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from raysum.config import SourceConfig

if TYPE_CHECKING:
    import torch
    from torch import Tensor

    from raysum.models.batch import Batch

Arrays = dict[str, np.ndarray]


class Kind(Protocol):
    """How rows of one dataset kind are counted, packed flat (numpy only), and turned into tensors (torch)."""

    @property
    def columns(self) -> tuple[str, ...]:
        """Those that are read."""

    def costs(self, lengths: np.ndarray, source: SourceConfig) -> tuple[np.ndarray, np.ndarray]:
        """From ``lengths`` [rows, 3]: units of the batch budget [rows], weights in the loss denominator [rows]."""

    def pack(self, rows: list[Arrays], source: SourceConfig) -> Arrays:
        """Flat arrays of one micro-batch of at least one row."""

    def tokens(self, arrays: Arrays) -> tuple[int, int]:
        """Source and target tokens of one micro-batch, for the statistics; the second is its weight."""

    def collate(self, arrays: Arrays) -> Any:
        """Tensors of one micro-batch."""


class Summarization:
    """Cost: source and target tokens; weight: predicted target tokens (all but BOS)."""

    columns = ("ids", "paragraph_offsets", "target_ids")

    def costs(self, lengths: np.ndarray, source: SourceConfig) -> tuple[np.ndarray, np.ndarray]:
        """Where paragraphs are cut the cost is an upper bound: ``lengths`` tells totals only. Weights are exact."""
        tokens, paragraphs, target = lengths.astype(np.int64).T
        most = np.minimum(paragraphs, source.max_paragraphs) * source.paragraph_tokens
        tokens = np.minimum(tokens, np.minimum(most, source.max_tokens or most))
        target = np.minimum(target, source.target_tokens)
        return tokens + target, np.maximum(target - 1, 0)

    def pack(self, rows: list[Arrays], source: SourceConfig) -> Arrays:
        """``ids`` [S], ``lengths`` [P], ``counts`` [B] as in a Source; ``target`` flat, ``target_lengths`` [B]."""
        sources = [cut_source(row["ids"], row["paragraph_offsets"], source) for row in rows]
        targets = [cut_target(row["target_ids"], source.target_tokens) for row in rows]
        return {
            "ids": _flat([ids for ids, _ in sources], np.int32),
            "lengths": _flat([lengths for _, lengths in sources], np.int32),
            "counts": np.array([len(lengths) for _, lengths in sources], np.int32),
            "target": _flat(targets, np.int32),
            "target_lengths": np.array([len(target) for target in targets], np.int32),
        }

    def tokens(self, arrays: Arrays) -> tuple[int, int]:
        return len(arrays["ids"]), len(arrays["target"]) - len(arrays["target_lengths"])

    def collate(self, arrays: Arrays) -> "Batch":
        from raysum.models.batch import PAD, Batch, Source

        target = _pad(arrays["target"].astype(np.int64), arrays["target_lengths"], PAD)
        source = Source(_long(arrays["ids"]), _long(arrays["lengths"]), _long(arrays["counts"]))
        return Batch(source, _long(target))


@dataclass(frozen=True)
class AlignmentBatch:
    """``embeddings`` [B, M, D] fp32, ``mask`` [B, M] true = a real paragraph, ``label`` [B, M] summing to 1."""

    embeddings: "Tensor"
    mask: "Tensor"
    label: "Tensor"


class Alignment:
    """Cost and weight: paragraphs."""

    columns = ("embeddings", "label")

    def costs(self, lengths: np.ndarray, source: SourceConfig) -> tuple[np.ndarray, np.ndarray]:
        paragraphs = lengths[:, 1].astype(np.int64)
        return paragraphs, paragraphs

    def pack(self, rows: list[Arrays], source: SourceConfig) -> Arrays:
        """``embeddings`` [P * D] fp16, ``counts`` [B] paragraphs of each example, ``label`` [P]."""
        return {
            "embeddings": _flat([row["embeddings"] for row in rows], np.float16),
            "counts": np.array([len(row["label"]) for row in rows], np.int32),
            "label": _flat([row["label"] for row in rows], np.float32),
        }

    def tokens(self, arrays: Arrays) -> tuple[int, int]:
        return 0, len(arrays["label"])

    def collate(self, arrays: Arrays) -> AlignmentBatch:
        import torch

        counts = arrays["counts"]
        embeddings = arrays["embeddings"].reshape(int(counts.sum()), -1).astype(np.float32)
        return AlignmentBatch(
            embeddings=torch.from_numpy(_pad(embeddings, counts, 0)),
            mask=torch.from_numpy(np.arange(counts.max()) < counts[:, None]),
            label=torch.from_numpy(_pad(arrays["label"], counts, 0)),
        )


KINDS: dict[str, Kind] = {"summarization": Summarization(), "alignment": Alignment()}


def cut_source(ids: np.ndarray, offsets: np.ndarray, source: SourceConfig) -> tuple[np.ndarray, np.ndarray]:
    """The part of an example that a model reads: ids [S'] and the tokens [P'] of its paragraphs, none of them empty.

    ``ids`` [S] and ``offsets`` [M + 1] are the dataset's. The best paragraphs come first, so the last ones are lost.
    """
    full = np.diff(offsets[: source.max_paragraphs + 1])
    lengths = np.minimum(full, source.paragraph_tokens)
    if source.max_tokens is not None:
        lengths = np.clip(source.max_tokens - (np.cumsum(lengths) - lengths), 0, lengths)
    position = np.arange(int(full.sum())) - np.repeat(np.cumsum(full) - full, full)
    return ids[: len(position)][position < np.repeat(lengths, full)], lengths[lengths > 0]


def cut_target(ids: np.ndarray, tokens: int) -> np.ndarray:
    """At most ``tokens`` of BOS ... EOS; a target that was cut still ends with its EOS."""
    return ids if len(ids) <= tokens else np.append(ids[: tokens - 1], ids[-1])


def move(batch: Any, device: "torch.device") -> Any:
    """A dataclass of tensors, or of such dataclasses, on ``device``; to CUDA through pinned memory, without waiting."""
    if is_dataclass(batch) and not isinstance(batch, type):
        return replace(batch, **{field.name: move(getattr(batch, field.name), device) for field in fields(batch)})
    if batch is None or device.type == "cpu":
        return batch
    return batch.pin_memory().to(device, non_blocking=True)


def digest(arrays: Arrays) -> int:
    """A number that tells whether two micro-batches hold the same data (CRC-32 of all arrays)."""
    value = 0
    for array in arrays.values():
        value = zlib.crc32(np.ascontiguousarray(array).data, value)
    return value


def _flat(parts: list[np.ndarray], dtype: type) -> np.ndarray:
    return np.concatenate(parts).astype(dtype, copy=False)


def _pad(values: np.ndarray, lengths: np.ndarray, fill: int) -> np.ndarray:
    """Flat ``values`` [sum of lengths, ...] -> [B, longest, ...], ``fill`` where there is none."""
    padded = np.full((len(lengths), int(lengths.max()), *values.shape[1:]), fill, values.dtype)
    padded[np.arange(padded.shape[1]) < lengths[:, None]] = values
    return padded


def _long(array: np.ndarray) -> "Tensor":
    import torch

    return torch.from_numpy(array.astype(np.int64))
