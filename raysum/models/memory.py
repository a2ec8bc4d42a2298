"""An encoded source, and what decoder layers keep of it."""

from dataclasses import dataclass, fields, replace
from typing import TypeVar

from torch import Tensor

from raysum.errors import UserError
from raysum.models.batch import Source

Keys = TypeVar("Keys", bound="SourceKeys")


@dataclass(frozen=True)
class Memory:
    """``tokens`` [S, D] are the encoder's output, ``phi`` [B, M, D] there where the decoder has P layers."""

    source: Source
    tokens: Tensor
    phi: Tensor | None

    @property
    def paragraph_mask(self) -> Tensor:
        """[B, M], true = a real paragraph."""
        return self.source.layout.paragraph_mask

    def paragraphs(self) -> Tensor:
        """Paragraph embeddings with rank code, Phi of PHT eq. 6, [B, M, D].

        Raises UserError for a model that has none.
        """
        if self.phi is None:
            raise UserError("this model has no paragraph embeddings: its decoder has no P layer")
        return self.phi


@dataclass(frozen=True)
class SourceKeys:
    """Keys, values and masks of a decoder layer: tensors whose first axis is the example."""

    counts: tuple[int, ...]  # paragraphs of each example

    def keep(self: Keys, index: Tensor) -> Keys:
        """Those of the examples ``index`` [B'] only."""
        kept = {
            field.name: value.index_select(0, index)
            for field in fields(self)
            if isinstance(value := getattr(self, field.name), Tensor)
        }
        return replace(self, counts=tuple(self.counts[example] for example in index.tolist()), **kept)
