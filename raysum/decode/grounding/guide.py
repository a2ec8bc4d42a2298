"""The automata of a batch of clusters, as tensors: what each hypothesis may go on with, and where that leads.

B examples, R beams, V pieces, C contexts and S states of all clusters together, E edges.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache

import numpy as np
import torch
from torch import Tensor

from raysum.data.clean import Normalization, normalize
from raysum.data.rows import Row
from raysum.data.vocabulary import Vocabulary
from raysum.decode.grounding.cluster import Cluster
from raysum.decode.grounding.contexts import BEGIN, CONTEXTS, INSIDE
from raysum.decode.grounding.pieces import Pieces
from raysum.models.special_ids import EOS


@dataclass(frozen=True)
class Guide:
    """The automata of the examples of a batch: states count on from one to the next."""

    bias: Tensor  # [C, V] 0 where a piece may follow whatever the sources say, else -inf
    follow: Tensor  # [C, V] the context behind it
    first: Tensor  # [B] the first state of each example
    context: Tensor  # [S]
    start: Tensor  # [S] where its edges start, and how many there are
    count: Tensor
    keys: Tensor  # [E] state * V + piece, rising
    piece: Tensor  # [E + padding]
    target: Tensor  # [E]
    most: tuple[int, int]  # edges of a context, and of a state with nodes

    @classmethod
    def of(cls, clusters: Sequence[Cluster], pieces: Pieces, device: torch.device) -> "Guide":
        sizes = np.array([len(cluster.context) for cluster in clusters])
        first = np.cumsum(sizes) - sizes
        edges = np.concatenate([cluster.edges + [[at, 0, at]] for cluster, at in zip(clusters, first, strict=True)])
        count = np.bincount(edges[:, 0], minlength=sizes.sum())
        plain = np.concatenate([np.arange(size) < CONTEXTS for size in sizes])
        most = int(count[plain].max()), int(count[~plain].max(initial=0))
        bias, follow = _tables(pieces, device)
        arrays = {
            "first": first,
            "context": np.concatenate([cluster.context for cluster in clusters]),
            "start": np.cumsum(count) - count,
            "count": count,
            "keys": edges[:, 0] * pieces.size + edges[:, 1],
            "piece": np.concatenate((edges[:, 1], np.full(max(most), EOS))),
            "target": edges[:, 2],
        }
        tensors = {name: torch.from_numpy(array).to(device) for name, array in arrays.items()}
        return cls(bias, follow, most=most, **tensors)

    def repeat(self, number: int) -> "Guide":
        """For ``number`` searches of each example, one after the other."""
        return replace(self, first=self.first.repeat_interleave(number))

    def edges(self, state: Tensor, most: int) -> Tensor:
        """The pieces on the edges of ``state`` [B, R], padded with EOS; [B, R, most]."""
        places = torch.arange(most, device=state.device)
        there = places < self.count[state][..., None]
        return torch.where(there, self.piece[self.start[state][..., None] + places], EOS)

    def next(self, first: Tensor, state: Tensor, piece: Tensor) -> Tensor:
        """Where ``piece`` [B, R] leads from ``state`` [B, R]: by its edges, those of its context, or the context."""
        context, size = self.context[state], self.follow.shape[1]
        following = first + self.follow[context, piece]
        for source in (first + context, state):
            key = source * size + piece
            place = torch.searchsorted(self.keys, key).clamp_max(len(self.keys) - 1)
            following = torch.where(self.keys[place] == key, self.target[place], following)
        return following


class Guided:
    """The live hypotheses of a search: their states [B, R], and how many of their tokens a whole word ends with."""

    def __init__(self, guide: Guide, beams: int):
        self._guide, self._first = guide, guide.first[:, None]
        self._state = (self._first + BEGIN).expand(-1, beams)
        self._length, self.complete = 1, torch.ones_like(self._state)

    @property
    def whole(self) -> Tensor:
        """[B, R] whether the hypotheses end with a whole word."""
        return self._guide.context[self._state] != INSIDE

    def mask(self, scores: Tensor) -> tuple[Tensor, Tensor]:
        """Write -inf over every piece that says what the sources do not; ``scores`` [B, R, V], of EOS already -inf.

        Returns the pieces that go on with a name, [B, R, most], and their scores.
        """
        guide, context = self._guide, self._guide.context[self._state]
        begins = guide.edges(self._first + context, guide.most[0])
        names = guide.edges(self._state, guide.most[1])
        pieces = torch.cat((begins, names), -1)
        values = scores.gather(-1, pieces)
        scores += guide.bias[context]
        scores.scatter_(-1, pieces, values)
        return names, values[..., guide.most[0] :]

    def advance(self, parent: Tensor, piece: Tensor) -> None:
        """Beams ``parent`` [B, R] of each example go on with ``piece`` [B, R]."""
        self._state = self._guide.next(self._first, self._state.gather(1, parent), piece)
        self._length += 1
        self.complete = torch.where(self.whole, self._length, self.complete.gather(1, parent))

    def keep(self, index: Tensor) -> None:
        """Only the examples at ``index`` [B'] go on."""
        self._first, self._state, self.complete = self._first[index], self._state[index], self.complete[index]


@lru_cache(maxsize=4)
def _tables(pieces: Pieces, device: torch.device) -> tuple[Tensor, Tensor]:
    bias = torch.zeros(pieces.allowed.shape).masked_fill(torch.from_numpy(~pieces.allowed), -torch.inf)
    return bias.to(device), torch.from_numpy(pieces.follow).to(device)


class Grounding:
    """Makes the guides of rows, for one vocabulary and what is done to text before it."""

    def __init__(self, vocabulary: Vocabulary, how: Normalization):
        self._vocabulary, self._how = vocabulary, how
        self._bases: dict[str, tuple[Pieces, Cluster]] = {}

    def guide(self, rows: Sequence[Row], mode: str, device: torch.device) -> Guide:
        """What summaries of ``rows`` may say by ``mode`` (``numbers``, ``names`` or ``all``)."""
        if mode not in self._bases:
            pieces = Pieces(self._vocabulary, mode)
            self._bases[mode] = pieces, Cluster([], pieces)
        pieces, base = self._bases[mode]
        clusters = [Cluster(self.texts(row), pieces, base) for row in rows]
        return Guide.of(clusters, pieces, device)

    def texts(self, row: Row) -> list[str]:
        """The title and the texts of a row, as the vocabulary spells them."""
        return [self._vocabulary.normalized(normalize(text, self._how)) for text in (row["title"], *row["text"])]
