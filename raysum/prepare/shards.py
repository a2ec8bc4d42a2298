"""The Ray Data job: raw clusters in, a dataset and the rejected rows out.

A reading task for each source yields chunks of one split; a writing task turns each chunk into one shard. Nothing but
counters comes back to the driver, so its memory does not grow with the corpus, nor do the tasks' with their sources.
"""

import json
import pickle
import shutil
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa

from raysum.data.dataset import REJECTED, ROW_GROUP, Dataset
from raysum.data.rows import Row, table_of
from raysum.data.writer import DatasetWriter, Shard
from raysum.errors import UserError
from raysum.prepare.pipeline import Rejected, prepare_counted
from raysum.prepare.sources.find import Source
from raysum.prepare.sources.record import Record, cluster_id
from raysum.prepare.splits import SPLITS, Splitting
from raysum.runtime.progress import bar
from raysum.runtime.silence import quiet_data

_CHUNK_ROWS = 16 * ROW_GROUP
# Characters of raw clusters in a chunk, at most. The first chunks of a source are smaller, so that a small corpus gives
# every core something to do.
_FIRST_CHUNK, _LARGEST_CHUNK = 4 << 20, 32 << 20
# Of a CPU. Reading mostly waits; with these shares n CPUs run one reading and n writing tasks, also where n is 1. As
# they differ, Ray Data does not fuse the two steps, which would prepare each source on one core.
_READING, _WRITING = 0.1, 0.9


@dataclass
class Part:
    """What a writing task says of one chunk."""

    shard: Shard
    rejected: Counter[str] = field(default_factory=Counter)
    first_rejected: dict[str, str] = field(default_factory=dict)  # by reason: where, and the detail
    problem: str = ""  # for which the whole job stops

    @property
    def clusters(self) -> int:
        return self.shard.rows + self.rejected.total()


@dataclass(frozen=True)
class Rejects:
    """At most the share ``most`` of the clusters may be rejected. ``kept`` is where their rows go if there are more."""

    most: float
    kept: Path

    def check(self, folder: Path, parts: list[Part]) -> None:
        """Join the parts' rejected rows in ``folder``. Raises UserError where they are too many."""
        joined = folder / REJECTED
        with joined.open("wb") as file:
            for part in parts:
                if part.rejected:
                    written = _rejected_file(folder, part)
                    file.write(written.read_bytes())
                    written.unlink()
        rejected, rows_in = _total(part.rejected for part in parts), sum(part.clusters for part in parts)
        if rejected.total() <= self.most * rows_in and rejected.total() < rows_in:
            return
        first: dict[str, str] = {}
        for part in parts:
            first = part.first_rejected | first
        reasons = "; ".join(f"{count} {reason} (first: {first[reason]})" for reason, count in rejected.most_common(4))
        limit = f"more than --max-rejected {self.most:g}" if rejected.total() < rows_in else "so nothing is left"
        shutil.move(joined, self.kept)
        raise UserError(
            f"{rejected.total()} of {rows_in} clusters are rejected, {limit}: {reasons}. "
            f"Mend these rows; all are in {self.kept}"
        )


def write_shards(sources: list[Source], writer: DatasetWriter, splitting: Splitting, rejects: Rejects) -> Dataset:
    """Finish the dataset of ``sources``. Ray must be running.

    Rows keep the order of the sources. Raises UserError where a source is damaged, the folder cannot be written, no
    cluster is left, or too many are rejected.
    """
    parts = []
    with bar(label="prepare", unit="cluster") as shown:
        for part in _run(sources, writer, splitting):
            if part.problem:
                raise UserError(part.problem)
            parts.append(part)
            shown.update(part.clusters)
    parts.sort(key=lambda part: part.shard.name)
    rejects.check(writer.folder, parts)
    return writer.finish(
        [part.shard for part in parts],
        sources=[str(source.path) for source in sources],
        rows_in=sum(part.clusters for part in parts),
        rejected=dict(_total(part.rejected for part in parts).most_common()),
    )


