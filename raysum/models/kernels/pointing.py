"""Attention weights of source words by id, which a copy gate mixes into the vocabulary distribution.

B examples, H heads, Q queries, M paragraphs, N tokens of a paragraph, T = M * N.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from raysum.models.kernels.attention import masked_softmax
from raysum.models.kernels.chunks import chunks, recompute

_LEAST = 1e-20  # weight of all words, a divisor: the quotient and its gradient must be finite


@dataclass(frozen=True)
class Pointer:
    """A layer's attention to source words, not yet computed: a softmax inside paragraphs times the paragraph's weight.

    Attention over all tokens at once has one paragraph here. If ``text`` is given, weights are those of words, divided
    by their sum.
    """

    query: Tensor  # [B, H, Q, dh]
    key: Tensor  # [B, H, T, dh]
    share: Tensor  # [B, H or 1, Q, M]
    mask: Tensor  # [B, M, N]
    ids: Tensor  # [B, T] ids of the words
    text: Tensor | None = None  # [B, T] true = a word, false = a mark
    tokens: Tensor | None = None  # [B, Q] ids generated last
    onward: Tensor | None = None  # [B, H, Q] added to the scores of words that follow these tokens

    def of_heads(self, tokens: Tensor, onward: Tensor) -> "Pointer":
        """Return the pointer of the first h heads; ``onward`` [B, Q, h] is added to the scores of words that follow
        ``tokens``."""
        onward = onward.transpose(1, 2)
        query, key = self.query[:, : onward.shape[1]], self.key[:, : onward.shape[1]]
        share = self.share[:, : onward.shape[1]]
        return replace(self, query=query, key=key, share=share, tokens=tokens, onward=onward)

    def weights(self) -> Tensor:
        """Return [B, Q, T], before dropout, mean over heads."""
        return self._by_chunks(_weights)

    def weight_of(self, ids: Tensor) -> Tensor:
        """Return [B, Q]: the sum of :meth:`weights` over the words with ``ids`` [B, Q]. No [B, H, Q, T] is kept."""
        return self._by_chunks(_weight_of, ids)

    def _by_chunks(self, function: Callable[..., Tensor], *more: Tensor) -> Tensor:
        arrays: list[Any] = [self.query, self.key, self.share, self.mask, self.ids, self.tokens, self.onward, self.text]
        elements = self.query.shape[1] * self.query.shape[2] * self.mask.shape[2]
        parts = chunks([self.mask.shape[1]] * len(self.query), elements, self.query.device)
        inputs = [[None if array is None else array[rows] for array in (*arrays, *more)] for rows, _ in parts]
        return torch.cat([recompute(function, *chunk, random=False) for chunk in inputs])


def _weights(
    query: Tensor,
    key: Tensor,
    share: Tensor,
    mask: Tensor,
    ids: Tensor,
    tokens: Tensor,
    onward: Tensor,
    text: Tensor | None,
) -> Tensor:
    before = F.pad(ids.view_as(mask)[..., :-1], (1, 0), value=-1)  # the id before each word in its paragraph
    follows = (tokens[:, None, :, None, None] == before[:, None, None]).to(onward.dtype)
    scores = (query @ key.transpose(-1, -2) * query.shape[-1] ** -0.5).unflatten(-1, mask.shape[1:])
    scores = scores + onward[..., None, None] * follows
    weights = (masked_softmax(scores, mask[:, None, None]) * share[..., None]).mean(1).flatten(2)
    if text is None:
        return weights
    weights = weights * text[:, None]
    return weights / weights.sum(-1, keepdim=True).clamp_min(_LEAST)


def _weight_of(*inputs: Tensor) -> Tensor:
    *pointer, targets = inputs
    return (_weights(*pointer) * (pointer[4][:, None] == targets[..., None])).sum(-1)
