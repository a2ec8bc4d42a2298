"""Read rows and micro-batches from shards. Each row group of a range of steps is read once, for all ranks."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import chain, groupby
from pathlib import Path

import numpy as np

from raysum.data.dataset import Dataset
from raysum.data.rows import OTHER_TARGETS, read_group, table_rows, with_reference
from raysum.stream.collators.base import Arrays, digest
from raysum.stream.plan import Plan
from raysum.stream.stream import Stream, open_dataset, plan_of

_WINDOWS, _ROW_GROUPS = 8, 512  # of a range at least, because steps at its ends also read from its neighbours
_FIRST, _MICRO_BATCHES = 32, 256  # of a block, for all ranks: few at first, so that training starts soon
_OF_RANK = 8  # micro-batches of a block, for each rank at least: Ray keeps objects below 100 kB in the driver's memory


@dataclass(frozen=True)
class MicroBatch:
    """One micro-batch: its position in the plan and its flat arrays.

    ``weight`` is the loss denominator of the whole step. ``real`` is false for a placeholder that fills the last step
    of an epoch and must not count. ``digest`` identifies the data.
    """

    step: int
    index: int
    rank: int
    weight: int
    real: bool
    digest: int
    arrays: Arrays


class Ranges:
    """The numbered ranges of steps that are read together: each has the steps that begin in its windows."""

    def __init__(self, plan: Plan):
        self._plan, self._span = plan, max(_WINDOWS, _ROW_GROUPS * plan.windows // len(plan.groups))

    def number(self, step: int) -> int:
        """Return the number of the range that contains ``step``."""
        return self._plan.window_at(step) // self._span

    def steps(self, number: int, start: int, stop: int) -> range:
        """Return the steps of a range, from ``start`` to ``stop``."""
        first, last = (self._plan.first_step(window * self._span, stop) for window in (number, number + 1))
        return range(max(first, start), max(last, start))

    def most(self, steps: int) -> int:
        """Return an upper bound of the number of ranges that successive ``steps`` are in."""
        return self._plan.most_windows(steps) // self._span + 2


class Reader:
    """Reads the micro-batches of ``ranks`` of ``world`` in a range of steps. Each row group is read once.

    ``opened`` counts the rows of the row groups that were read.
    """

    def __init__(self, stream: Stream, steps: range, ranks: Sequence[int], world: int):
        self._stream, self._ranks, self._world, self.opened = stream, ranks, world, 0
        plan, per_step = plan_of(stream), stream.settings.micro_batches
        self._columns = (*stream.kind.columns, *(OTHER_TARGETS if plan.costs.ndim > 1 else ()))
        indices = [index for index in range(per_step) if index % world in ranks]
        self._planned = [[_planned(plan, step, index) for index in indices] for step in steps]
        uses = [micro_batch.rows for micro_batch in chain.from_iterable(self._planned)]
        self._rows, counts = np.unique(np.concatenate([np.empty(0, np.int64), *uses]), return_counts=True)
        self._uses = dict(zip(self._rows.tolist(), counts.tolist(), strict=True))
        self._groups = np.searchsorted(np.cumsum(plan.groups), self._rows, side="right")
        self._group_starts, self._group_sizes = np.cumsum(plan.groups) - plan.groups, plan.groups
        self._locations = _locations(stream)
        self._read, self._held = set[int](), dict[int, Arrays]()

    def blocks(self, is_first: bool = False) -> Iterator[list[list[MicroBatch]]]:
        """Yield blocks of successive steps: the micro-batches of each rank. The first one is small if ``is_first``."""
        begin, most = 0, max(_MICRO_BATCHES, _OF_RANK * self._world)
        while begin < len(self._planned):
            end = begin + max((_FIRST if is_first and not begin else most) // self._stream.settings.micro_batches, 1)
            block = [*chain.from_iterable(self._planned[begin:end])]
            self._load(np.concatenate([micro_batch.rows for micro_batch in block]))
            yield [[self._pack(one, rank) for one in block if one.index % self._world == rank] for rank in self._ranks]
            begin = end

    def _load(self, rows: np.ndarray) -> None:
        """Read the row groups of ``rows`` that were not read yet, with all rows that the range uses of them."""
        needed = {*self._groups[np.searchsorted(self._rows, rows)].tolist()} - self._read
        self._read |= needed
        for (dataset, file), numbers in groupby(sorted(needed), key=lambda number: self._locations[number][:2]):
            with dataset.shard(file) as shard:
                for number in numbers:
                    members = self._rows[slice(*np.searchsorted(self._groups, [number, number + 1]))]
                    places = members - self._group_starts[number]
                    table = read_group(shard, self._locations[number][2], self._columns, places)
                    self._held.update(zip(members.tolist(), table_rows(table), strict=True))
                    self.opened += int(self._group_sizes[number])

    def _pack(self, planned: "_Planned", rank: int) -> MicroBatch:
        rows = planned.rows.tolist()
        values = [
            with_reference(self._held[row], drawn) for row, drawn in zip(rows, planned.drawn.tolist(), strict=True)
        ]
        for row in rows:
            self._uses[row] -= 1
            if not self._uses[row]:
                del self._held[row]
        arrays = self._stream.kind.pack(values, self._stream.source)
        return MicroBatch(planned.step, planned.index, rank, planned.weight, planned.real, digest(arrays), arrays)


@dataclass(frozen=True)
class _Planned:
    """A micro-batch before its rows are read. ``drawn`` are the numbers of their references."""

    step: int
    index: int
    weight: int
    real: bool
    rows: np.ndarray
    drawn: np.ndarray


def _planned(plan: Plan, step: int, index: int) -> _Planned:
    rows = plan.rows(step, index)
    filled = rows if len(rows) else plan.rows(step, 0)[:1]  # a placeholder has the first row of its step
    return _Planned(step, index, plan.weight(step), len(rows) > 0, filled, plan.drawn(step, filled))


def read_rows(path: str, split: str, rows: np.ndarray, columns: tuple[str, ...]) -> dict[int, Arrays]:
    """Return columns of ``rows`` (ascending row numbers of the split), with one row group in memory at a time."""
    dataset = open_dataset(path)
    groups = _row_groups(dataset, split)
    ends = np.cumsum([size for _, _, size in groups])
    by_row: dict[int, Arrays] = {}
    row_groups = np.searchsorted(ends, rows, side="right")
    for group in np.unique(row_groups).tolist():
        members, (file, number, size) = rows[row_groups == group], groups[group]
        with dataset.shard(file) as shard:
            table = read_group(shard, number, columns, members - (ends[group] - size))
        by_row.update(zip(members.tolist(), table_rows(table), strict=True))
    return by_row


@lru_cache(maxsize=16)
def _row_groups(dataset: Dataset, split: str) -> list[tuple[Path, int, int]]:
    return dataset.row_groups(split)


def _locations(stream: Stream) -> list[tuple[Dataset, Path, int]]:
    """Return the dataset, the file and the index in the file of each row group of the plan."""
    datasets = [open_dataset(part.path) for part in stream.parts]
    return [(dataset, file, number) for dataset in datasets for file, number, _ in _row_groups(dataset, stream.split)]