def _run(sources: list[Source], writer: DatasetWriter, splitting: Splitting) -> Iterator[Part]:
    """The parts as they are written, in any order."""
    import ray.data

    quiet_data()

    def read(batch: pa.Table) -> Iterator[pa.Table]:
        for number in batch.column("source").to_pylist():
            yield from _read_chunks(number, sources[number], splitting)

    def write(chunks: pa.Table) -> pa.Table:
        parts = [_write_chunk(chunk, writer) for chunk in chunks.to_pylist()]
        return pa.table({"part": [pickle.dumps(part) for part in parts]})

    numbers = [{"source": number} for number in range(len(sources))]
    dataset = ray.data.from_items(numbers, override_num_blocks=len(sources))
    dataset.context.target_max_block_size = 1  # byte: every chunk is a block of its own, and so a task of its own
    chunks = dataset.map_batches(read, batch_size=1, batch_format="pyarrow", num_cpus=_READING)
    written = chunks.map_batches(write, batch_size=None, batch_format="pyarrow", num_cpus=_WRITING)
    for row in written.iter_rows():
        yield pickle.loads(row["part"])


def _read_chunks(number: int, source: Source, splitting: Splitting) -> Iterator[pa.Table]:
    """Tables of one row: the pickled records of a chunk. A damaged source gives a chunk that says so."""
    held: dict[str, list[Record]] = {split: [] for split in SPLITS}
    sizes, made = Counter[str](), Counter[str]()

    def chunk(split: str) -> pa.Table:
        records, held[split] = held[split], []
        sizes[split] = 0
        made[split] += 1
        return _chunk_table(f"{split}-{number:06d}-{made[split]:06d}", split, pickle.dumps(records), "")

    try:
        for record in source.records():
            split, record = _assigned(record, source, splitting)
            held[split].append(record)
            sizes[split] += _size(record.raw)
            most = min(_FIRST_CHUNK * (1 + made[split]), _LARGEST_CHUNK)
            if len(held[split]) == _CHUNK_ROWS or sizes[split] >= most:
                yield chunk(split)
    except UserError as error:
        yield _chunk_table("", "", b"", str(error))
        return
    for split in SPLITS:
        if held[split]:
            yield chunk(split)


def _chunk_table(name: str, split: str, records: bytes, problem: str) -> pa.Table:
    binary = pa.array([records], pa.large_binary())
    return pa.table({"name": [name], "split": [split], "records": binary, "problem": [problem]})


def _assigned(record: Record, source: Source, splitting: Splitting) -> tuple[str, Record]:
    """The record and its split; a row whose split is none is marked as a problem."""
    told = record.raw.get("split") if isinstance(record.raw, dict) else None
    split = splitting.of(cluster_id(record), told, source.split)
    if split:
        return split, record
    return "train", Record(record.where, record.raw, f"split is none of {', '.join(SPLITS)}", repr(told))


def _size(raw: Any) -> int:
    """Characters of the texts in a raw cluster, about."""
    if isinstance(raw, dict):
        return sum(_size(value) for value in raw.values())
    return sum(_size(value) for value in raw) if isinstance(raw, list) else len(str(raw))


def _write_chunk(chunk: dict[str, Any], writer: DatasetWriter) -> Part:
    part = Part(Shard(chunk["name"], chunk["split"]), problem=chunk["problem"])
    if part.problem:
        return part
    rows: list[Row] = []
    counts: Counter[str] = Counter()
    rejected: list[str] = []
    for record in pickle.loads(chunk["records"]):  # written by _read_chunks, on the same cluster
        try:
            if record.problem:
                raise Rejected(record.problem, record.detail)
            raw = record.raw | {"id": cluster_id(record)} if isinstance(record.raw, dict) else record.raw
            row, found = prepare_counted(raw, writer.recipe, writer.vocabulary)
            rows.append(row)
            counts += found
        except Rejected as error:
            part.rejected[error.reason] += 1
            part.first_rejected.setdefault(error.reason, ", ".join(filter(None, (record.where, error.detail))))
            rejected.append(_rejected_line(record, error))
    try:
        if rejected:
            _rejected_file(writer.folder, part).write_text("".join(rejected), encoding="utf-8")
        if rows:
            part.shard = writer.add(part.shard.name, part.shard.split, table_of(rows, writer.kind))
            part.shard.counts = counts
    except OSError as error:
        place = writer.folder.parent
        part.problem = f"cannot write to {place} ({error.strerror}); free space there or choose another --out"
    return part


def _rejected_line(record: Record, error: Rejected) -> str:
    line = {"where": record.where, "reason": error.reason, "detail": error.detail, "row": record.raw}
    return json.dumps(line, default=str) + "\n"


def _rejected_file(folder: Path, part: Part) -> Path:
    return folder / f"{part.shard.name}.rejected"


def _total(counters: Iterator[Counter[str]]) -> Counter[str]:
    return sum(counters, Counter())
