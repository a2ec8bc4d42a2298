"""Write the shards of a dataset and its rejected rows from raw clusters, in this process or by Ray Data.

Each source is read in chunks of one split, and each chunk becomes one shard. On Ray, reading a source and writing a
shard are tasks. Only counters return to the driver, so its memory does not grow with the corpus, and the memory of a
task does not grow with its source.
"""

import json
import pickle
import reprlib
import shutil
import traceback
from collections import ChainMap, Counter
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from pandas.util import hash_array

from raysum.data.dataset import REJECTED, ROW_GROUP, VOCABULARY
from raysum.data.rows import Row, table_of
from raysum.data.writer import DatasetWriter, Shard
from raysum.errors import UserError
from raysum.prepare.config import PrepareConfig
from raysum.prepare.corpus_stats import teacher_counts
from raysum.prepare.passages import MAX_SENTENCES
from raysum.prepare.resume import Part, end_of_shards, read_note, write_note
from raysum.prepare.row_builder import prepare_rows
from raysum.runtime.placement import share
from raysum.runtime.processes import configure_process, quiet_data
from raysum.runtime.progress import bar, say
from raysum.sources.find import RawSource
from raysum.sources.record import SPLITS, Record, Rejected

if TYPE_CHECKING:
    from raysum.prepare.learned import LearnedRanker

_CHUNK_ROWS = 16 * ROW_GROUP
# Maximum characters of raw clusters in a chunk. The first chunks of a source are smaller, so that a small corpus gives
# work to every core.
_FIRST_CHUNK, _LARGEST_CHUNK = 4 << 20, 32 << 20
# Shares of a CPU. Reading mostly waits: with these shares, n CPUs run one reading and n writing tasks, also if n is 1.
# They must differ, because Ray Data would fuse equal steps and prepare each source on one core.
_READING, _WRITING = 0.1, 0.9
_TOO_LARGE = "too large for the memory"


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
            if part.problem:
                raise UserError(part.problem)
            if part.fault:
                raise RuntimeError(f"a task of prepare failed:\n{part.fault}")
            parts.append(part)
            progress.update(min(part.size, size - progress.n))
        progress.update(size - progress.n)  # the sizes of records are estimates
    parts.sort(key=lambda part: part.shard.name)
    rows_in = sum(part.clusters for part in parts)
    rejected = _collect_rejected(parts, writer, config, rejected_file)
    if without := sum(part.shard.counts["without_summary"] for part in parts):
        say(f"{without} of {rows_in} clusters have no `summary`: training cannot use them")
    without = sum(part.shard.counts["without_title"] for part in parts)
    if without and config.ranker == "tfidf":
        say(f"{without} of {rows_in} clusters have no `title`: LexRank orders their paragraphs, unless --ranker none")
    shards = [part.shard for part in parts]
    kept_words = _kept_words(sum((shard.counts for shard in shards), Counter[str]()), config)
    paths = [source.name.encode(errors="backslashreplace").decode() for source in sources]
    entries = {"rows_in": rows_in, "rejected": dict(rejected.most_common()), "words_kept": kept_words}
    if config.kind != "pretraining":  # the kind with several rows per cluster
        entries["repeated_ids"] = _repeated_ids(writer, shards)
    writer.finish(shards, sources=paths, **entries)
    for part in parts:
        _rejected_file(writer, part).unlink(missing_ok=True)
    end_of_shards(writer.folder)


def _collect_rejected(
    parts: list[Part], writer: DatasetWriter, config: PrepareConfig, rejected_file: Path
) -> Counter[str]:
    """Join the rejected rows of all parts and count them by reason. Raises UserError if there are too many."""
    joined = writer.folder / REJECTED
    with joined.open("wb") as file:
        for part in parts:
            if part.rejected:
                file.write(_rejected_file(writer, part).read_bytes())
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
    ids = [writer.ids(shard) for shard in shards if shard.rows]
    hashes, counts = np.unique(np.concatenate([hash_array(part) for part in ids]), return_counts=True)
    repeated = int(counts.sum() - len(counts))
    if repeated:
        id = next(id for part in ids for id in part[np.isin(hash_array(part), hashes[counts > 1])])
        say(f"{repeated} of {counts.sum()} clusters have the id of another, such as {id!r}: make ids unique")
    return repeated


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


def _run_here(sources: list[RawSource], writer: DatasetWriter, config: PrepareConfig) -> Iterator[Part]:
    ranker = _ranker_of(writer)
    for number, source in enumerate(sources):
        for part, records in _read_chunks(number, source, config):
            yield _finished_chunk(part, records, writer, ranker)


def _ranker_of(writer: DatasetWriter) -> "LearnedRanker | None":
    """Return the learned ranker in the folder of ``writer``; None if its recipe has none."""
    if writer.recipe.ranker != "learned":
        return None
    from raysum.prepare.learned import LearnedRanker  # loads torch

    return LearnedRanker.beside(writer.folder / VOCABULARY, writer.recipe)


class _Writing:
    """An actor that writes chunks with a learned ranker and loads the ranker once."""

    def __init__(self, writer: DatasetWriter):
        configure_process(1, neighbours=1)
        self.writer, self.ranker = writer, _ranker_of(writer)

    def __call__(self, row: dict[str, Any]) -> dict[str, Any]:
        return _written(row, self.writer, self.ranker)


def _written(row: dict[str, Any], writer: DatasetWriter, ranker: "LearnedRanker | None" = None) -> dict[str, Any]:
    part, records = pickle.loads(row["chunk"])  # written by read, on the same cluster
    try:
        part = _finished_chunk(part, records, writer, ranker)
    except Exception:
        part.fault = traceback.format_exc()
    return {"part": pickle.dumps(part)}


