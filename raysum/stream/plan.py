"""The plan: the rows of every micro-batch and step, computed from lengths, seed and epoch only.

An epoch visits every kept row once. Row groups are shuffled. Within a window of row groups, rows are sorted by length,
and rows of about the same length by target length, with a little noise. They are cut into micro-batches within a token
budget, the micro-batches are shuffled, and the remaining rows join the next window. A global step has A consecutive
micro-batches; empty ones fill the last step of an epoch. The plan depends neither on the number of workers nor on the
step at which training starts.
"""

from bisect import bisect_right
from dataclasses import dataclass

import numpy as np

_ALIKE = 1.1  # rows with a smaller ratio of costs are sorted by their targets, which are padded to the longest
_NOISE = 0.05  # relative: it varies the micro-batches between epochs without mixing short and long rows
_MIX = 2  # separates these random numbers from those that the plan draws by seed and epoch


@dataclass(frozen=True)
class PlanSettings:
    """``batch_tokens`` of a micro-batch at most, ``micro_batches`` A of a step, ``window`` in row groups."""

    batch_tokens: int
    micro_batches: int
    window: int = 64
    seed: int = 0


@dataclass(frozen=True)
class Epoch:
    """``rows`` [n] in reading order; micro-batch i is ``rows[offsets[i] : offsets[i + 1]]``; ``weights`` [steps].

    ``drawn`` [rows of the split]: the number of each row's reference in this epoch.
    """

    rows: np.ndarray
    offsets: np.ndarray
    weights: np.ndarray
    drawn: np.ndarray

    @property
    def num_steps(self) -> int:
        return len(self.weights)


@dataclass(frozen=True)
class Mix:
    """The number of row groups of each dataset, in the order of the plan, and their ``shares`` of the rows (sum 1).

    Each dataset gives an endless sequence of its own epochs, which have every kept row once and shuffle the row groups.
    An epoch of the mix has as many rows as all datasets together. After E epochs, exactly ``E * rows * share`` rows of
    each sequence were used, rounded. So the counts of a dataset's rows differ by at most one.
    """

    groups: tuple[int, ...]
    shares: tuple[float, ...]


@dataclass(eq=False)
class Plan:
    """The sequence of steps over rows with ``costs`` [rows] in tokens and ``weights`` [rows] in the loss denominator.

    If rows have several references, both are [rows, R], with weight 0 after a row's last reference; each epoch draws
    one for every row, by seed and epoch only.
    ``groups`` [G] are the row group sizes in file order; rows with a false ``keep`` [rows] are never used.
    Epochs are computed on demand (1 microsecond per row), and the last one is cached. ``origin`` is an epoch and its
    first step, known from another copy of the plan, for steps from there. With a ``mix``, the rows are those of several
    datasets in order.
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
        self._first_steps = [first_step]  # of each computed epoch since the origin, and of the next one
        self._cached: tuple[int, Epoch] | None = None

    @property
    def min_steps(self) -> int:
        """A lower bound of the number of steps of an epoch, computed without planning one."""
        costs = self.costs if self.costs.ndim == 1 else self.costs.min(1)
        tokens = int(np.minimum(costs, self.settings.batch_tokens)[self.keep].sum())
        return -(-tokens // (self.settings.batch_tokens * self.settings.micro_batches))

    def epoch(self, index: int) -> Epoch:
        if self._cached is None or self._cached[0] != index:
            self._cached = (index, self._compute(index))
        return self._cached[1]

    def locate(self, step: int) -> tuple[int, int]:
        """Return the epoch of a global step, and its position in the epoch."""
        while self._first_steps[-1] <= step:
            newest = self.epoch(self._first_epoch + len(self._first_steps) - 1)
            self._first_steps.append(self._first_steps[-1] + newest.num_steps)
        number = bisect_right(self._first_steps, step) - 1
        return self._first_epoch + number, step - self._first_steps[number]

    def rows(self, step: int, micro_batch: int) -> np.ndarray:
        """Return the rows of one micro-batch of a global step; empty ones fill the last step of an epoch."""
        index, position = self.locate(step)
        epoch = self.epoch(index)
        i = position * self.settings.micro_batches + micro_batch
        return epoch.rows[epoch.offsets[i] : epoch.offsets[i + 1]]

    def weight(self, step: int) -> int:
        """Return the loss denominator of a global step: the sum of the weights of all its rows."""
        index, position = self.locate(step)
        return int(self.epoch(index).weights[position])

    def drawn(self, step: int, rows: np.ndarray) -> np.ndarray:
        """Return the number of the reference that each of ``rows`` has in a global step."""
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
            # Alternating directions postpone the longest and the shortest rows in turn, so no row waits forever.
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
        """Return the kept rows of an epoch by window of row groups."""
        size, count = self.settings.window, -(-len(self.groups) // self.settings.window)
        if self.mix is None:
            order = rng.permutation(len(self.groups))
            return [self._kept_rows(order[start : start + size]) for start in range(0, len(order), size)]
        total, first, parts = np.count_nonzero(self.keep), 0, []
        for number, (groups, share) in enumerate(zip(self.mix.groups, self.mix.shares, strict=True)):
            kept = len(self._kept_rows(np.arange(first, first + groups)))
            begin, end = (int(epoch * total * share + 0.5) for epoch in (index, index + 1))
            epochs = range(begin // kept, -(-end // kept))
            seeds = [[self.settings.seed, epoch, _MIX, number] for epoch in epochs]
            visited = [self._kept_rows(first + np.random.default_rng(seed).permutation(groups)) for seed in seeds]
            taken = np.concatenate([np.empty(0, np.int64), *visited])[begin - epochs.start * kept :][: end - begin]
            parts.append(np.array_split(taken, count))
            first += groups
        return [np.concatenate(window) for window in zip(*parts, strict=True)]

    def _kept_rows(self, groups: np.ndarray) -> np.ndarray:
        rows = _ranges(self._group_starts[groups], self.groups[groups])
        return rows[self.keep[rows]]


def cut(costs: np.ndarray, budget: int) -> np.ndarray:
    """Return the sizes of consecutive segments that cost at most ``budget``; a row above it is a separate segment."""
    totals = np.cumsum(costs, dtype=np.int64).tolist()
    ends, spent = [0], 0
    while ends[-1] < len(totals):
        ends.append(max(bisect_right(totals, spent + budget, ends[-1]), ends[-1] + 1))
        spent = totals[ends[-1] - 1]
    return np.diff(np.array(ends, np.int64))


def _ranges(starts: np.ndarray, sizes: np.ndarray) -> np.ndarray:
    """Return ``arange(start, start + size)`` of all pairs, concatenated."""
    before = np.cumsum(sizes) - sizes
    return np.repeat(starts - before, sizes) + np.arange(int(sizes.sum()))
