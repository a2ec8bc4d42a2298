"""A stream: the data to read, and the plan of its batches."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache

import numpy as np

from raysum.config.decoding import SourceConfig
from raysum.data.dataset import MANIFEST, Dataset, local_folder
from raysum.stream.collators.base import Kind
from raysum.stream.plan import Mix, Plan, PlanSettings


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


def plan_of(stream: Stream) -> Plan:
    """Return the plan of a stream. Raises ValueError if no row has a target."""
    return _plan(stream, tuple(open_dataset(part.path) for part in stream.parts))


@lru_cache(maxsize=4)
def _plan(stream: Stream, datasets: tuple[Dataset, ...]) -> Plan:
    parts = [_plan_inputs(part, dataset) for part, dataset in zip(stream.parts, datasets, strict=True)]
    costs, weights, keep, groups = map(_joined, zip(*parts, strict=True))
    mix = Mix(tuple(len(part_groups) for *_, part_groups in parts), stream.shares) if stream.mixed else None
    return Plan(costs, weights, keep, groups, stream.settings, stream.origin, mix)


def _plan_inputs(stream: Stream, dataset: Dataset) -> tuple[np.ndarray, ...]:
    """Return costs, weights, the mask of kept rows and the row group sizes of one dataset."""
    lengths, groups = dataset.lengths(stream.split), [rows for _, _, rows in dataset.row_groups(stream.split)]
    targets = dataset.reference_lengths(stream.split) if stream.kind.draws_references else lengths[:, 2:]
    by_reference = [stream.kind.costs(np.column_stack([lengths[:, :2], target]), stream.source) for target in targets.T]
    costs, weights = (np.stack(values, 1) for values in zip(*by_reference, strict=True))
    keep = np.zeros(len(lengths), bool)
    keep[rows_with_targets(stream)] = True
    return costs, weights, keep, np.array(groups, np.int64)


def _joined(parts: Sequence[np.ndarray]) -> np.ndarray:
    """Return the concatenated arrays, those of references padded with zeros to the same number, flat if it is 1."""
    width = max(part[:1].size for part in parts)
    if width == 1:
        return np.concatenate([part.ravel() for part in parts])
    return np.concatenate([np.pad(part, ((0, 0), (0, width - part.shape[1]))) for part in parts])


def rows_with_targets(stream: Stream) -> np.ndarray:
    """Return the rows that a stream reads: those with a target, or ``examples`` of them, evenly sampled."""
    _, weights = stream.kind.costs(open_dataset(stream.path).lengths(stream.split), stream.source)
    rows = np.flatnonzero(weights > 0)
    if stream.examples is None or stream.examples >= len(rows):
        return rows
    return rows[np.linspace(0, len(rows) - 1, stream.examples).astype(int)]


def open_dataset(path: str) -> Dataset:
    """Return the current dataset at ``path``, the same object until its manifest changes."""
    manifest = local_folder(path) / MANIFEST
    state = manifest.stat() if manifest.exists() else None
    return _opened(path, (state.st_ino, state.st_size, state.st_mtime_ns) if state else None)


@lru_cache(maxsize=16)
def _opened(path: str, state: object) -> Dataset:
    return Dataset.open(path)
