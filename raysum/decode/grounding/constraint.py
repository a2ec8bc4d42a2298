"""The automata of a batch of clusters: the pieces that may extend each hypothesis, and the next states.

B examples, R beams, V pieces, C contexts. Only states that hypotheses reach are computed: about 20 of 900 for a cluster
of the quickstart.
"""

from collections.abc import Sequence
from copy import copy

import numpy as np
import torch
from torch import Tensor

from raysum.data.rows import Row
from raysum.decode.grounding.cluster import SourceAutomaton, State
from raysum.decode.grounding.contexts import BEGIN, CONTEXTS, INSIDE
from raysum.decode.grounding.pieces import Pieces
from raysum.text.cleaning import Normalization, normalize
from raysum.tokenizers.tokenizer import Tokenizer


class Constraint:
    """The automata of a batch. A state has a number, counted as hypotheses reach them."""

    def __init__(self, clusters: Sequence[SourceAutomaton], pieces: Pieces, device: torch.device):
        self._clusters = clusters
        self._states: list[tuple[int, State]] = []  # the example and its state, by number
        self._numbers: dict[tuple[int, State], int] = {}
        self._next: dict[tuple[int, int], int] = {}  # by state and piece
        self.bias = torch.from_numpy(pieces.bias).to(device).repeat(len(clusters), 1)  # [B * C, V] 0 or -inf
        self.row: list[int] = []  # of each state in ``bias``
        self.names: list[np.ndarray] = []  # the pieces that the nodes of each state allow
        self.first = [self._number(example, (BEGIN, ())) for example in range(len(clusters))]

    def repeat(self, number: int) -> "Constraint":
        """Return the constraint of ``number`` searches of each example, in consecutive rows."""
        repeated = copy(self)
        repeated.first = [state for state in self.first for _ in range(number)]
        return repeated

    def next(self, state: int, piece: int) -> int:
        """Return the state after ``piece``."""
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
    """The states [B, R] of the live hypotheses of a search.

    ``whole`` [B, R]: whether a hypothesis ends with a whole word; ``complete`` [B, R]: its tokens up to its last whole
    word. Python dictionaries find the next states in a fifth of the time of a search in sorted tensors.
    """

    def __init__(self, constraint: Constraint, beams: int):
        self._constraint = constraint
        self._states = [[state] * beams for state in constraint.first]
        self._look()
        self._length, self.complete = 1, torch.ones_like(self._rows)

    def _look(self) -> None:
        rows = np.array([[self._constraint.row[state] for state in beams] for beams in self._states])
        device = self._constraint.bias.device
        self._rows = torch.from_numpy(rows).to(device)
        self.whole = torch.from_numpy(rows % CONTEXTS != INSIDE).to(device)

    def mask(self, scores: Tensor) -> tuple[Tensor, Tensor]:
        """Set every piece that the sources do not allow to -inf in ``scores`` [B, R, V], which is -inf for EOS already.

        Return the flat indices in ``scores`` of the pieces that continue a name, and their scores.
        """
        names = [self._constraint.names[state] for beams in self._states for state in beams]
        starts = np.repeat(np.arange(len(names)) * scores.shape[-1], list(map(len, names)))
        index = torch.from_numpy(np.concatenate(names) + starts).to(scores.device)
        values = scores.take(index)
        scores += self._constraint.bias.index_select(0, self._rows.flatten()).view_as(
            scores
        )  # masked_fill_ is 10 times slower
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


class Grounding:
    """Makes the constraints of rows, for one vocabulary and normalization."""

    def __init__(self, vocabulary: Tokenizer, normalization: Normalization):
        self._vocabulary, self._normalization = vocabulary, normalization
        self._bases: dict[str, tuple[Pieces, SourceAutomaton]] = {}

    def constraint(self, rows: Sequence[Row], mode: str, device: torch.device) -> Constraint:
        """Return what summaries of ``rows`` may contain by ``mode`` (``numbers``, ``names`` or ``all``)."""
        if mode not in self._bases:
            pieces = Pieces(self._vocabulary, mode)
            self._bases[mode] = pieces, SourceAutomaton([], pieces)
        pieces, base = self._bases[mode]
        clusters = [SourceAutomaton(self.texts(row), pieces, base) for row in rows]
        return Constraint(clusters, pieces, device)

    def texts(self, row: Row) -> list[str]:
        """Return the title and the texts of a row, as the vocabulary spells them."""
        return [
            self._vocabulary.normalized(normalize(text, self._normalization)) for text in (row["title"], *row["text"])
        ]
