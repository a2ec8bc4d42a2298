"""The automata of a batch of clusters as arrays: a GPU finds the states after each token without the host.

B examples, R beams, V pieces, C contexts, S states of all examples, W pieces that the nodes of a state allow. All
states are computed, in 13 to 19 ms for a cluster of 3,200 to 5,800 words, which has 540 to 760. To find those that
hypotheses reach (`constraint`) takes the host up to 2 ms in each step of 16 examples, while a GPU waits. Never run on a
GPU; a test compares the searches of both on the CPU.
"""

from collections.abc import Sequence
from copy import copy

import numpy as np
import torch
from torch import Tensor

from raysum.decode.grounding.cluster import SourceAutomaton, State
from raysum.decode.grounding.pieces import BEGIN, CONTEXTS, INSIDE, Pieces


class TableConstraint:
    """The automata of a batch, with the methods of ``constraint.HostConstraint``.

    ``rows`` [B * C, V]: the state after each piece in each context of each example; its bitwise complement if the
    sources do not allow the piece. ``row`` [S]: that of each state. ``pieces`` [S, W]: those that the nodes of a state
    allow, padded by EOS; ``states_after`` [S, W]: the states after them. ``first`` [B]: those of empty hypotheses.
    """

    def __init__(self, clusters: Sequence[SourceAutomaton], pieces: Pieces, end: int, device: torch.device):
        rows, row, allowed, after, first = [], list[int](), list[list[int]](), list[list[int]](), list[int]()
        for example, cluster in enumerate(clusters):
            start, numbers = len(row), _numbers(cluster)
            follow = start + pieces.follow.astype(np.int32)
            rows.append(np.where(pieces.bias == 0, follow, ~follow))
            for context in range(CONTEXTS):
                begun = cluster.begun(context)
                rows[-1][context, list(begun)] = [start + numbers[state] for state in begun.values()]
            for state in numbers:
                names = cluster.names(state)
                row.append(example * CONTEXTS + state[0])
                allowed.append(list(names))
                after.append([start + numbers[reached] for reached in names.values()])
            first.append(start + BEGIN)
        self.rows, self.row = torch.from_numpy(np.concatenate(rows)).to(device), torch.tensor(row, device=device)
        self.pieces, self.states_after = _padded(allowed, end).to(device), _padded(after, 0).to(device)
        self.first = torch.tensor(first, device=device)

    def repeat(self, number: int) -> "TableConstraint":
        repeated = copy(self)
        repeated.first = self.first.repeat_interleave(number)
        return repeated

    def states(self, beams: int) -> "TableStates":
        return TableStates(self, beams)


class TableStates:
    """The states [B, R] of the live hypotheses of a search, as in ``constraint.HostStates``; arrays change in place."""

    def __init__(self, tables: TableConstraint, beams: int):
        self._tables, self._states = tables, tables.first[:, None].repeat(1, beams)
        self._length = torch.ones_like(tables.first[:1])
        self.whole, self.complete = self._is_whole(), torch.ones_like(self._states)

    def _is_whole(self) -> Tensor:
        return self._tables.row[self._states] % CONTEXTS != INSIDE

    def mask(self, scores: Tensor) -> tuple[Tensor, Tensor]:
        tables = self._tables
        starts = torch.arange(self._states.numel(), device=scores.device).view_as(self._states) * scores.shape[-1]
        index = (tables.pieces[self._states] + starts[..., None]).flatten()
        values = scores.take(index)
        scores.masked_fill_(tables.rows[tables.row[self._states]] < 0, -torch.inf)
        scores.view(-1).scatter_(0, index, values)
        return index, values

    def advance(self, parent: Tensor, piece: Tensor) -> None:
        tables, states = self._tables, self._states.gather(1, parent)
        usual = tables.rows[tables.row[states], piece]
        is_named = tables.pieces[states] == piece[..., None]
        named = (tables.states_after[states] * is_named).amax(-1)
        self._states.copy_(torch.where(is_named.any(-1), named, torch.where(usual < 0, ~usual, usual)))
        self.whole.copy_(self._is_whole())
        self._length += 1
        self.complete.copy_(torch.where(self.whole, self._length, self.complete.gather(1, parent)))

    def keep(self, index: Tensor) -> None:
        self._states, self.whole, self.complete = self._states[index], self.whole[index], self.complete[index]


def _numbers(cluster: SourceAutomaton) -> dict[State, int]:
    """Return the numbers of all states; those without nodes have the number of their context."""
    numbers: dict[State, int] = {(context, ()): context for context in range(CONTEXTS)}
    unvisited = list(numbers)
    for state in unvisited:  # grows
        reached = [cluster.names(state), *([] if state[1] else [cluster.begun(state[0])])]
        for after in (after for pieces in reached for after in pieces.values()):
            if after not in numbers:
                numbers[after] = len(numbers)
                unvisited.append(after)
    return numbers


def _padded(lists: Sequence[Sequence[int]], padding: int) -> Tensor:
    lengths = np.array([len(each) for each in lists])
    padded = np.full((len(lists), max(1, lengths.max())), padding)
    padded[np.arange(padded.shape[1]) < lengths[:, None]] = [value for each in lists for value in each]
    return torch.from_numpy(padded)
