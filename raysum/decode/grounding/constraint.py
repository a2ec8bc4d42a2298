"""The automata of a batch of clusters: the pieces that may extend each hypothesis, and the next states.

B examples, R beams, V pieces, C contexts. Of an automaton only the states are worked out that hypotheses reach: some
20 of 900 for a cluster of the quickstart.
"""

from collections.abc import Sequence
from copy import copy

import numpy as np
import torch
from torch import Tensor

from raysum.data.rows import Row
from raysum.decode.grounding.cluster import Cluster, State
from raysum.decode.grounding.contexts import BEGIN, CONTEXTS, INSIDE
from raysum.decode.grounding.pieces import Pieces
from raysum.text.cleaning import Normalization, normalize
from raysum.tokenizers.tokenizer import Tokenizer


class Constraint:
    """The automata of the examples of a batch; states have numbers, in the order in which they are reached."""

    def __init__(self, clusters: Sequence[Cluster], pieces: Pieces, device: torch.device):
        self._clusters = clusters
        self._states: list[tuple[int, State]] = []  # of which example
        self._numbers: dict[tuple[int, State], int] = {}
        self._next: dict[tuple[int, int], int] = {}  # by state and piece
        self.bias = torch.from_numpy(pieces.bias).to(device).repeat(len(clusters), 1)  # [B * C, V] 0 or -inf
        self.row: list[int] = []  # of a state in ``bias``
        self.names: list[np.ndarray] = []  # pieces that may follow a state by its nodes
        self.first = [self._number(example, (BEGIN, ())) for example in range(len(clusters))]

    def repeat(self, number: int) -> "Constraint":
        """For ``number`` searches of each example, one after the other."""
        repeated = copy(self)
        repeated.first = [state for state in self.first for _ in range(number)]
        return repeated

    def next(self, state: int, piece: int) -> int:
        """Where ``piece`` leads from ``state``."""
        following = self._next.get((state, piece))
        if following is None:
            example, before = self._states[state]
            following = self._next[state, piece] = self._number(example, self._clusters[example].next(before, piece))
        return following

    def _number(self, example: int, state: State) -> int:
        number = self._numbers.get((example, state))
        if number is None:
            cluster, (context, nodes) = self._clusters[example], state
            row = example * CONTEXTS + context
            if nodes:
                self._number(example, (context, ()))
            else:
                begun = np.fromiter(cluster.begun(context), np.int64)
                self.bias[row].index_fill_(0, torch.from_numpy(begun).to(self.bias.device), 0.0)
            number = self._numbers[example, state] = len(self._states)
            self._states.append((example, state))
            self.row.append(row)
            self.names.append(np.fromiter(cluster.names(state), np.int64))
        return number


class ConstraintState:
    """The live hypotheses of a search: their states [B, R], and how many of their tokens a whole word ends with.

    Their states are looked up one by one: a fifth of what it takes to look them up together in sorted tensors.
    """

    def __init__(self, guide: Constraint, beams: int):
        self._guide = guide
        self._states = [[state] * beams for state in guide.first]
        self._look()
        self._length, self.complete = 1, torch.ones_like(self._rows)

    def _look(self) -> None:
        rows = np.array([[self._guide.row[state] for state in beams] for beams in self._states])
        device = self._guide.bias.device
        self._rows = torch.from_numpy(rows).to(device)
        # [B, R] whether the hypotheses end with a whole word
        self.whole = torch.from_numpy(rows % CONTEXTS != INSIDE).to(device)

    def mask(self, scores: Tensor) -> tuple[Tensor, Tensor]:
        """Write -inf over every piece that says what the sources do not; ``scores`` [B, R, V], of EOS already -inf.

        Returns where in all of ``scores`` the pieces are that go on with a name, and their scores.
        """
        names = [self._guide.names[state] for beams in self._states for state in beams]
        starts = np.repeat(np.arange(len(names)) * scores.shape[-1], list(map(len, names)))
        places = torch.from_numpy(np.concatenate(names) + starts).to(scores.device)
        values = scores.take(places)
        scores += self._guide.bias.index_select(0, self._rows.flatten()).view_as(scores)  # masked_fill_ takes 10 times
        scores.view(-1).scatter_(0, places, values)
        return places, values

    def advance(self, parent: Tensor, piece: Tensor) -> None:
        """Extend the beams ``parent`` [B, R] of each example by ``piece`` [B, R]."""
        chosen = zip(self._states, parent.tolist(), piece.tolist(), strict=True)
        self._states = [list(map(self._guide.next, map(beams.__getitem__, some), ids)) for beams, some, ids in chosen]
        self._look()
        self._length += 1
        self.complete = torch.where(self.whole, self._length, self.complete.gather(1, parent))

    def keep(self, index: Tensor) -> None:
        """Keep only the examples at ``index`` [B']."""
        self._states = [self._states[example] for example in index.tolist()]
        self.complete = self.complete[index]
        self._look()


class Grounding:
    """Makes the guides of rows, for one vocabulary and what is done to text before it."""

    def __init__(self, vocabulary: Tokenizer, how: Normalization):
        self._vocabulary, self._how = vocabulary, how
        self._bases: dict[str, tuple[Pieces, Cluster]] = {}

    def guide(self, rows: Sequence[Row], mode: str, device: torch.device) -> Constraint:
        """What summaries of ``rows`` may say by ``mode`` (``numbers``, ``names`` or ``all``)."""
        if mode not in self._bases:
            pieces = Pieces(self._vocabulary, mode)
            self._bases[mode] = pieces, Cluster([], pieces)
        pieces, base = self._bases[mode]
        clusters = [Cluster(self.texts(row), pieces, base) for row in rows]
        return Constraint(clusters, pieces, device)

    def texts(self, row: Row) -> list[str]:
        """The title and the texts of a row, as the vocabulary spells them."""
        return [self._vocabulary.normalized(normalize(text, self._how)) for text in (row["title"], *row["text"])]
