"""Load micro-batches by the plan: by a plain iterator, or through Ray Data for Ray Train."""

import pickle
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

import pyarrow as pa

from raysum.errors import UserError
from raysum.stream.reader import MicroBatch, Ranges, Reader
from raysum.stream.stream import Stream, plan_of

if TYPE_CHECKING:
    import ray.data

_CPUS = 0.25  # of a reading task: for scheduling only, so that readers fit beside the workers on any machine
_SPREAD = 256  # numbers of ranges in a table
_RANKS_OF_TASK = 32  # a reading task packs 20 million tokens a second, more than so many GPUs train on


class DataError(RuntimeError):
    """Damaged data that one worker has found. After a UserError, the other workers would wait forever."""


def batches(stream: Stream, rank: int, world: int, start: int, stop: int) -> Iterator[MicroBatch]:
    """Yield the micro-batches of ``rank`` in steps ``start`` to ``stop`` without Ray, and prefetch the next block."""
    coming = _blocks(stream, rank, world, start, stop)
    with ThreadPoolExecutor(1) as reader:
        waiting = reader.submit(next, coming, None)
        while (block := waiting.result()) is not None:
            waiting = reader.submit(next, coming, None)
            yield from block


def _blocks(stream: Stream, rank: int, world: int, start: int, stop: int) -> Iterator[list[MicroBatch]]:
    if start >= stop:
        return
    ranges, first = Ranges(plan_of(stream)), start
    number = ranges.number(start)
    while first < stop:
        steps = ranges.steps(number, first, stop)
        for (block,) in Reader(stream, steps, (rank,), world).blocks(is_first=first == start):
            yield block
        first, number = steps.stop, number + 1


def ray_dataset(stream: Stream, world: int, start: int, stop: int) -> "ray.data.Dataset":
    """Return a dataset for all ranks: block k is one row with micro-batches of rank ``k % world``.

    A task reads a range of steps once and yields blocks for all ranks in turn. With ``preserve_order`` and without
    locality, Ray Train's splitter gives block k to rank ``k % world``, because every rank gets equally many rows. The
    number of ranges is an upper bound, which needs no plan of later epochs; ranges after ``stop`` are empty. Planning
    takes 2.5 ms per initial block, so a task makes one-row blocks from a few tables of range numbers.
    """
    import ray.data

    ranges = Ranges(plan_of(stream))
    first = ranges.number(start)

    def read(table: pa.Table) -> Iterator[pa.Table]:
        (number,) = table["range"].to_pylist()
        ranges, ranks = Ranges(plan_of(stream)), range(world)
        try:
            steps = ranges.steps(number, start, stop)
            for block in Reader(stream, steps, ranks, world).blocks(is_first=number == first):
                yield from map(_one_row, block)
        except UserError as error:  # Ray would replace it by its own error
            yield from [_one_row(str(error))] * world

    # Not from_arrow: it needs a whole CPU to read its tables, while the workers may use all CPUs.
    numbers = [{"range": number} for number in range(first, first + ranges.most(stop - start))]
    readers = 2 + world // _RANKS_OF_TASK
    dataset = (
        ray.data.from_items(numbers, override_num_blocks=len(numbers) // _SPREAD + 1)
        .map_batches(lambda table: table, batch_size=None, batch_format="pyarrow", num_cpus=_CPUS / 2)
        .map_batches(read, batch_size=None, batch_format="pyarrow", num_cpus=_CPUS, concurrency=readers)
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
