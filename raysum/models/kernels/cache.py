"""The state of incremental decoding: keys of the source, and keys and values of all tokens that the beams generated."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from raysum.models.source_attention import SourceKeys

_ROOM = 32  # positions between two removals of unused tokens


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
        """Return a store with only the tokens in some beam's past, padded to one number for all examples, and free
        capacity."""
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
