"""What decoding keeps of a source and of the target so far, and the attention to the words of the source.

B examples, H heads, Q queries, R beams, M paragraphs, N tokens of a paragraph, T = M * N. Attention over all tokens at
once has one paragraph here.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field, fields, replace
from typing import TypeVar

import torch
from torch import Tensor

from raysum.models.batch import AttentionRequest
from raysum.models.kernels.attention import masked_softmax

_ROOM = 32  # positions between two removals of unused tokens

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


class Cache:
    """``keys`` of the source, one a layer, and keys and values of the tokens of B examples with R beams each.

    All layers share one array [layers, 2, B, H, capacity, dh].

    Entries never move when beams change; only ``lineage`` [B, R, T] changes. It marks which of the T tokens, generated
    by the beams of an example, are in the past of a beam, and is the beam's attention mask. Tokens in no beam's past
    are dropped every ``_ROOM`` positions. Beams have few common ancestors, so little more than one past remains. Even
    with random weights, which keep beams apart for long, half of 16 x 5 x 200 tokens go (PHT on a CPU, steps only: 221
    tokens/s instead of 203).

    ``positions`` [B, T] are the positions of the tokens in their hypotheses. ``recent`` [B, R, ...] is what a layer, by
    its number, also keeps of each beam's last tokens.
    """

    def __init__(self, keys: Sequence[SourceKeys], paragraph_mask: Tensor, beams: int):
        """Start empty with ``beams`` hypotheses of each example of ``paragraph_mask`` [B, M], on its device."""
        self.keys = keys
        self.length = 0
        self.lineage = paragraph_mask.new_zeros(len(paragraph_mask), beams, 0)
        self.positions = self.lineage.new_zeros(len(paragraph_mask), 0, dtype=torch.long)
        self.store: Tensor | None = None
        self.recent: dict[int, Tensor] = {}

    def advance(self) -> None:
        """Open the position of a new token of every beam."""
        examples, beams, tokens = self.lineage.shape
        if self.store is not None and tokens + beams > self.store.shape[4]:
            self.store = self._compact(self.store)
        own = torch.eye(beams, dtype=torch.bool, device=self.lineage.device).expand(examples, -1, -1)
        self.lineage = torch.cat([self.lineage, own], 2)
        self.positions = torch.cat([self.positions, self.positions.new_full((examples, beams), self.length)], 1)
        self.length += 1

    def append(self, layer: int, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Write this position's key and value, [B, H, R, dh] each.

        Returns all keys and values, [B, H, T, dh] each, and the attention mask [B, 1, R, T].
        """
        examples, heads, beams, size = key.shape
        if self.store is None:
            self.store = key.new_empty(len(self.keys), 2, examples, heads, _ROOM * beams, size)
        end = self.lineage.shape[2]
        self.store[layer, 0, :, :, end - beams : end] = key
        self.store[layer, 1, :, :, end - beams : end] = value
        past = self.store[layer, :, :, :, :end]
        return past[0], past[1], self.lineage[:, None]

    def reorder(self, parent: Tensor) -> None:
        """Let each beam continue beam ``parent`` [B, R] of its example; keys of the source do not change."""
        rows = torch.arange(len(parent), device=parent.device)[:, None]
        self.lineage = self.lineage[rows, parent]
        self.recent = {layer: recent[rows, parent] for layer, recent in self.recent.items()}

    def keep(self, examples: Tensor) -> None:
        """Drop all but the examples ``examples`` [B']."""
        self.keys = [keys.keep(examples) for keys in self.keys]
        self.lineage, self.positions = self.lineage[examples], self.positions[examples]
        if self.store is not None:
            self.store = self.store.index_select(2, examples)
        self.recent = {layer: recent[examples] for layer, recent in self.recent.items()}

    def _compact(self, store: Tensor) -> Tensor:
        """Return a store with only tokens in some beam's past, padded to one number for all examples, and capacity."""
        is_used = self.lineage.any(1)
        most, beams = int(is_used.sum(1).max()), self.lineage.shape[1]
        order = is_used.byte().argsort(dim=1, descending=True, stable=True)[:, :most]
        self.lineage = self.lineage.gather(2, order[:, None].expand(-1, beams, -1))
        self.positions = self.positions.gather(1, order)
        smaller = store.new_empty(*store.shape[:4], most + _ROOM * beams, store.shape[5])
        for example, tokens in enumerate(order):
            smaller[:, :, example, :, :most] = store[:, :, example].index_select(3, tokens)
        return smaller


@dataclass(frozen=True)
class StepContext:
    """How a layer processes target positions: all at once, or with a ``cache`` only the newest token of each beam."""

    layer: int = 0
    cache: Cache | None = None
    bias: Tensor | None = None  # added to the scores of its self-attention, [..., H, Q, T]
