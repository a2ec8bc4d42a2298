"""Write the shards of a dataset and its rejected rows from raw clusters, in this process or by Ray Data.

Each source, or group of small sources, is read in chunks of one split, and each chunk becomes one shard. On Ray,
reading a group and writing a shard are tasks. Only counters return to the driver, so its memory does not grow with the
corpus, and the memory of a task does not grow with its source. The same sources and settings always give the same
chunks, and a finished chunk has a note with the results of its clusters and the checksums of its files: after a kill,
chunks with a note are skipped.
"""

import json
import pickle
import shutil
from collections import ChainMap, Counter, defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from raysum.data.dataset import REJECTED, ROW_GROUP, VOCABULARY
from raysum.data.rows import Row, table_of
from raysum.data.writer import DatasetWriter, Shard
from raysum.errors import UserError
from raysum.prepare.config import PrepareConfig
from raysum.prepare.passages import MAX_SENTENCES
from raysum.prepare.row_builder import RowBuilder
from raysum.runtime.checksums import check_file, checksum
from raysum.runtime.failures import Failure, unpickled
from raysum.runtime.placement import share
from raysum.runtime.processes import configure_process, quiet_data
from raysum.runtime.progress import bar, say
from raysum.runtime.storage import read_json, write_text
from raysum.sources.find import RawSource, in_groups
from raysum.sources.record import SPLITS, Record, Rejected

NOTE = ".done"  # suffix of the note of a finished chunk
_FILES = (".shard", ".npy", ".rejected")  # of a chunk, as far as it has them
_CHUNK_ROWS = 16 * ROW_GROUP
# Maximum characters of raw clusters in a chunk. The first chunks of a source are smaller, so that a small corpus gives
# work to every core.
_FIRST_CHUNK, _LARGEST_CHUNK = 4 << 20, 32 << 20
# Shares of a CPU. Reading mostly waits: with these shares, n CPUs run one reading and n writing tasks, also if n is 1.
# They must differ, because Ray Data would fuse equal steps and prepare each source on one core.
_READING, _WRITING = 0.1, 0.9
_TOO_LARGE = "too large for the memory"
_TEACHER, _MAX_NAME = "summaries by ", 200  # prefix of the counts of references by teachers; characters of a name


@dataclass
class Part:
    """The progress of a chunk: its shard and the results of its clusters."""

    shard: Shard
    kept: int = 0  # clusters that gave rows
    rejected: Counter[str] = field(default_factory=Counter)
    size: int = 0  # bytes of text read from the source
    first_rejected: dict[str, str] = field(default_factory=dict)  # position and detail by reason

    @property
    def clusters(self) -> int:
        return self.kept + self.rejected.total()


def write_shards(
    sources: list[RawSource], writer: DatasetWriter, config: PrepareConfig, rejected_file: Path, on_ray: bool
) -> None:
    """Write the dataset of ``sources``, with the same result ``on_ray``, which must be running, or in this process.

    Rows keep the order of the sources. Raises UserError if a source is damaged, if the folder cannot be written, or if
    all or too many clusters are rejected: their rows are then in ``rejected_file``.
    """
    parts, size = [], sum(source.size for source in sources)
    with bar(total=size, label="prepare", unit="B") as progress:
        for part in (_run_on_ray if on_ray else _run_here)(sources, writer, config):
            parts.append(part)
            progress.update(min(part.size, size - progress.n))
        progress.update(size - progress.n)  # the sizes of records are estimates
    parts.sort(key=lambda part: part.shard.name)
    rows_in = sum(part.clusters for part in parts)
    rejected = _collect_rejected(parts, writer, config, rejected_file)
    shards = [part.shard for part in parts]
    counts = sum((shard.counts for shard in shards), Counter[str]())
    if without := counts["without_summary"]:
        say(f"{without} of {rows_in} clusters have no `summary`: training cannot use them")
    if (without := counts["without_title"]) and config.ranker == "tfidf":
        say(f"{without} of {rows_in} clusters have no `title`: LexRank orders their paragraphs, unless --ranker none")
    if absent := [name for name in config.keep if not counts[f"keep:{name}"]]:
        say(f"No cluster has a value in --keep {','.join(absent)}; check the names of the fields")
    paths = [source.name.encode(errors="backslashreplace").decode() for source in sources]
    entries = {"rows_in": rows_in, "rejected": dict(rejected.most_common()), "words_kept": _kept_words(counts, config)}
    if config.kind != "pretraining":  # the kind with several rows per cluster
        entries["repeated_ids"] = _repeated_ids(writer, shards)
    writer.finish(shards, sources=paths, **entries)
    for pattern in ("*.rejected", f"*{NOTE}", "*.partial"):
        for file in writer.folder.glob(pattern):
            file.unlink()


