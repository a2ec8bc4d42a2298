"""The Ray Data job: raw clusters in, Parquet shards, lengths, rejected rows and the manifest out.

A reading task for each source yields chunks of one split; a writing task turns each chunk into one shard. Nothing but
counters comes back to the driver, so its memory does not grow with the corpus, nor do the tasks' with their sources.
"""

import hashlib
import json
import pickle
import shutil
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from raysum.data.dataset import FORMAT, MANIFEST, REJECTED, ROW_GROUP, SCHEMA
from raysum.data.recipe import Recipe
from raysum.data.vocabulary import Vocabulary
from raysum.errors import UserError
from raysum.prepare.pipeline import Rejected, Row, prepare_counted
from raysum.prepare.sources.files import Record, Source, cluster_id
from raysum.prepare.splits import SPLITS, Splitting
from raysum.run import write_json
from raysum.runtime.progress import bar

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

    name: str  # of its files, sorts as the corpus does
    split: str
    rows: int = 0
    counts: Counter[str] = field(default_factory=Counter)
    rejected: Counter[str] = field(default_factory=Counter)
    first_rejected: dict[str, str] = field(default_factory=dict)  # by reason: where, and the detail
    content: str = ""  # hash of the rows' tokens
    problem: str = ""  # for which the whole job stops


def write_shards(
    sources: list[Source],
    folder: Path,
    recipe: Recipe,
    vocabulary: Vocabulary,
    splitting: Splitting,
    max_rejected: float,
    kept: Path,
) -> dict[str, Any]:
    """Fill ``folder`` with the shards of ``sources`` and return the manifest written there. Ray must be running.

    Rows keep the order of the sources. Raises UserError where a source is damaged, the folder cannot be written, no
    cluster is left, or more than the share ``max_rejected`` is rejected: those are then written to the file ``kept``.
    """
    parts = []
    with bar(label="prepare", unit="cluster") as shown:
        for part in _run(sources, folder, recipe, vocabulary, splitting):
            if part.problem:
                raise UserError(part.problem)
            parts.append(part)
            shown.update(part.rows + part.rejected.total())
    parts.sort(key=lambda part: part.name)
    _join_rejected(folder, parts)
    _check_rejected(parts, max_rejected, folder / REJECTED, kept)
    manifest = {
        "format": FORMAT,
        "kind": "summarization",
        "fingerprint": _fingerprint(recipe, parts),
        "recipe": recipe.model_dump(),
        "pieces": len(vocabulary),
        "sources": [str(source.path) for source in sources],
        "rows_in": sum(part.rows + part.rejected.total() for part in parts),
        "rows": sum(part.rows for part in parts),
        "rejected": dict(_total(part.rejected for part in parts).most_common()),
        "splits": {split: _finish_split(folder, split, parts) for split in SPLITS if _has_rows(split, parts)},
    }
    write_json(folder / MANIFEST, manifest)
    return manifest


def _run(
    sources: list[Source], folder: Path, recipe: Recipe, vocabulary: Vocabulary, splitting: Splitting
) -> Iterator[Part]:
    """The parts as they are written, in any order."""
    import ray.data

    def read(batch: pa.Table) -> Iterator[pa.Table]:
        for number in batch.column("source").to_pylist():
            yield from _read_chunks(number, sources[number], splitting)

    def write(chunks: pa.Table) -> pa.Table:
        parts = [_write_chunk(chunk, folder, recipe, vocabulary) for chunk in chunks.to_pylist()]
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


def _write_chunk(chunk: dict[str, Any], folder: Path, recipe: Recipe, vocabulary: Vocabulary) -> Part:
    part = Part(chunk["name"], chunk["split"], problem=chunk["problem"])
    if part.problem:
        return part
    rows: list[Row] = []
    rejected: list[str] = []
    for record in pickle.loads(chunk["records"]):  # written by _read_chunks, on the same cluster
        try:
            if record.problem:
                raise Rejected(record.problem, record.detail)
            raw = record.raw | {"id": cluster_id(record)} if isinstance(record.raw, dict) else record.raw
            row, counts = prepare_counted(raw, recipe, vocabulary)
            rows.append(row)
            part.counts += counts
        except Rejected as error:
            part.rejected[error.reason] += 1
            part.first_rejected.setdefault(error.reason, ", ".join(filter(None, (record.where, error.detail))))
            rejected.append(_rejected_line(record, error))
    part.rows = len(rows)
    try:
        _write_files(folder, part, rows, rejected)
    except OSError as error:
        part.problem = f"cannot write to {folder.parent} ({error.strerror}); free space there or choose another --out"
    return part


