"""What decoder layers keep of a source, and their attention to its words.

B examples, H heads, Q queries, M paragraphs, N tokens of a paragraph, T = M * N. Attention over all tokens at once has
one paragraph here.
"""

from dataclasses import dataclass, field, fields, replace
from typing import TypeVar

import torch
from torch import Tensor

from raysum.models.batch import AttentionRequest
from raysum.models.kernels.attention import masked_softmax

Keys = TypeVar("Keys", bound="SourceKeys")


@dataclass(frozen=True)
class SourceKeys:
    """Keys, values and masks of a decoder layer. The first axis of each tensor is the example."""

    counts: tuple[int, ...]  # paragraphs of each example

    def keep(self: Keys, index: Tensor) -> Keys:
        """Return the keys of the examples ``index`` [B']."""
        tensors = {
            field.name: value.index_select(0, index)
            for field in fields(self)
            if isinstance(value := getattr(self, field.name), Tensor)
        }
        return replace(self, counts=tuple(self.counts[example] for example in index.tolist()), **tensors)


@dataclass(frozen=True)
class WordKeys(SourceKeys):
    """Keys and values of words."""

    key: Tensor  # [B, H, T, dh]; subclasses may have other axes
    value: Tensor
    mask: Tensor  # [B, M, N]
    ids: Tensor  # [B, T]
    text: Tensor | None = field(kw_only=True)  # [B, M, N] true for words that count in reports, false for marks

    @property
    def by_head(self) -> Tensor:
        """[B, H, T, dh]: the keys."""
        return self.key

    def arranged(self, weights: Tensor, example: int, by_token: bool) -> Tensor:
        """Return the ``weights`` [Q, M, N] of an example's words, or their sums by paragraph [Q, M]."""
        return weights if by_token else weights.sum(-1)


@dataclass(frozen=True)
class WordAttention:
    """The attention of a layer, not yet computed: a softmax inside paragraphs times the paragraph's weight."""

    query: Tensor  # [B, H, Q, dh]
    share: Tensor | None  # [B, H or 1, Q, M] the paragraphs' weights; None = 1, all tokens are one paragraph
    keys: WordKeys

    def report(self, request: AttentionRequest) -> Tensor | None:
        """Return what is requested, by paragraph or token, before dropout and the mean over heads, in float32.

        Marks have no weight. It processes one example at a time to bound memory.
        """
        keys, by_token = self.keys, request == "tokens"
        if not request:
            return None
        if self.share is not None and keys.text is None and not by_token:
            return self.share.mean(1)
        reports = []
        for example, (query, key, mask) in enumerate(zip(self.query, keys.by_head, keys.mask, strict=True)):
            scores = (query @ key.transpose(-1, -2) * query.shape[-1] ** -0.5).unflatten(-1, mask.shape)
            weights = masked_softmax(scores, mask)
            weights = weights if self.share is None else weights * self.share[example, ..., None]
            weights = weights.mean(0)  # [Q, M, N]
            weights = weights if keys.text is None else weights * keys.text[example]
            reports.append(keys.arranged(weights, example, by_token))
        return torch.stack(reports)
