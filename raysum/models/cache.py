"""What incremental decoding remembers: source keys of each layer, and the target's own keys and values."""

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from raysum.models.memory import SourceKeys

_CHUNK = 64  # tokens by which the cache grows


class Cache:
    """Keys and values of the tokens so far, of all layers in one array [layers, 2, B * R, H, capacity, dh]."""

    def __init__(self, layers: int):
        self.layers = layers
        self.length = 0
        self.store: Tensor | None = None

    def append(self, layer: int, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
        """Add this step's key and value [B * R, H, 1, dh]; returns all so far, [B * R, H, length + 1, dh]."""
        store = self._with_room(key)
        store[layer, 0, :, :, self.length] = key[:, :, 0]
        store[layer, 1, :, :, self.length] = value[:, :, 0]
        filled = store[layer, :, :, :, : self.length + 1]
        return filled[0], filled[1]

    def select(self, index: Tensor) -> None:
        """Keep the rows ``index`` of the B * R axis, in that order."""
        if self.store is not None:
            self.store = self.store.index_select(2, index)

    def _with_room(self, key: Tensor) -> Tensor:
        if self.store is None or self.length == self.store.shape[4]:
            rows, heads, _, size = key.shape
            more = key.new_empty(self.layers, 2, rows, heads, _CHUNK, size)
            self.store = more if self.store is None else torch.cat([self.store, more], 4)
        return self.store


@dataclass
class State:
    """A batch in decoding: B examples with R beams each; row b * R + r is beam r of example b."""

    keys: Sequence[SourceKeys]  # one a layer
    beams: int
    cache: Cache = field(repr=False)

    def reorder(self, index: Tensor) -> None:
        """Beams continue from rows ``index`` [B * R] of the flat axis; source keys are shared, so they stay."""
        self.cache.select(index)

    def keep(self, examples: Tensor) -> None:
        """Only the examples ``examples`` [B'] go on."""
        self.keys = [keys.keep(examples) for keys in self.keys]
        beams = torch.arange(self.beams, device=examples.device)
        self.cache.select((examples[:, None] * self.beams + beams).flatten())