def _collect_rejected(
    parts: list[Part], writer: DatasetWriter, config: PrepareConfig, rejected_file: Path
) -> Counter[str]:
    """Join the rejected rows of all parts and count them by reason. Raises UserError if there are too many."""
    joined = writer.folder / REJECTED
    with joined.open("wb") as file:
        for part in parts:
            if part.rejected:
                file.write((writer.folder / f"{part.shard.name}.rejected").read_bytes())
    rows_in = sum(part.clusters for part in parts)
    rejected, most = sum((part.rejected for part in parts), Counter[str]()), config.max_rejected
    if rejected.total() > most * rows_in or rejected.total() == rows_in:
        shutil.move(joined, rejected_file)
        first = ChainMap(*(part.first_rejected for part in parts))
        reasons = "; ".join(f"{count} {reason} (first: {first[reason]})" for reason, count in rejected.most_common(4))
        limit = f"more than --max-rejected {most:g}" if rejected.total() < rows_in else "so nothing is left"
        raise UserError(
            f"{rejected.total()} of {rows_in} clusters are rejected, {limit}: {reasons}. "
            f"Correct these rows; all are in {rejected_file}"
        )
    return rejected


def _repeated_ids(writer: DatasetWriter, shards: list[Shard]) -> int:
    """Report and return the number of clusters with the id of an earlier one, in any split."""
    ids = pd.Series(np.concatenate([writer.ids(shard) for shard in shards if shard.rows]))
    repeated = ids[ids.duplicated()]
    if len(repeated):
        count = f"{len(repeated)} of {len(ids)} clusters"
        say(f"{count} have the id of another, such as {repeated.iloc[0]!r}: make ids unique")
    return len(repeated)


def _kept_words(counts: Counter[str], config: PrepareConfig) -> float:
    """Return the share of the sources' words that the rows keep, and report where the other words are."""
    total = max(counts["words"] + counts["words_cleaned_away"], 1)
    cut = counts["tokens_cut"] / max(counts["tokens"], 1) * (counts["words"] - counts["words_ranked_out"])
    unit, ranked_out, cleaned_away = "sentence", f"beyond the first {MAX_SENTENCES} sentences", "no sentence"
    if config.kind in ("summarization", "ranking"):
        unit, ranked_out = "paragraph", f"in paragraphs that rank below --max-paragraphs {config.max_paragraphs}"
        cleaned_away = "clones of the summary, and short or repeated paragraphs"
    lost = {
        ranked_out: counts["words_ranked_out"],
        f"beyond --paragraph-tokens {config.paragraph_tokens} of a {unit}": cut,
        f"in {cleaned_away}": counts["words_cleaned_away"],
    }
    kept = 1 - sum(lost.values()) / total
    losses = (f"{100 * words / total:.1f} % are {where}" for where, words in lost.items() if words >= 0.0005 * total)
    say("; ".join((f"{100 * kept:.1f} % of the sources' words are kept", *losses)))
    return round(kept, 4)


class _ChunkWriter:
    """Writes chunks, as an actor if they need a learned ranker, which it loads once."""

    def __init__(self, writer: DatasetWriter, is_actor: bool = False):
        if is_actor:
            configure_process(1, neighbours=1)
        ranker = None
        if writer.recipe.ranker == "learned":
            from raysum.prepare.learned import LearnedRanker  # loads torch

            ranker = LearnedRanker.beside(writer.folder / VOCABULARY, writer.recipe)
        self._writer, self._builder = writer, RowBuilder(writer.recipe, writer.vocabulary, ranker)

    def __call__(self, row: dict[str, Any]) -> dict[str, Any]:
        """Return the part or failure of a chunk, both pickled for Ray."""
        chunk = pickle.loads(row["chunk"])  # written by read, on the same cluster
        try:
            return {"part": pickle.dumps(chunk if isinstance(chunk, Failure) else self.finished(*chunk))}
        except Exception as error:
            return {"part": pickle.dumps(Failure.of(error))}

    def finished(self, part: Part, records: list[Record]) -> Part:
        """Return the finished ``part``: of an earlier start if there is one, or written now."""
        folder, name = self._writer.folder, part.shard.name
        if (earlier := _read_note(folder, name)) is not None:
            return earlier
        rows, rejected, counts = list[Row](), list[str](), Counter[str]()
        for record in records:
            try:
                rows += self._rows(record, counts)
                part.kept += 1
            except (Rejected, MemoryError) as error:
                problem = error if isinstance(error, Rejected) else Rejected(_TOO_LARGE, str(error))
                part.rejected[problem.reason] += 1
                position = ", ".join(filter(None, (record.where, problem.detail)))
                part.first_rejected.setdefault(problem.reason, position)
                line = {"where": record.where, "reason": problem.reason, "detail": problem.detail, "row": record.raw}
                rejected.append(json.dumps(line, default=str) + "\n")
        try:
            if rejected:
                (folder / f"{name}.rejected").write_text("".join(rejected), encoding="utf-8")
            if rows:
                part.shard = self._writer.add(name, part.shard.split, [table_of(rows, self._writer.kind)])
                part.shard.counts = counts
            _write_note(folder, part)
        except OSError as error:
            reason = f"cannot write to {folder.parent} ({error.strerror})"
            raise UserError(f"{reason}; free space there or choose another --out") from None
        return part

    def _rows(self, record: Record, counts: Counter[str]) -> list[Row]:
        """Return the rows of a cluster and add to ``counts``. Raises Rejected if it gives none."""
        raw = record.cluster()
        rows, cluster_counts = self._builder.rows(raw)
        has_summary = raw.get("summary") is not None or raw.get("summaries")
        if self._writer.kind != "pretraining" and has_summary and not len(rows[0]["target_ids"]):
            raise Rejected("summary is empty")
        counts += cluster_counts
        teacher = raw.get("teacher")  # model and prompt of `raysum teach`
        if isinstance(teacher, dict) and raw.get("summary") and "model" in teacher:
            counts[f"{_TEACHER}{teacher['model']}, prompt {teacher.get('prompt')}"[:_MAX_NAME]] += 1
        return rows


