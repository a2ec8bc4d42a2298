"""Load micro-batches by the plan: by a plain iterator, or through Ray Data for Ray Train.

The steps of a training are read in ranges. Each row group of a range is read once, for all ranks.
"""

import pickle
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import lru_cache
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from raysum.data.dataset import Dataset
from raysum.data.rows import OTHER_TARGETS, read_group, table_rows, with_reference
from raysum.errors import UserError
from raysum.stream.collators.base import Arrays, digest
from raysum.stream.plan import Plan
from raysum.stream.stream import Stream, open_dataset, plan_of

if TYPE_CHECKING:
    import ray.data

_WINDOWS, _ROW_GROUPS = 32, 512  # of a range at least, because windows at its ends are also read for its neighbours
_FIRST, _MICRO_BATCHES = 32, 256  # of a block, for all ranks: few at first, so that training starts soon
_OF_RANK = 8  # micro-batches of a block, for each rank at least: Ray keeps objects below 100 kB in the driver's memory
_CPUS = 0.25  # of a reading task: for scheduling only, so that readers fit beside the workers on any machine
_SPREAD = 256  # ranges in a table
_RANKS_OF_TASK = 32  # a reading task packs 20 million tokens a second, more than so many GPUs train on


class DataError(RuntimeError):
    """Damaged data that one worker has found. After a UserError, the other workers would wait forever."""


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


def batches(stream: Stream, rank: int, world: int, start: int, stop: int) -> Iterator[MicroBatch]:
    """Yield the micro-batches of ``rank`` in steps ``start`` to ``stop`` without Ray, and prefetch the next block."""
    coming = (
        block
        for steps in step_ranges(plan_of(stream), start, stop)
        for (block,) in Reader(stream, steps, (rank,), world).blocks(is_first=steps.start == start)
    )
    with ThreadPoolExecutor(1) as reader:
        waiting = reader.submit(next, coming, None)
        while (block := waiting.result()) is not None:
            waiting = reader.submit(next, coming, None)
            yield from block


