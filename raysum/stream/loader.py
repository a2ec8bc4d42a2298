"""Shards to micro-batches, by plan: a plain iterator, and the same through Ray Data for Ray Train."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from raysum.config import SourceConfig
from raysum.prepare.dataset import Dataset, table_rows
from raysum.stream.collate import KINDS, Arrays, digest
from raysum.stream.plan import Plan, PlanSettings

if TYPE_CHECKING:
    import ray.data

_FIRST_CHUNK, _CHUNK = 4, 32  # steps read at once: few at first, so that training starts soon
_SCALARS = ["step", "index", "rank", "weight", "real", "digest"]  # of MicroBatch; the rest are its arrays


@dataclass(frozen=True)
class Stream:
    """What is read and how it is batched: small, hashable, and meaning the same in every process.

    ``examples``: use only so many rows of the split, evenly spread; None = all that have a target.
    ``origin``: an epoch and its first step, so that a late start need not plan the epochs before (see Plan).
    """

    path: str
    split: str
    source: SourceConfig
    settings: PlanSettings
    examples: int | None = None
    origin: tuple[int, int] = (0, 0)


@dataclass(frozen=True)
class MicroBatch:
    """One micro-batch: its place in the plan, its flat arrays, and what it adds to the step.

    ``weight`` is the loss denominator of the whole step; ``real`` is false for a stand-in that fills an epoch's last
    step and must count for nothing; ``digest`` identifies the data.
    """

    step: int
    index: int
    rank: int
    weight: int
    real: bool
    digest: int
    arrays: Arrays


@lru_cache(maxsize=4)
def open_dataset(path: str) -> Dataset:
    return Dataset.open(path)


@lru_cache(maxsize=4)
def plan_of(stream: Stream) -> Plan:
    """The plan of a stream. Raises ValueError where no row has a target."""
    dataset = open_dataset(stream.path)
    costs, weights = KINDS[dataset.kind].costs(dataset.lengths(stream.split), stream.source)
    keep = weights > 0
    if stream.examples is not None and stream.examples < keep.sum():
        usable = np.flatnonzero(keep)
        keep = np.zeros_like(keep)
        keep[usable[np.linspace(0, len(usable) - 1, stream.examples).astype(int)]] = True
    groups = np.array([rows for _, _, rows in dataset.row_groups(stream.split)], np.int64)
    return Plan(costs, weights, keep, groups, stream.settings, stream.origin)


def batches(stream: Stream, rank: int, world: int, start: int, stop: int) -> Iterator[MicroBatch]:
    """Micro-batches of ``rank`` in steps ``start`` to ``stop``, without Ray; the next chunk is read meanwhile."""
    with ThreadPoolExecutor(1) as reader:
        waiting = None
        for first, last in _chunks(start, stop):
            ready, waiting = waiting, reader.submit(_read_chunk, stream, first, last, rank, world)
            if ready:
                yield from ready.result()
        if waiting:
            yield from waiting.result()


def ray_dataset(stream: Stream, world: int, start: int, stop: int) -> "ray.data.Dataset":
    """The same for all ranks: block k holds the micro-batches of rank ``k % world`` in chunk ``k // world``.

    Every rank's block of a chunk has the same number of rows, so with ``preserve_order`` and without locality Ray
    Train's splitter hands block k to rank ``k % world``.
    """
    import ray.data

    bounds = _chunks(start, stop)

    def read(blocks: pa.Table) -> pa.Table:
        (block,) = blocks["id"].to_pylist()
        return _to_table(_read_chunk(stream, *bounds[block // world], block % world, world))

    blocks = len(bounds) * world
    return ray.data.range(blocks, override_num_blocks=blocks).map_batches(
        read, batch_size=None, batch_format="pyarrow", zero_copy_batch=True
    )


def ray_batches(tables: Iterator[pa.Table]) -> Iterator[MicroBatch]:
    """Micro-batches of the tables that a rank's shard of ``ray_dataset`` yields."""
    for table in tables:
        yield from _from_table(table)


def _chunks(start: int, stop: int) -> list[tuple[int, int]]:
    bounds = [start, *range(min(start + _FIRST_CHUNK, stop), stop, _CHUNK), stop]
    return [(first, last) for first, last in pairwise(bounds) if first < last]


def _read_chunk(stream: Stream, start: int, stop: int, rank: int, world: int) -> list[MicroBatch]:
    plan, kind = plan_of(stream), KINDS[open_dataset(stream.path).kind]
    per_step = stream.settings.micro_batches
    places = [(step, index) for step in range(start, stop) for index in range(rank, per_step, world)]
    planned = [plan.rows(step, index) for step, index in places]
    chosen = [rows if len(rows) else plan.rows(step, 0)[:1] for (step, _), rows in zip(places, planned, strict=True)]
    found = _read_rows(stream, np.unique(np.concatenate(chosen)), kind.columns)
    made = []
    for (step, index), real, rows in zip(places, planned, chosen, strict=True):
        arrays = kind.pack([found[row] for row in rows.tolist()], stream.source)
        made.append(MicroBatch(step, index, rank, plan.weight(step), bool(len(real)), digest(arrays), arrays))
    return made


def _read_rows(stream: Stream, rows: np.ndarray, columns: tuple[str, ...]) -> dict[int, Arrays]:
    """Columns of ``rows`` (ascending row numbers of the split), one row group in memory at a time."""
    files, groups, ends = _layout(stream.path, stream.split)
    found: dict[int, Arrays] = {}
    for group, members in _runs(np.searchsorted(ends, rows, side="right"), rows):
        file, number, size = groups[group]
        with pq.ParquetFile(files[file], metadata=_metadata(files[file]), memory_map=True) as reader:
            table = reader.read_row_group(number, columns=list(columns))
        table = table.take(pa.array(members - (ends[group] - size)))
        found.update(zip(members.tolist(), table_rows(table), strict=True))
    return found


@lru_cache(maxsize=4)
def _layout(path: str, split: str) -> tuple[list[Path], list[tuple[int, int, int]], np.ndarray]:
    """Files of a split, its row groups, and the row after each row group."""
    dataset = open_dataset(path)
    groups = dataset.row_groups(split)
    return dataset.files(split), groups, np.cumsum([size for _, _, size in groups])


@lru_cache(maxsize=64)
def _metadata(file: Path) -> pq.FileMetaData:
    return pq.read_metadata(file)


def _runs(labels: np.ndarray, values: np.ndarray) -> Iterator[tuple[int, np.ndarray]]:
    """``values`` split where the ascending ``labels`` change, with the label of each part."""
    starts = np.flatnonzero(np.diff(labels, prepend=-1))
    return zip(labels[starts].tolist(), np.split(values, starts[1:]), strict=True)


def _to_table(made: list[MicroBatch]) -> pa.Table:
    """One row a micro-batch: its scalars, and a list column for each of its arrays."""
    columns = {name: pa.array([getattr(m, name) for m in made]) for name in _SCALARS}
    for name in made[0].arrays:
        parts = [m.arrays[name] for m in made]
        offsets = np.concatenate([[0], np.cumsum([len(part) for part in parts])])
        columns[name] = pa.ListArray.from_arrays(pa.array(offsets, pa.int32()), pa.array(np.concatenate(parts)))
    return pa.table(columns)


def _from_table(table: pa.Table) -> Iterator[MicroBatch]:
    for row in table_rows(table):
        scalars = {name: row.pop(name) for name in _SCALARS}
        yield MicroBatch(**scalars, arrays=row)