def _run_here(sources: list[RawSource], writer: DatasetWriter, config: PrepareConfig) -> Iterator[Part]:
    chunks = _ChunkWriter(writer)
    for number, group in enumerate(in_groups(sources)):
        for part, records in _read_chunks(number, group, config):
            yield chunks.finished(part, records)


def _run_on_ray(sources: list[RawSource], writer: DatasetWriter, config: PrepareConfig) -> Iterator[Part]:
    """Yield the parts in any order."""
    import ray.data

    quiet_data()
    groups = in_groups(sources)

    def read(row: dict[str, Any]) -> Iterator[dict[str, Any]]:
        return Failure.in_rows(_read_chunks(row["group"], groups[row["group"]], config), "chunk")

    numbers = range(len(groups))
    dataset = ray.data.from_items([{"group": number} for number in numbers], override_num_blocks=len(numbers))
    dataset.context.target_max_block_size = 1  # byte: every chunk is a block, and therefore a task
    most = max(1, int(ray.cluster_resources()["CPU"]))
    # Without this limit, tasks of a tenth of a CPU would start ten processes per CPU before the first write.
    chunks = dataset.flat_map(read, num_cpus=_READING, compute=ray.data.TaskPoolStrategy(min(most, len(groups))))
    if writer.recipe.ranker == "learned":
        pool: dict[str, Any] = {"concurrency": (1, most), "num_gpus": share("labeller", most).gpus}
        pool |= {"fn": _ChunkWriter, "fn_constructor_args": (writer, True)}
    else:
        pool = {"fn": _ChunkWriter(writer).__call__}
    for row in chunks.map(num_cpus=_WRITING, **pool).iter_rows():
        yield unpickled(row["part"])


def _read_chunks(number: int, group: list[RawSource], config: PrepareConfig) -> Iterator[tuple[Part, list[Record]]]:
    """Yield the chunks of the group of that number. Raises UserError if a source is damaged."""
    waiting = defaultdict[str, list[Record]](list)
    sizes, read, made = Counter[str](), Counter[str](), Counter[str]()

    def chunk(split: str) -> tuple[Part, list[Record]]:
        made[split] += 1
        del sizes[split]
        shard = Shard(f"{split}-{number:06d}-{made[split]:06d}", split)
        return Part(shard, size=read.pop(split)), waiting.pop(split)

    records = (config.split_record(record, source.split) for source in group for record in source.records())
    for split, record in records:
        waiting[split].append(record)
        size = _size_of(record.raw)
        sizes[split] += size
        read[split] += record.size or size
        most = min(_FIRST_CHUNK * (1 + made[split]), _LARGEST_CHUNK)
        if len(waiting[split]) == _CHUNK_ROWS or sizes[split] >= most:
            yield chunk(split)
    yield from (chunk(split) for split in SPLITS if split in waiting)


def _size_of(raw: Any) -> int:
    """Return the approximate number of characters of a raw cluster's texts."""
    parts = [*raw.values()] if isinstance(raw, dict) else raw
    return sum(map(_size_of, parts)) if isinstance(parts, list) else len(str(parts))


def _write_note(folder: Path, part: Part) -> None:
    """Write the note of a ``part`` with complete files. Raises OSError if the disk is full."""
    files = [folder / (part.shard.name + suffix) for suffix in _FILES]
    checksums = {file.name: checksum(file, flush=True) for file in files if file.exists()}
    content = {"part": {**vars(part), "shard": vars(part.shard)}, "files": checksums}
    write_text(folder / (part.shard.name + NOTE), json.dumps(content))  # which escapes invalid Unicode


def _read_note(folder: Path, name: str) -> Part | None:
    """Return the finished part of that ``name``; None if there is none, or if a file is missing or damaged."""
    try:
        content = read_json(folder / (name + NOTE))
        for file, checksums in content["files"].items():
            check_file(folder / file, checksums)
        part, shard = content["part"], content["part"]["shard"]
        shard = Shard(**shard | {"counts": Counter(shard["counts"])})
        return Part(**part | {"shard": shard, "rejected": Counter(part["rejected"])})
    except (UserError, KeyError, TypeError, AttributeError):
        return None