def ray_dataset(stream: Stream, world: int, start: int, stop: int) -> "ray.data.Dataset":
    """Return a dataset for all ranks: block k is one row with micro-batches of rank ``k % world``.

    A task reads a range of steps once and yields blocks for all ranks in turn. With ``preserve_order`` and without
    locality, Ray Train's splitter gives block k to rank ``k % world``, because every rank gets equally many rows.
    Planning takes 2.5 ms per initial block, so a task makes one-row blocks from a few tables of ranges.
    """
    import ray.data

    def read(table: pa.Table) -> Iterator[pa.Table]:
        (steps,) = table.to_pylist()
        try:
            reader = Reader(stream, range(steps["first"], steps["stop"]), range(world), world)
            for block in reader.blocks(is_first=steps["first"] == start):
                yield from map(_one_row, block)
        except UserError as error:  # Ray would replace it by its own error
            yield from [_one_row(str(error))] * world

    # Not from_arrow: it needs a whole CPU to read its tables, while the workers may use all CPUs.
    ranges = [{"first": steps.start, "stop": steps.stop} for steps in step_ranges(plan_of(stream), start, stop)]
    whole: Any = {"batch_size": None, "batch_format": "pyarrow"}
    dataset = (
        ray.data.from_items(ranges, override_num_blocks=len(ranges) // _SPREAD + 1)
        .map_batches(lambda table: table, **whole, num_cpus=_CPUS / 2)
        .map_batches(read, **whole, num_cpus=_CPUS, concurrency=2 + world // _RANKS_OF_TASK)
    )
    dataset.context.target_max_block_size = 1  # byte: every row that a task yields is a block
    return dataset


def _one_row(block: list[MicroBatch] | str) -> pa.Table:
    return pa.table({"block": pa.array([pickle.dumps(block)], pa.large_binary())})


def ray_batches(tables: Iterable[pa.Table]) -> Iterator[MicroBatch]:
    """Yield the micro-batches of the one-row tables of a rank's shard of ``ray_dataset``.

    Raises DataError if a task found damaged data.
    """
    for table in tables:
        block = pickle.loads(table["block"][0].as_buffer())  # written by ``read`` above, on the same cluster
        if isinstance(block, str):
            raise DataError(block)
        yield from block


def step_ranges(plan: Plan, start: int, stop: int) -> Iterator[range]:
    """Yield the steps from ``start`` to ``stop`` in ranges; where one begins does not depend on ``start``."""
    groups = max(_ROW_GROUPS, _WINDOWS * min(plan.settings.window, len(plan.groups)))
    size = -(-groups * plan.min_steps // len(plan.groups))
    for first in range(start - start % size, stop, size):
        yield range(max(first, start), min(first + size, stop))


@dataclass(frozen=True)
class _Planned:
    """A micro-batch before its rows are read. ``drawn`` are the numbers of their references."""

    step: int
    index: int
    weight: int
    real: bool
    rows: np.ndarray
    drawn: np.ndarray


class Reader:
    """Reads the micro-batches of ``ranks`` of ``world`` in a range of steps. Each row group is read once.

    ``opened`` counts the rows of the row groups that were read.
    """

    def __init__(self, stream: Stream, steps: range, ranks: Sequence[int], world: int):
        self._stream, self._ranks, self._world, self.opened = stream, ranks, world, 0
        self._plan = plan_of(stream)
        self._columns = (*stream.kind.columns, *(OTHER_TARGETS if self._plan.costs.ndim > 1 else ()))
        indices = [index for index in range(stream.settings.micro_batches) if index % world in ranks]
        self._planned = [[_planned(self._plan, step, index) for index in indices] for step in steps]
        uses = [one.rows for step in self._planned for one in step]
        self._rows, counts = np.unique(np.concatenate([np.empty(0, np.int64), *uses]), return_counts=True)
        self._uses = dict(zip(self._rows.tolist(), counts.tolist(), strict=True))
        self._groups = np.searchsorted(np.cumsum(self._plan.groups), self._rows, side="right")
        self._is_read = np.zeros(len(self._plan.groups), bool)
        self._held = dict[int, Arrays]()

    def blocks(self, is_first: bool = False) -> Iterator[list[list[MicroBatch]]]:
        """Yield blocks of successive steps: the micro-batches of each rank. The first one is small if ``is_first``."""
        begin, most = 0, max(_MICRO_BATCHES, _OF_RANK * self._world)
        while begin < len(self._planned):
            end = begin + max((_FIRST if is_first and not begin else most) // self._stream.settings.micro_batches, 1)
            block = [one for step in self._planned[begin:end] for one in step]
            self._load(np.concatenate([one.rows for one in block]))
            yield [[self._pack(one, rank) for one in block if one.index % self._world == rank] for rank in self._ranks]
            begin = end

    def _load(self, rows: np.ndarray) -> None:
        """Read the row groups of ``rows`` that were not read yet, with all rows that the range uses of them."""
        groups = np.unique(self._groups[np.searchsorted(self._rows, rows)])
        groups = groups[~self._is_read[groups]]
        if not len(groups):
            return
        self._is_read[groups] = True
        self.opened += int(self._plan.groups[groups].sum())
        wanted = self._rows[np.isin(self._groups, groups)]
        datasets = tuple(open_dataset(part.path) for part in self._stream.parts)
        self._held.update(_read(datasets, self._stream.split, wanted, self._columns))

    def _pack(self, planned: _Planned, rank: int) -> MicroBatch:
        rows = planned.rows.tolist()
        numbered = zip(rows, planned.drawn.tolist(), strict=True)
        values = [with_reference(self._held[row], number) for row, number in numbered]
        for row in rows:
            self._uses[row] -= 1
            if not self._uses[row]:
                del self._held[row]
        arrays = self._stream.kind.pack(values, self._stream.source)
        return MicroBatch(planned.step, planned.index, rank, planned.weight, planned.real, digest(arrays), arrays)


def _planned(plan: Plan, step: int, index: int) -> _Planned:
    rows = plan.rows(step, index)
    filled = rows if len(rows) else plan.rows(step, 0)[:1]  # a placeholder has the first row of its step
    return _Planned(step, index, plan.weight(step), len(rows) > 0, filled, plan.drawn(step, filled))


def read_rows(path: str, split: str, rows: np.ndarray, columns: tuple[str, ...]) -> dict[int, Arrays]:
    """Return columns of ``rows`` (ascending row numbers of the split), with one row group in memory at a time."""
    return dict(_read((open_dataset(path),), split, rows, columns))


def _read(
    datasets: tuple[Dataset, ...], split: str, rows: np.ndarray, columns: tuple[str, ...]
) -> Iterator[tuple[int, Arrays]]:
    """Yield ascending ``rows`` of a split of one or several datasets with their numbers; each file is opened once."""
    groups, ends = _row_groups(datasets, split)
    cuts = np.searchsorted(rows, np.insert(ends, 0, 0))
    needed = np.flatnonzero(np.diff(cuts)).tolist()
    for (dataset, file), numbers in groupby(needed, key=lambda number: groups[number][:2]):
        with dataset.shard(file) as shard:
            for number in numbers:
                _, _, position, size = groups[number]
                members = rows[cuts[number] : cuts[number + 1]]
                table = read_group(shard, position, columns, members - (ends[number] - size))
                yield from zip(members.tolist(), table_rows(table), strict=True)


@lru_cache(maxsize=16)
def _row_groups(datasets: tuple[Dataset, ...], split: str) -> tuple[list[tuple[Dataset, Path, int, int]], np.ndarray]:
    """Return the dataset, file, index in the file and size of each row group, and the ends of the groups in rows."""
    groups = [(dataset, *group) for dataset in datasets for group in dataset.row_groups(split)]
    return groups, np.cumsum([size for *_, size in groups])
