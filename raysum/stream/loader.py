"""Read micro-batches from shards by the plan: by a plain iterator, or through Ray Data for Ray Train."""

import pickle
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa

from raysum.config.sources import SourceConfig
from raysum.data.dataset import MANIFEST, Dataset, local_folder
from raysum.data.rows import OTHER_TARGETS, read_group, table_rows, with_reference
from raysum.errors import UserError
from raysum.stream.collators.base import Arrays, Kind, digest
from raysum.stream.plan import Mix, Plan, PlanSettings

if TYPE_CHECKING:
    import ray.data

_CPUS = 0.25  # of a reading task: for scheduling only, so that readers fit beside the workers on any machine
_SPREAD = 256  # block numbers in a table
_FIRST_CHUNK, _CHUNK = 4, 32  # steps read together: few at first, so that training starts soon


def _open(path: str) -> Dataset:
    """Return the current dataset at ``path``, the same object until its manifest changes."""
    manifest = local_folder(path) / MANIFEST
    state = manifest.stat() if manifest.exists() else None
    return _opened(path, (state.st_ino, state.st_size, state.st_mtime_ns) if state else None)


@lru_cache(maxsize=16)
def _opened(path: str, state: object) -> Dataset:
    return Dataset.open(path)


@dataclass(frozen=True)
class Stream:
    """The data to read and their batches: small, hashable, and valid in every process.

    ``examples`` limits the rows with a target, evenly sampled from the split; None = all. ``origin`` is an epoch and
    its first step, so that a late start does not plan the earlier epochs. ``mixed`` are further datasets with the same
    split, and ``shares`` the shares of all datasets in an epoch, that of ``path`` first.
    """

    path: str
    split: str
    source: SourceConfig
    settings: PlanSettings
    kind: Kind
    examples: int | None = None
    origin: tuple[int, int] = (0, 0)
    mixed: tuple[str, ...] = ()
    shares: tuple[float, ...] = ()

    @property
    def parts(self) -> list["Stream"]:
        """The streams of the single datasets, in the order of the plan."""
        return [replace(self, path=path, mixed=(), shares=()) for path in (self.path, *self.mixed)]


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


class DataError(RuntimeError):
    """Damaged data that one worker has found. After a UserError, the other workers would wait forever."""


def plan_of(stream: Stream) -> Plan:
    """Return the plan of a stream. Raises ValueError if no row has a target."""
    return _plan(stream, tuple(_open(part.path) for part in stream.parts))


@lru_cache(maxsize=4)
def _plan(stream: Stream, datasets: tuple[Dataset, ...]) -> Plan:
    parts = [_plan_inputs(part, dataset) for part, dataset in zip(stream.parts, datasets, strict=True)]
    costs, weights, keep, groups = map(_concatenate, zip(*parts, strict=True))
    mix = Mix(tuple(len(part_groups) for *_, part_groups in parts), stream.shares) if stream.mixed else None
    return Plan(costs, weights, keep, groups, stream.settings, stream.origin, mix)


def _plan_inputs(stream: Stream, dataset: Dataset) -> tuple[np.ndarray, ...]:
    """Return costs, weights, the mask of kept rows and the row group sizes of one dataset."""
    lengths, targets = dataset.lengths(stream.split), dataset.reference_lengths(stream.split)
    costs, weights = stream.kind.costs(lengths, stream.source)
    if stream.kind.draws_references and targets.shape[1] > 1:
        by_reference = [
            stream.kind.costs(np.column_stack([lengths[:, :2], target]), stream.source) for target in targets.T
        ]
        costs, weights = (np.stack(values, 1) for values in zip(*by_reference, strict=True))
    keep = np.zeros(len(lengths), bool)
    keep[rows_with_targets(stream)] = True
    return costs, weights, keep, np.array([rows for _, _, rows in dataset.row_groups(stream.split)], np.int64)


def _concatenate(parts: Sequence[np.ndarray]) -> np.ndarray:
    """Return the concatenated arrays of rows, padded with zeros to the same number of references."""
    width = max(part.shape[1] if part.ndim > 1 else 0 for part in parts)
    if not width:
        return np.concatenate(parts)
    wide = [part if part.ndim > 1 else part[:, None] for part in parts]
    return np.concatenate([np.pad(part, ((0, 0), (0, width - part.shape[1]))) for part in wide])


def rows_with_targets(stream: Stream) -> np.ndarray:
    """Return the rows that a stream reads: those with a target, or ``examples`` of them, evenly sampled."""
    _, weights = stream.kind.costs(_open(stream.path).lengths(stream.split), stream.source)
    rows = np.flatnonzero(weights > 0)
    if stream.examples is None or stream.examples >= len(rows):
        return rows
    return rows[np.linspace(0, len(rows) - 1, stream.examples).astype(int)]


def batches(stream: Stream, rank: int, world: int, start: int, stop: int) -> Iterator[MicroBatch]:
    """Yield the micro-batches of ``rank`` in steps ``start`` to ``stop`` without Ray, and prefetch the next chunk."""
    with ThreadPoolExecutor(1) as reader:
        waiting = None
        for first, last in _chunks(start, stop):
            ready, waiting = waiting, reader.submit(_read_chunk, stream, first, last, rank, world)
            if ready:
                yield from ready.result()
        if waiting:
            yield from waiting.result()


