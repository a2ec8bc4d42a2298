"""The job: raw clusters in, a dataset and the rejected rows out, in this process or by Ray Data.

Each source is read in chunks of one split, and each chunk becomes one shard; on Ray the reading of a source is a task,
and so is the writing of a shard. Nothing but counters comes back to the driver, so its memory does not grow with the
corpus, nor do the tasks' with their sources.
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
from raysum.prepare.resume import Part, end, note, recall
from raysum.prepare.row_builder import MAX_SENTENCES, prepare_rows
from raysum.runtime.log_filters import quiet_data
from raysum.runtime.placement import share
from raysum.runtime.processes import configure_process
from raysum.runtime.progress import bar, say
from raysum.sources.find import RawSource
from raysum.sources.record import SPLITS, Record, Rejected

if TYPE_CHECKING:
    from raysum.prepare.learned import LearnedRanker

_CHUNK_ROWS = 16 * ROW_GROUP
# Characters of raw clusters in a chunk, at most. The first chunks of a source are smaller, so that a small corpus gives
# every core something to do.
_FIRST_CHUNK, _LARGEST_CHUNK = 4 << 20, 32 << 20
# Of a CPU. Reading mostly waits; with these shares n CPUs run one reading and n writing tasks, also where n is 1. As
# they differ, Ray Data does not fuse the two steps, which would prepare each source on one core.
_READING, _WRITING = 0.1, 0.9
_TOO_LARGE = "too large for the memory"


def write_shards(
    sources: list[RawSource], writer: DatasetWriter, config: PrepareConfig, kept: Path, on_ray: bool
) -> None:
    """Finish the dataset of ``sources``, the same one ``on_ray``, which must be running, as in this process.

    Rows keep the order of the sources. Raises UserError where a source is damaged, the folder cannot be written, no
    cluster is left, or too many are rejected: their rows are then in the file ``kept``.
    """
    parts, size = [], sum(source.size for source in sources)
    with bar(total=size, label="prepare", unit="B") as shown:
        for part in (_run_on_ray if on_ray else _run_here)(sources, writer, config):
            if part.problem:
                raise UserError(part.problem)
            if part.fault:
                raise RuntimeError(f"a task of prepare failed:\n{part.fault}")
            parts.append(part)
            shown.update(min(part.size, size - shown.n))
        shown.update(size - shown.n)  # what each record takes is known about
    parts.sort(key=lambda part: part.shard.name)
    joined = writer.folder / REJECTED
    with joined.open("wb") as file:
        for part in parts:
            if part.rejected:
                written = _rejected_file(writer, part)
                file.write(written.read_bytes())
    rows_in = sum(part.clusters for part in parts)
    rejected, most = sum((part.rejected for part in parts), Counter[str]()), config.max_rejected
    if rejected.total() > most * rows_in or rejected.total() == rows_in:
        shutil.move(joined, kept)
        first = ChainMap(*(part.first_rejected for part in parts))
        reasons = "; ".join(f"{count} {reason} (first: {first[reason]})" for reason, count in rejected.most_common(4))
        limit = f"more than --max-rejected {most:g}" if rejected.total() < rows_in else "so nothing is left"
        raise UserError(
            f"{rejected.total()} of {rows_in} clusters are rejected, {limit}: {reasons}. "
            f"Mend these rows; all are in {kept}"
        )
    if without := sum(part.shard.counts["without_summary"] for part in parts):
        say(f"{without} of {rows_in} clusters have no `summary`: nothing can be learned from them")
    without = sum(part.shard.counts["without_title"] for part in parts)
    if without and config.ranker == "tfidf":
        say(f"{without} of {rows_in} clusters have no `title`: LexRank orders their paragraphs, unless --ranker none")
    shards = [part.shard for part in parts]
    kept_words = _kept_words(sum((shard.counts for shard in shards), Counter[str]()), config)
    paths = [source.name.encode(errors="backslashreplace").decode() for source in sources]
    told = {"rows_in": rows_in, "rejected": dict(rejected.most_common()), "words_kept": kept_words}
    if config.kind != "pretraining":  # there a cluster may have several rows
        told["repeated_ids"] = _repeated_ids(writer, shards)
    writer.finish(shards, sources=paths, **told)
    for part in parts:
        _rejected_file(writer, part).unlink(missing_ok=True)
    end(writer.folder)


def _repeated_ids(writer: DatasetWriter, shards: list[Shard]) -> int:
    """How many clusters have the id of another, also of another split; it is said."""
    ids = [writer.ids(shard) for shard in shards if shard.rows]
    found, counts = np.unique(np.concatenate([hash_array(part) for part in ids]), return_counts=True)
    repeated = int(counts.sum() - len(counts))
    if repeated:
        first = found[counts > 1]
        name = next(name for part in ids for name in part[np.isin(hash_array(part), first)])
        say(f"{repeated} of {counts.sum()} clusters have the id of another, such as {name!r}: nothing tells them apart")
    return repeated


def _kept_words(counts: Counter[str], config: PrepareConfig) -> float:
    """The share of the sources' words that the rows hold; it is said, and where the others went."""
    found = max(counts["words"] + counts["words_cleaned_away"], 1)
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
    kept = 1 - sum(lost.values()) / found
    told = (f"{100 * words / found:.1f} % are {where}" for where, words in lost.items() if words >= 0.0005 * found)
    say("; ".join((f"{100 * kept:.1f} % of the sources' words are kept", *told)))
    return round(kept, 4)