def _run_on_ray(sources: list[RawSource], writer: DatasetWriter, config: PrepareConfig) -> Iterator[Part]:
    """Yield the parts in any order.

    Tasks never raise: Ray cannot send an exception with invalid Unicode in its text and would wait forever.
    """
    import ray.data

    quiet_data()

    def read(row: dict[str, Any]) -> Iterator[dict[str, Any]]:
        try:
            for chunk in _read_chunks(row["source"], sources[row["source"]], config):
                yield {"chunk": pickle.dumps(chunk)}
        except Exception:
            yield {"chunk": pickle.dumps((Part(Shard("", ""), fault=traceback.format_exc()), []))}

    numbers = range(len(sources))
    dataset = ray.data.from_items([{"source": number} for number in numbers], override_num_blocks=len(numbers))
    dataset.context.target_max_block_size = 1  # byte: every chunk is a block, and therefore a task
    most = max(1, int(ray.cluster_resources()["CPU"]))
    # Without this limit, tasks of a tenth of a CPU would start ten processes per CPU before the first write.
    chunks = dataset.flat_map(read, num_cpus=_READING, compute=ray.data.TaskPoolStrategy(min(most, len(sources))))
    pool: dict[str, Any] = {"fn": partial(_written, writer=writer)}
    if writer.recipe.ranker == "learned":
        gpus = share("labeller", most).gpus
        pool = {"fn": _Writing, "fn_constructor_args": (writer,), "concurrency": (1, most), "num_gpus": gpus}
    for row in chunks.map(num_cpus=_WRITING, **pool).iter_rows():
        yield pickle.loads(row["part"])


def _read_chunks(number: int, source: RawSource, config: PrepareConfig) -> Iterator[tuple[Part, list[Record]]]:
    """Yield the chunks of the source of that number; a damaged source ends with a part that has a problem."""
    waiting: dict[str, list[Record]] = {split: [] for split in SPLITS}
    sizes, read, made = Counter[str](), Counter[str](), Counter[str]()

    def chunk(split: str) -> tuple[Part, list[Record]]:
        records, waiting[split] = waiting[split], []
        made[split] += 1
        part = Part(Shard(f"{split}-{number:06d}-{made[split]:06d}", split), size=read[split])
        sizes[split] = read[split] = 0
        return part, records

    try:
        for record in source.records():
            split = config.choose_split(record, source.split)
            if split is None:
                value = reprlib.repr(record.raw["split"])
                split, record = "train", replace(record, problem=f"split is none of {', '.join(SPLITS)}", detail=value)
            waiting[split].append(record)
            size = size_of(record.raw)
            sizes[split] += size
            read[split] += record.size or size
            most = min(_FIRST_CHUNK * (1 + made[split]), _LARGEST_CHUNK)
            if len(waiting[split]) == _CHUNK_ROWS or sizes[split] >= most:
                yield chunk(split)
    except UserError as error:
        yield Part(Shard("", ""), problem=str(error)), []
        return
    for split in SPLITS:
        if waiting[split]:
            yield chunk(split)


def size_of(raw: Any) -> int:
    """Return the approximate number of characters of a raw cluster's texts."""
    parts = [*raw.values()] if isinstance(raw, dict) else raw
    return sum(map(size_of, parts)) if isinstance(parts, list) else len(str(parts))


def _finished_chunk(
    part: Part, records: list[Record], writer: DatasetWriter, ranker: "LearnedRanker | None" = None
) -> Part:
    """Return the finished ``part``: of an earlier start if there is one, or written now."""
    if (earlier := read_note(writer.folder, part.shard.name)) is None:
        _write_chunk(part, records, writer, ranker)
    return earlier or part


def _write_chunk(
    part: Part, records: list[Record], writer: DatasetWriter, ranker: "LearnedRanker | None" = None
) -> None:
    """Write the rows and the rejected rows of a chunk, and count them in ``part``."""
    rows, rejected, counts = list[Row](), list[str](), Counter[str]()
    for record in records:
        try:
            raw = record.cluster()
            cluster_rows, cluster_counts = prepare_rows(raw, writer.recipe, writer.vocabulary, ranker)
            has_summary = raw.get("summary") is not None or raw.get("summaries")
            if writer.kind != "pretraining" and has_summary and not len(cluster_rows[0]["target_ids"]):
                raise Rejected("summary is empty")
            rows += cluster_rows
            part.kept += 1
            counts += cluster_counts + teacher_counts(raw)
        except (Rejected, MemoryError) as error:
            reason, detail = (error.reason, error.detail) if isinstance(error, Rejected) else (_TOO_LARGE, str(error))
            part.rejected[reason] += 1
            part.first_rejected.setdefault(reason, ", ".join(filter(None, (record.where, detail))))
            line = {"where": record.where, "reason": reason, "detail": detail, "row": record.raw}
            rejected.append(json.dumps(line, default=str) + "\n")
    try:
        if rejected:
            _rejected_file(writer, part).write_text("".join(rejected), encoding="utf-8")
        if rows:
            part.shard = writer.add(part.shard.name, part.shard.split, [table_of(rows, writer.kind)])
            part.shard.counts = counts
        if part.shard.name:
            write_note(writer.folder, part)
    except OSError as error:
        folder = writer.folder.parent
        part.problem = f"cannot write to {folder} ({error.strerror}); free space there or choose another --out"


def _rejected_file(writer: DatasetWriter, part: Part) -> Path:
    return writer.folder / f"{part.shard.name}.rejected"