def _rejected_line(record: Record, error: Rejected) -> str:
    line = {"where": record.where, "reason": error.reason, "detail": error.detail, "row": record.raw}
    return json.dumps(line, default=str) + "\n"


def _write_files(folder: Path, part: Part, rows: list[Row], rejected: list[str]) -> None:
    """The part's shard, the lengths of its rows (as in Dataset.lengths) and its rejected rows, where there are any."""
    if rejected:
        (folder / f"{part.name}.rejected").write_text("".join(rejected), encoding="utf-8")
    if not rows:
        return
    columns = {column.name: pa.array([row[column.name] for row in rows], column.type) for column in SCHEMA}
    table = pa.table(columns, schema=SCHEMA)
    pq.write_table(table, folder / f"{part.name}.shard", row_group_size=ROW_GROUP, compression="zstd")
    lengths = [(len(row["ids"]), len(row["document"]), len(row["target_ids"])) for row in rows]
    np.save(folder / f"{part.name}.npy", np.array(lengths, np.int32))
    digest = hashlib.sha256()
    for row in rows:
        digest.update(row["id"].encode())
        for name in ("ids", "paragraph_offsets", "target_ids"):
            digest.update(row[name].tobytes())
    part.content = digest.hexdigest()


def _finish_split(folder: Path, split: str, parts: list[Part]) -> dict[str, Any]:
    """Give the split's shards their names, join their lengths; the split's entry in the manifest."""
    own = [part for part in parts if part.split == split and part.rows]
    shards = []
    for number, part in enumerate(own):
        name = f"{split}-{number:05d}.parquet"
        (folder / f"{part.name}.shard").rename(folder / name)
        shards.append({"file": name, "rows": part.rows})
    lengths = [folder / f"{part.name}.npy" for part in own]
    np.save(folder / f"{split}.lengths.npy", np.concatenate([np.load(file) for file in lengths]))
    for file in lengths:
        file.unlink()
    counts = _total(part.counts for part in own)
    return {"rows": sum(part.rows for part in own), "shards": shards, "counts": dict(counts)}


def _join_rejected(folder: Path, parts: list[Part]) -> None:
    with (folder / REJECTED).open("wb") as joined:
        for part in parts:
            if part.rejected:
                file = folder / f"{part.name}.rejected"
                joined.write(file.read_bytes())
                file.unlink()


def _check_rejected(parts: list[Part], most: float, written: Path, kept: Path) -> None:
    rejected = _total(part.rejected for part in parts)
    rows_in = sum(part.rows for part in parts) + rejected.total()
    if rejected.total() <= most * rows_in and rejected.total() < rows_in:
        return
    first: dict[str, str] = {}
    for part in parts:
        first = part.first_rejected | first
    reasons = "; ".join(f"{count} {reason} (first: {first[reason]})" for reason, count in rejected.most_common(4))
    limit = f"more than --max-rejected {most:g}" if rejected.total() < rows_in else "so nothing is left"
    shutil.move(written, kept)
    raise UserError(
        f"{rejected.total()} of {rows_in} clusters are rejected, {limit}: {reasons}. Mend these rows; all are in {kept}"
    )


def _fingerprint(recipe: Recipe, parts: list[Part]) -> str:
    content = [recipe.model_dump_json(), *(f"{part.split} {part.content}" for part in parts if part.rows)]
    return hashlib.sha256("\n".join(content).encode()).hexdigest()


def _has_rows(split: str, parts: list[Part]) -> bool:
    return any(part.split == split and part.rows for part in parts)


def _total(counters: Iterator[Counter[str]]) -> Counter[str]:
    return sum(counters, Counter())
