"""The plan: which rows make which micro-batch of which step, decided from lengths, seed and epoch alone.

An epoch visits every kept row once. Row groups are shuffled; inside a window of row groups rows are sorted by length,
those of about the same length by that of their targets (with a little noise), and cut into micro-batches under a token
budget; a window's micro-batches are shuffled, and the rows left over join the next window. A global step is A
consecutive micro-batches; the epoch's last step is filled with empty ones. Nothing here depends on the number of
workers or on where training starts.
"""

from bisect import bisect_right
from dataclasses import dataclass

import numpy as np

from raysum.stream.mixing import Mix

_ALIKE = 1.1  # rows whose costs differ by less are sorted by their targets, which are padded to the longest
_NOISE = 0.05  # relative; enough to change a row's companions between epochs without mixing short with long


@dataclass(frozen=True)
class PlanSettings:
    """``batch_tokens`` of a micro-batch at most, ``micro_batches`` A of a step, ``window`` in row groups."""

    batch_tokens: int
    micro_batches: int
    window: int = 64
    seed: int = 0


@dataclass(frozen=True)
class Epoch:
    """``rows`` [n] in the order read; micro-batch i is ``rows[offsets[i] : offsets[i + 1]]``; ``weights`` [steps].

    ``drawn`` [rows of the split]: which of its references each has in this epoch.
    """

    rows: np.ndarray
    offsets: np.ndarray
    weights: np.ndarray
    drawn: np.ndarray

    @property
    def num_steps(self) -> int:
        return len(self.weights)


@dataclass(eq=False)
class Plan:
    """The sequence of steps over rows with ``costs`` [rows] in tokens and ``weights`` [rows] in the loss denominator.

    Where rows have several references, these are [rows, R], with weight 0 for those behind a row's last; each epoch
    draws one for every row, by seed and epoch alone.
    ``groups`` [G] are the row group sizes in file order; rows where ``keep`` [rows] is false are never used.
    Epochs are computed when first asked for (1 microsecond a row, measured); the last one is held. ``origin`` is an
    epoch and its first step, both known from another copy of the same plan, for steps from there on. With a ``mix`` the
    rows are those of several datasets, one after the other.
    """

    costs: np.ndarray
    weights: np.ndarray
    keep: np.ndarray
    groups: np.ndarray
    settings: PlanSettings
    origin: tuple[int, int] = (0, 0)
    mix: Mix | None = None

    def __post_init__(self) -> None:
        if not self.keep.any():
            raise ValueError("a plan needs at least one row")
        self._group_starts = np.cumsum(self.groups) - self.groups
        self._first_epoch, first_step = self.origin
        self._first_steps = [first_step]  # of each epoch since then that was seen, and of the one after
        self._held: tuple[int, Epoch] | None = None

    def epoch(self, index: int) -> Epoch:
        if self._held is None or self._held[0] != index:
            self._held = (index, self._compute(index))
        return self._held[1]

    def locate(self, step: int) -> tuple[int, int]:
        """The epoch of a global step, and its place in it."""
        while self._first_steps[-1] <= step:
            newest = self.epoch(self._first_epoch + len(self._first_steps) - 1)
            self._first_steps.append(self._first_steps[-1] + newest.num_steps)
        number = bisect_right(self._first_steps, step) - 1
        return self._first_epoch + number, step - self._first_steps[number]

    def rows(self, step: int, micro_batch: int) -> np.ndarray:
        """Row numbers of one micro-batch of a global step; empty ones fill an epoch's last step."""
        index, place = self.locate(step)
        epoch = self.epoch(index)
        i = place * self.settings.micro_batches + micro_batch
        return epoch.rows[epoch.offsets[i] : epoch.offsets[i + 1]]

    def weight(self, step: int) -> int:
        """The loss denominator of a global step: the weights of all its rows, over all micro-batches."""
        index, place = self.locate(step)
        return int(self.epoch(index).weights[place])

    def drawn(self, step: int, rows: np.ndarray) -> np.ndarray:
        """Which of its references each of ``rows`` has in a global step."""
        return self.epoch(self.locate(step)[0]).drawn[rows]

    def _compute(self, index: int) -> Epoch:
        rng = np.random.default_rng([self.settings.seed, index])
        windows = self._windows(index, rng)
        costs, weights, drawn = self.costs, self.weights, np.zeros(len(self.costs), np.int32)
        if costs.ndim > 1:
            references = np.maximum(np.count_nonzero(weights, axis=1), 1)
            drawn = np.random.default_rng([self.settings.seed, index, 1]).integers(references, dtype=np.int32)
            costs, weights = (values[np.arange(len(drawn)), drawn] for values in (costs, weights))
        noise = rng.uniform(1 - _NOISE, 1 + _NOISE, len(costs))
        keys = np.floor(np.log1p(costs * noise) / np.log(_ALIKE)), weights * noise
        carried = np.empty(0, np.int64)
        rows, sizes = [], []
        for number, members in enumerate(windows):
            window = np.concatenate([carried, members])
            # Alternating directions leave the longest and the shortest rows over in turn, so none is put off for ever.
            alike, padded = (key[window] * (-1) ** number for key in keys)
            window = window[np.lexsort((padded, alike))]
            parts = cut(costs[window], self.settings.batch_tokens)
            if number + 1 < len(windows) and len(parts):
                window, carried = np.split(window, [len(window) - parts[-1]])
                parts = parts[:-1]
            shuffled, starts = rng.permutation(len(parts)), np.cumsum(parts) - parts
            rows.append(window[_ranges(starts[shuffled], parts[shuffled])])
            sizes.append(parts[shuffled])
        visited, per_step = np.concatenate(rows), self.settings.micro_batches
        filled = np.zeros(-sum(map(len, sizes)) % per_step, np.int64)
        offsets = np.cumsum(np.concatenate([[0], *sizes, filled]))
        totals = np.cumsum(np.append(0, weights[visited]), dtype=np.int64)
        return Epoch(visited, offsets, np.diff(totals[offsets[::per_step]]), drawn)

    def _windows(self, index: int, rng: np.random.Generator) -> list[np.ndarray]:
        """The kept rows of an epoch, by window of row groups."""
        size = self.settings.window
        if self.mix is None:
            order = rng.permutation(len(self.groups))
            return [self._members(order[start : start + size]) for start in range(0, len(order), size)]
        parts = np.split(np.arange(len(self.groups)), np.cumsum(self.mix.groups)[:-1])
        kept = [len(self._members(groups)) for groups in parts]
        return self.mix.windows(index, self.settings.seed, -(-len(self.groups) // size), kept, self._members)

    def _members(self, groups: np.ndarray) -> np.ndarray:
        members = _ranges(self._group_starts[groups], self.groups[groups])
        return members[self.keep[members]]


def cut(costs: np.ndarray, budget: int) -> np.ndarray:
    """Sizes of consecutive segments of cost ``budget`` at most; a row above the budget is a segment of its own."""
    totals = np.cumsum(costs, dtype=np.int64).tolist()
    ends, spent = [0], 0
    while ends[-1] < len(totals):
        ends.append(max(bisect_right(totals, spent + budget, ends[-1]), ends[-1] + 1))
        spent = totals[ends[-1] - 1]
    return np.diff(np.array(ends, np.int64))


def _ranges(starts: np.ndarray, sizes: np.ndarray) -> np.ndarray:
    """``arange(start, start + size)`` of each pair, one after the other."""
    before = np.cumsum(sizes) - sizes
    return np.repeat(starts - before, sizes) + np.arange(int(sizes.sum()))
