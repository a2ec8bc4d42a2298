"""An encoded source, and what decoder layers keep of it."""

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from typing import Literal, TypeVar

import torch
from torch import Tensor
from torch.nn.functional import pad

from raysum.models.batch import Source, scatter_padded
from raysum.models.layers import sinusoids

Keys = TypeVar("Keys", bound="SourceKeys")
AnyMemory = TypeVar("AnyMemory", bound="Memory")

# Which attention to the source is wanted beside the result: none, by paragraph [..., M] (true), by token [..., M, N].
Watch = bool | Literal["tokens"]


@dataclass(frozen=True)
class Memory:
    """``tokens`` [S, D] are the encoder's output, ``phi`` [B, M, D] there where the model pools paragraphs itself."""

    source: Source
    tokens: Tensor
    phi: Tensor | None

    @classmethod
    def joined(cls, source: Source, parts: Sequence["Memory"]) -> "Memory":
        """That of ``source``, encoded in parts."""
        widest = source.layout.paragraph_mask.shape[1]
        phi = [pad(part.phi, (0, 0, 0, widest - part.phi.shape[1])) for part in parts if part.phi is not None]
        return cls(source, torch.cat([part.tokens for part in parts]), torch.cat(phi) if phi else None)

    @property
    def paragraph_mask(self) -> Tensor:
        """[B, M], true = a real paragraph."""
        return self.source.layout.paragraph_mask

    @property
    def token_mask(self) -> Tensor:
        """[B, M, N], true = a real token."""
        return self.source.layout.grid_mask

    def select(self: "AnyMemory", examples: Sequence[int]) -> "AnyMemory":
        """That of ``examples`` only, ascending."""
        source = self.source.select(examples)
        chosen = torch.tensor(examples, device=self.tokens.device)
        tokens = self.tokens[torch.isin(self.source.layout.token_example, chosen)]
        phi = None if self.phi is None else self.phi[chosen, : int(source.counts.max())]
        return replace(self, source=source, tokens=tokens, phi=phi)

    def paragraphs(self) -> Tensor:
        """Paragraph embeddings [B, M, D]: Phi with its rank code (PHT eq. 6), which decoders with P layers have.

        Of other models the mean of each paragraph's tokens with such a code: nothing has to be trained for it, and the
        layers of an attention predictor follow it.
        """
        if self.phi is not None:
            return self.phi
        layout = self.source.layout
        sums = self.tokens.new_zeros(len(self.source.lengths), self.tokens.shape[1])
        means = sums.index_add(0, layout.token_paragraph, self.tokens) / self.source.lengths[:, None]
        padded = scatter_padded(means.to(sums.dtype), layout.in_examples, *layout.paragraph_mask.shape)
        ranks = torch.arange(padded.shape[1], device=padded.device)
        return padded + sinusoids(ranks, padded.shape[2], "interleaved").to(padded.dtype)


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
