"""The automata of a batch of clusters: the pieces that may extend each hypothesis, and the next states.

B examples, R beams, V pieces, C contexts. On the CPU, only states that hypotheses reach are computed: about 20 of 900
for a cluster of the quickstart. A GPU has all (`tables`).
"""

import threading
from collections.abc import Sequence
from copy import copy
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor

from raysum.data.rows import Row
from raysum.decode.grounding.cluster import SourceAutomaton, State
from raysum.decode.grounding.pieces import BEGIN, CONTEXTS, INSIDE, Pieces
from raysum.decode.grounding.tables import TableConstraint, TableStates
from raysum.text.cleaning import Normalization, normalize
from raysum.tokenizers.tokenizer import Tokenizer


@dataclass(frozen=True, eq=False)
class ReachedState:
    """A state of an example's automaton that a hypothesis has reached, and the known states after it, by piece."""

    example: int
    state: State
    row: int  # in ``HostConstraint.bias``
    names: np.ndarray  # the pieces that its nodes allow
    following: dict[int, "ReachedState"] = field(default_factory=dict)


class HostConstraint:
    """The names and numbers that hypotheses of a batch may contain: its automata, as Python objects."""

    def __init__(self, clusters: Sequence[SourceAutomaton], pieces: Pieces):
        self._clusters = clusters
        self._states: dict[tuple[int, State], ReachedState] = {}
        self.bias = torch.from_numpy(pieces.bias).repeat(len(clusters), 1)  # [B * C, V] 0 or -inf
        self.first = [self._reach(example, (BEGIN, ())) for example in range(len(clusters))]

    def repeat(self, number: int) -> "HostConstraint":
        """Return the constraint of ``number`` searches of each example, in consecutive rows."""
        repeated = copy(self)
        repeated.first = [state for state in self.first for _ in range(number)]
        return repeated

    def states(self, beams: int) -> "HostStates":
        """Return the states of empty hypotheses."""
        return HostStates(self, beams)

    def next(self, before: ReachedState, piece: int) -> ReachedState:
        """Return the state after ``piece``."""
        following = before.following.get(piece)
        if following is None:
            state = self._clusters[before.example].next(before.state, piece)
            following = before.following[piece] = self._reach(before.example, state)
        return following

    def _reach(self, example: int, state: State) -> ReachedState:
        if (example, state) not in self._states:
            cluster, (context, nodes) = self._clusters[example], state
            row = example * CONTEXTS + context
            if nodes:
                self._reach(example, (context, ()))
            else:
                begun = np.fromiter(cluster.begun(context), np.int64)
                self.bias[row].index_fill_(0, torch.from_numpy(begun), 0.0)
            names = np.fromiter(cluster.names(state), np.int64)
            self._states[example, state] = ReachedState(example, state, row, names)
        return self._states[example, state]


class HostStates:
    """The states [B, R] of the live hypotheses of a search.

    ``whole`` [B, R]: whether a hypothesis ends with a whole word; ``complete`` [B, R]: its tokens up to its last whole
    word. Python dictionaries find the next states in a fifth of the time of a search in sorted tensors.
    """

    def __init__(self, constraint: HostConstraint, beams: int):
        self._constraint = constraint
        self._states = [[state] * beams for state in constraint.first]
        self._look()
        self._length, self.complete = 1, torch.ones_like(self._rows)

    def _look(self) -> None:
        self._rows = torch.tensor([[state.row for state in beams] for beams in self._states])
        self.whole = self._rows % CONTEXTS != INSIDE

    def mask(self, scores: Tensor) -> tuple[Tensor, Tensor]:
        """Set every piece that the sources do not allow to -inf in ``scores`` [B, R, V], which is -inf for EOS already.

        Return the flat indices in ``scores`` of the pieces that continue a name, and their scores.
        """
        names = [state.names for beams in self._states for state in beams]
        starts = np.repeat(np.arange(len(names)) * scores.shape[-1], list(map(len, names)))
        index = torch.from_numpy(np.concatenate(names) + starts)
        values = scores.take(index)
        # masked_fill_ is 10 times slower
        scores += self._constraint.bias.index_select(0, self._rows.flatten()).view_as(scores)
        scores.view(-1).scatter_(0, index, values)
        return index, values

    def advance(self, parent: Tensor, piece: Tensor) -> None:
        """Extend the beams ``parent`` [B, R] of each example by ``piece`` [B, R]."""
        chosen = zip(self._states, parent.tolist(), piece.tolist(), strict=True)
        self._states = [
            list(map(self._constraint.next, map(beams.__getitem__, parents), ids)) for beams, parents, ids in chosen
        ]
        self._look()
        self._length += 1
        self.complete = torch.where(self.whole, self._length, self.complete.gather(1, parent))

    def keep(self, index: Tensor) -> None:
        """Keep only the examples at ``index`` [B']."""
        self._states = [self._states[example] for example in index.tolist()]
        self.complete = self.complete[index]
        self._look()


Constraint = HostConstraint | TableConstraint
States = HostStates | TableStates


class Grounding:
    """Makes the constraints of rows, for one vocabulary and normalization."""

    def __init__(self, vocabulary: Tokenizer, normalization: Normalization):
        self._vocabulary, self._normalization = vocabulary, normalization
        self._bases: dict[str, tuple[Pieces, SourceAutomaton]] = {}
        self._lock = threading.Lock()  # automata of several threads share their bases, which grow

    def constraint(self, rows: Sequence[Row], mode: str, device: torch.device) -> Constraint:
        """Return what summaries of ``rows`` may contain by ``mode`` (``numbers``, ``names`` or ``all``)."""
        texts = [[normalize(text, self._normalization) for text in (row["title"], *row["text"])] for row in rows]
        with self._lock:
            if mode not in self._bases:
                pieces = Pieces(self._vocabulary, mode)
                self._bases[mode] = pieces, SourceAutomaton([], pieces)
            pieces, base = self._bases[mode]
            spelled = ([self._vocabulary.normalized(text) for text in each] for each in texts)
            clusters = [SourceAutomaton(each, pieces, base) for each in spelled]
        if device.type == "cpu":
            return HostConstraint(clusters, pieces)
        return TableConstraint(clusters, pieces, self._vocabulary.marks.end, device)
