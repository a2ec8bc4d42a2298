"""Rows of the attention predictor: the paragraph embeddings of a trained model, and its attention to each."""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from raysum.config.decoding import SourceConfig
from raysum.stream.collators.base import Arrays, Kind, padded, room

if TYPE_CHECKING:
    from raysum.models.systems.paragraph_scorers import AlignmentBatch


@dataclass(frozen=True)
class Alignment(Kind):
    """The dataset kind of the attention predictor. Cost and weight: number of paragraphs."""

    dataset_kinds = ("alignment",)
    columns = ("embeddings", "label")

    def costs(self, lengths: np.ndarray, source: SourceConfig) -> tuple[np.ndarray, np.ndarray]:
        paragraphs = lengths[:, 1].astype(np.int64)
        return paragraphs, paragraphs

    def pack(self, rows: list[Any], source: SourceConfig) -> Arrays:
        """Return ``embeddings`` [P * D] fp16, ``counts`` [B] paragraphs of each example, and ``label`` [P]."""
        return {
            "embeddings": np.concatenate([row["embeddings"] for row in rows], dtype=np.float16),
            "counts": np.array([len(row["label"]) for row in rows], np.int32),
            "label": np.concatenate([row["label"] for row in rows], dtype=np.float32),
        }

    def tokens(self, arrays: Arrays) -> tuple[int, int]:
        return 0, len(arrays["label"])

    def padding(self, arrays: Arrays) -> int:
        return room(arrays["counts"])

    def collate(self, arrays: Arrays) -> "AlignmentBatch":
        import torch

        from raysum.models.systems.paragraph_scorers import AlignmentBatch

        counts = arrays["counts"]
        embeddings = arrays["embeddings"].reshape(int(counts.sum()), -1).astype(np.float32)
        return AlignmentBatch(
            embeddings=torch.from_numpy(padded(embeddings, counts, 0)),
            mask=torch.from_numpy(np.arange(counts.max()) < counts[:, None]),
            label=torch.from_numpy(padded(arrays["label"], counts, 0)),
        )
