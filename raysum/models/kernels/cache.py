"""What incremental decoding remembers of the target: keys and values of all tokens that the beams wrote."""

from dataclasses import dataclass

import torch
from torch import Tensor

_ROOM = 32  # positions that are written before tokens without use are dropped


class Cache:
    """Keys and values of the tokens so far, of all layers in one array [layers, 2, B, H, capacity, dh].

    They stay where they were written. When beams change, only ``lineage`` [B, R, T] follows: which of the T tokens
    that the beams of an example wrote lie in the past of a beam; it attends to all of them under this mask. What lies
    in no beam's past is dropped now and then: as beams come from few ancestors, little more than one past remains.
    Even with random weights, whose beams stay apart for long, half of 16 x 5 x 200 tokens go (PHT on a CPU, the steps
    alone: 221 tokens/s against 203).

    ``place`` [B, T] are the tokens' positions in their hypotheses, ``newest`` [B, R, ...] what a layer, by its number,
    keeps beside of each beam's last tokens.
    """

    def __init__(self, layers: int, paragraph_mask: Tensor, beams: int):
        """For ``beams`` hypotheses of each example of ``paragraph_mask`` [B, M], on its device."""
        self.layers = layers
        self.length = 0
        self.lineage = paragraph_mask.new_zeros(len(paragraph_mask), beams, 0)
        self.place = self.lineage.new_zeros(len(paragraph_mask), 0, dtype=torch.long)
        self.store: Tensor | None = None
        self.newest: dict[int, Tensor] = {}

    def advance(self) -> None:
        """Open the position of a new token of every beam."""
        examples, beams, tokens = self.lineage.shape
        if self.store is not None and tokens + beams > self.store.shape[4]:
            self.store = self._used(self.store)
        own = torch.eye(beams, dtype=torch.bool, device=self.lineage.device).expand(examples, -1, -1)
        self.lineage = torch.cat([self.lineage, own], 2)
        self.place = torch.cat([self.place, self.place.new_full((examples, beams), self.length)], 1)
        self.length += 1

    def append(self, layer: int, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Write this position's key and value, [B, H, R, dh] each.

        Returns all that are kept, [B, H, T, dh] each, and who attends to whom, [B, 1, R, T].
        """
        examples, heads, beams, size = key.shape
        if self.store is None:
            self.store = key.new_empty(self.layers, 2, examples, heads, _ROOM * beams, size)
        end = self.lineage.shape[2]
        self.store[layer, 0, :, :, end - beams : end] = key
        self.store[layer, 1, :, :, end - beams : end] = value
        kept = self.store[layer, :, :, :, :end]
        return kept[0], kept[1], self.lineage[:, None]

    def reorder(self, parent: Tensor) -> None:
        """Each beam of each example goes on from beam ``parent`` [B, R]."""
        rows = torch.arange(len(parent), device=parent.device)[:, None]
        self.lineage = self.lineage[rows, parent]
        self.newest = {layer: kept[rows, parent] for layer, kept in self.newest.items()}

    def keep(self, examples: Tensor) -> None:
        """Only the examples ``examples`` [B'] go on."""
        self.lineage, self.place = self.lineage[examples], self.place[examples]
        if self.store is not None:
            self.store = self.store.index_select(2, examples)
        self.newest = {layer: kept[examples] for layer, kept in self.newest.items()}

    def _used(self, store: Tensor) -> Tensor:
        """Only tokens in some beam's past, as many in every example, and room for more."""
        used = self.lineage.any(1)
        kept, beams = int(used.sum(1).max()), self.lineage.shape[1]
        order = used.byte().argsort(dim=1, descending=True, stable=True)[:, :kept]
        self.lineage = self.lineage.gather(2, order[:, None].expand(-1, beams, -1))
        self.place = self.place.gather(1, order)
        smaller = store.new_empty(*store.shape[:4], kept + _ROOM * beams, store.shape[5])
        for example, tokens in enumerate(order):
            smaller[:, :, example, :, :kept] = store[:, :, example].index_select(3, tokens)
        return smaller


@dataclass(frozen=True)
class StepContext:
    """A layer's part in reading target positions: all at once, or with a ``cache`` the newest token of each beam."""

    layer: int = 0
    cache: Cache | None = None
    bias: Tensor | None = None  # of the scores of its self-attention, [..., H, Q, T]
