"""What incremental decoding remembers: source keys of each layer, and the target's own keys and values."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from raysum.models.memory import SourceKeys

_CHUNK = 64  # positions by which the cache grows


class Cache:
    """Keys and values of the tokens so far, of all layers in one array [layers, 2, B, H, capacity, R, dh].

    They stay where they were written. When beams change, only ``lineage`` [B, R, T, R] follows: which of the R tokens
    written at a position lies in the past of a beam. A beam attends to the tokens of all beams under this mask.
    Against a copy of each beam's past at every step this is 4 times as fast (80 hypotheses of 200 tokens, width 256,
    on a CPU: 4 ms a layer and step, where attention alone took 1.5 ms and the copy 14 ms).
    """

    def __init__(self, layers: int):
        self.layers = layers
        self.length = 0
        self.store: Tensor | None = None
        self.lineage: Tensor | None = None

    def advance(self, examples: int, beams: int, device: torch.device) -> None:
        """Open the position of a new token of every beam."""
        own = torch.eye(beams, dtype=torch.bool, device=device)[:, None].expand(examples, -1, -1, -1)
        self.lineage = own if self.lineage is None else torch.cat([self.lineage, own], 2)
        self.length += 1

    def append(self, layer: int, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Write this position's key and value, [B, H, R, dh] each.

        Returns all so far, [B, H, T * R, dh] each, and who attends to whom, [B, 1, R, T * R].
        """
        assert self.lineage is not None, "advance() comes first"
        store = self._with_room(key)
        store[layer, 0, :, :, self.length - 1] = key
        store[layer, 1, :, :, self.length - 1] = value
        filled = store[layer, :, :, :, : self.length].flatten(3, 4)
        return filled[0], filled[1], self.lineage.flatten(2)[:, None]

    def reorder(self, parent: Tensor) -> None:
        """Each beam of each example goes on from beam ``parent`` [B, R]."""
        if self.lineage is not None:
            self.lineage = self.lineage.gather(1, parent[..., None, None].expand_as(self.lineage))

    def keep(self, examples: Tensor) -> None:
        """Only the examples ``examples`` [B'] go on."""
        if self.store is not None and self.lineage is not None:
            self.store, self.lineage = self.store.index_select(2, examples), self.lineage[examples]

    def _with_room(self, key: Tensor) -> Tensor:
        if self.store is None or self.length > self.store.shape[4]:
            examples, heads, beams, size = key.shape
            more = key.new_empty(self.layers, 2, examples, heads, _CHUNK, beams, size)
            self.store = more if self.store is None else torch.cat([self.store, more], 4)
        return self.store


@dataclass
class State:
    """A batch in decoding: B examples with R beams each; row b * R + r is beam r of example b."""

    keys: Sequence[SourceKeys]  # one a layer
    beams: int
    cache: Cache = field(repr=False)
    logits: Callable[[Tensor], Tensor] = field(repr=False)  # [..., D] -> [..., V]

    def reorder(self, parent: Tensor) -> None:
        """Beams go on from beams ``parent`` [B, R] of their example; source keys are shared, so they stay."""
        self.cache.reorder(parent)

    def keep(self, examples: Tensor) -> None:
        """Only the examples ``examples`` [B'] go on."""
        self.keys = [keys.keep(examples) for keys in self.keys]
        self.cache.keep(examples)