def _run_here(sources: list[RawSource], writer: DatasetWriter, config: PrepareConfig) -> Iterator[Part]:
    ranker = _ranker_of(writer)
    for number, source in enumerate(sources):
        for part, records in _read_chunks(number, source, config):
            yield _finished_chunk(part, records, writer, ranker)


def _ranker_of(writer: DatasetWriter) -> "LearnedRanker | None":
    """The learned ranker that the recipe of ``writer`` tells of, which is in the folder; None where it has none."""
    if writer.recipe.ranker != "learned":
        return None
    from raysum.prepare.learned import LearnedRanker  # loads torch

    return LearnedRanker.beside(writer.folder / VOCABULARY, writer.recipe)


class _Writing:
    """An actor that writes chunks with a learned ranker, which it loads once."""

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
    """The parts as they are written, in any order.

    No exception leaves a task: Ray cannot send one whose text is not valid Unicode, and waits for it without end.
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
    dataset.context.target_max_block_size = 1  # byte: every chunk is a block of its own, and so a task of its own
    most = max(1, int(ray.cluster_resources()["CPU"]))
    # At the beginning, when nothing is to be written, tasks of a tenth of a CPU would be ten processes for each.
    chunks = dataset.flat_map(read, num_cpus=_READING, compute=ray.data.TaskPoolStrategy(min(most, len(sources))))
    pool: dict[str, Any] = {"fn": partial(_written, writer=writer)}
    if writer.recipe.ranker == "learned":
        gpus = share("labeller", most).gpus
        pool = {"fn": _Writing, "fn_constructor_args": (writer,), "concurrency": (1, most), "num_gpus": gpus}
    for row in chunks.map(num_cpus=_WRITING, **pool).iter_rows():
        yield pickle.loads(row["part"])


def _read_chunks(number: int, source: RawSource, config: PrepareConfig) -> Iterator[tuple[Part, list[Record]]]:
    """Chunks of the source of that number; a damaged one gives a part that says so."""
    held: dict[str, list[Record]] = {split: [] for split in SPLITS}
    sizes, read, made = Counter[str](), Counter[str](), Counter[str]()

    def chunk(split: str) -> tuple[Part, list[Record]]:
        records, held[split] = held[split], []
        made[split] += 1
        part = Part(Shard(f"{split}-{number:06d}-{made[split]:06d}", split), size=read[split])
        sizes[split] = read[split] = 0
        return part, records

    try:
        for record in source.records():
            split = config.choose_split(record, source.split)
            if split is None:
                told = reprlib.repr(record.raw["split"])
                split, record = "train", replace(record, problem=f"split is none of {', '.join(SPLITS)}", detail=told)
            held[split].append(record)
            size = size_of(record.raw)
            sizes[split] += size
            read[split] += record.size or size
            most = min(_FIRST_CHUNK * (1 + made[split]), _LARGEST_CHUNK)
            if len(held[split]) == _CHUNK_ROWS or sizes[split] >= most:
                yield chunk(split)
    except UserError as error:
        yield Part(Shard("", ""), problem=str(error)), []
        return
    for split in SPLITS:
        if held[split]:
            yield chunk(split)


def size_of(raw: Any) -> int:
    """Characters of the texts in a raw cluster, about."""
    parts = [*raw.values()] if isinstance(raw, dict) else raw
    return sum(map(size_of, parts)) if isinstance(parts, list) else len(str(parts))


def _finished_chunk(
    part: Part, records: list[Record], writer: DatasetWriter, ranker: "LearnedRanker | None" = None
) -> Part:
    """``part`` with what became of it, as an earlier start left it or as it is made now."""
    if (former := recall(writer.folder, part.shard.name)) is None:
        _write_chunk(part, records, writer, ranker)
    return former or part


def _write_chunk(
    part: Part, records: list[Record], writer: DatasetWriter, ranker: "LearnedRanker | None" = None
) -> None:
    """Write the rows and the rejected ones of a chunk, and tell ``part`` of them."""
    rows, rejected, counts = list[Row](), list[str](), Counter[str]()
    for record in records:
        try:
            raw = record.cluster()
            made, found = prepare_rows(raw, writer.recipe, writer.vocabulary, ranker)
            told = writer.kind != "pretraining" and (raw.get("summary") is not None or raw.get("summaries"))
            if told and not len(made[0]["target_ids"]):
                raise Rejected("summary is empty")
            rows += made
            part.kept += 1
            counts += found + teacher_counts(raw)
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
            note(writer.folder, part)
    except OSError as error:
        place = writer.folder.parent
        part.problem = f"cannot write to {place} ({error.strerror}); free space there or choose another --out"


def _rejected_file(writer: DatasetWriter, part: Part) -> Path:
    return writer.folder / f"{part.shard.name}.rejected"