def ray_dataset(stream: Stream, world: int, start: int, stop: int) -> "ray.data.Dataset":
    """Return a dataset for all ranks: block k is one row with the micro-batches of rank ``k % world`` in chunk
    ``k // world``.

    With ``preserve_order`` and without locality, Ray Train's splitter gives block k to rank ``k % world``, because
    every rank gets equally many rows. Planning takes 2.5 ms per initial block (77 s for 500,000 steps), so
    a task makes the one-row blocks from a few tables of block numbers.
    """
    import ray.data

    chunks = _chunks(start, stop)

    def read(block: pa.Table) -> pa.Table:
        (number,) = block["block"].to_pylist()
        first, last = chunks[number // world]
        chunk: list[MicroBatch] | str
        try:
            chunk = _read_chunk(stream, first, last, number % world, world)
        except UserError as error:  # Ray would replace it by its own error
            chunk = str(error)
        return pa.table({"chunk": pa.array([pickle.dumps(chunk)], pa.large_binary())})

    # Not from_arrow: it needs a whole CPU to read its tables, while the workers may use all CPUs.
    numbers = [{"block": number} for number in range(len(chunks) * world)]
    dataset = (
        ray.data.from_items(numbers, override_num_blocks=len(numbers) // _SPREAD + 1)
        .map_batches(lambda block: block, batch_size=None, batch_format="pyarrow", num_cpus=_CPUS / 2)
        .map_batches(read, batch_size=None, batch_format="pyarrow", num_cpus=_CPUS, concurrency=max(2, world))
    )
    dataset.context.target_max_block_size = 1  # byte: every row that a task yields is a block
    return dataset


def ray_batches(tables: Iterable[pa.Table]) -> Iterator[MicroBatch]:
    """Yield the micro-batches of the one-row tables of a rank's shard of ``ray_dataset``.

    Raises DataError if a task found damaged data.
    """
    for table in tables:
        chunk = pickle.loads(table["chunk"][0].as_buffer())  # written by ``read`` above, on the same cluster
        if isinstance(chunk, str):
            raise DataError(chunk)
        yield from chunk


def read_rows(path: str, split: str, rows: np.ndarray, columns: tuple[str, ...]) -> dict[int, Arrays]:
    """Return columns of ``rows`` (ascending row numbers of the split), with one row group in memory at a time."""
    dataset = _open(path)
    groups, ends = _layout(dataset, split)
    by_row: dict[int, Arrays] = {}
    row_groups = np.searchsorted(ends, rows, side="right")
    for group in np.unique(row_groups).tolist():
        members, (file, number, size) = rows[row_groups == group], groups[group]
        with dataset.shard(file) as reader:
            table = read_group(reader, number, columns, members - (ends[group] - size))
        by_row.update(zip(members.tolist(), table_rows(table), strict=True))
    return by_row


def _chunks(start: int, stop: int) -> list[tuple[int, int]]:
    bounds = [start, *range(min(start + _FIRST_CHUNK, stop), stop, _CHUNK), stop]
    return [(first, last) for first, last in pairwise(bounds) if first < last]


def _read_chunk(stream: Stream, start: int, stop: int, rank: int, world: int) -> list[MicroBatch]:
    plan, kind = plan_of(stream), stream.kind
    indices = range(rank, stream.settings.micro_batches, world)
    planned = {(step, index): plan.rows(step, index) for step in range(start, stop) for index in indices}
    # Empty micro-batches become placeholders with the first row of their step.
    filled = {key: rows if len(rows) else plan.rows(key[0], 0)[:1] for key, rows in planned.items()}
    columns = (*kind.columns, *(OTHER_TARGETS if plan.costs.ndim > 1 else ()))
    by_row = _read_parts(stream, np.unique(np.concatenate([*filled.values()])), columns)
    micro_batches = []
    for (step, index), rows in filled.items():
        drawn = zip(rows.tolist(), plan.drawn(step, rows).tolist(), strict=True)
        arrays = kind.pack([with_reference(by_row[row], number) for row, number in drawn], stream.source)
        real = len(planned[step, index]) > 0
        micro_batches.append(MicroBatch(step, index, rank, plan.weight(step), real, digest(arrays), arrays))
    return micro_batches


def _read_parts(stream: Stream, rows: np.ndarray, columns: tuple[str, ...]) -> dict[int, Arrays]:
    """Return ``read_rows`` by the row numbers of the plan."""
    by_row: dict[int, Arrays] = {}
    first = 0
    for part in stream.parts:
        end = first + _open(part.path).rows(part.split)
        own = rows[(rows >= first) & (rows < end)] - first
        by_row |= {first + row: values for row, values in read_rows(part.path, part.split, own, columns).items()}
        first = end
    return by_row


@lru_cache(maxsize=16)
def _layout(dataset: Dataset, split: str) -> tuple[list[tuple[Path, int, int]], np.ndarray]:
    """Return the row groups of a split, and the row number after each."""
    groups = dataset.row_groups(split)
    return groups, np.cumsum([size for _, _, size in groups])
