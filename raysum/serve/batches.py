"""Summaries of many clusters: Ray Data reads parts of the sources, and actors summarize them.

The output is a folder, also on a store: one file of JSON lines for each part, and `batch.json` with the inputs and, at
the end, the numbers. A part is written when all of its clusters are done, and the same command continues after a kill.
"""

import json
import pickle
import time
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import islice
from pathlib import Path
from typing import Any

from raysum import __version__
from raysum.config.base import with_settings
from raysum.config.loading import section_of
from raysum.config.sections import LoadConfig
from raysum.decode.summary import NoSummary, readable
from raysum.errors import UserError
from raysum.extract.summarizer import extracts, summarizer_of
from raysum.runs.folder import Run
from raysum.runtime.failures import Failure, unpickled
from raysum.runtime.lock import LOCK, folder_lock
from raysum.runtime.placement import share
from raysum.runtime.processes import configure_process, quiet_data
from raysum.runtime.progress import bar, say
from raysum.runtime.remote import listed, local, read, shown, upload, url_of
from raysum.runtime.remote_lock import check_lease, leased
from raysum.runtime.rendering import Shown
from raysum.runtime.session import ray_session
from raysum.runtime.storage import write_text, writing
from raysum.serve.config import BatchConfig
from raysum.sources.find import RawSource, content_hash, find_sources

_PART = 128  # clusters of a part: several batches of decoding, and few enough to repeat after a kill
_NOTE = "batch.json"
_READING, _READERS = 0.1, 4  # CPUs of a task that reads a source, and tasks at once


@dataclass(frozen=True)
class BatchResult(Shown):
    """The numbers of a batch: clusters, those without a summary, and the seconds of this call."""

    out: str
    clusters: int
    failed: int
    parts: int
    seconds: float
    first_error: str = ""

    @property
    def problem(self) -> str:
        """Return how many clusters have no summary, with the first error; empty if all have one."""
        if not self.failed:
            return ""
        return f"{self.failed} of {self.clusters} clusters have no summary; the first of them: {self.first_error}"

    def render(self) -> str:
        return f"{self.clusters:,} clusters, {self.failed:,} without a summary, in {self.parts:,} files of {self.out}"


@dataclass(frozen=True)
class _Part:
    """Clusters of a source that follow each other, or their summaries; neither if an earlier call wrote these."""

    source: int
    number: int
    size: int  # bytes of the clusters in the source
    count: int  # clusters
    clusters: list[dict[str, Any] | NoSummary] = field(default_factory=list)
    lines: list[str] = field(default_factory=list)  # summaries, as JSON

    @property
    def name(self) -> str:
        return f"part-{self.source:05}-{self.number:07}.jsonl"


@with_settings(BatchConfig)
def summarize_files(
    run: str | Path, sources: str | Path | Sequence[str | Path], out: str | Path, **settings: Any
) -> BatchResult:
    """Write the summary of each cluster of data files and folders into ``out``; the same call continues a killed one.

    A line is a summary, or ``id`` and ``error``. Lines of a file are in the order of their clusters.
    Raises UserError for a mistake in run, sources or settings, and if ``out`` has summaries of other inputs.

    >>> raysum.summarize_files("runs/pht", "s3://bucket/clusters", "s3://bucket/summaries", workers=8)
    """
    started, config = time.monotonic(), section_of(BatchConfig, {**settings, "run": str(run), "out": str(out)})
    name, loading = _resolved(config)
    found = find_sources([sources] if isinstance(sources, str | Path) else sources, config.mapping)
    inputs = {
        "version": __version__,
        "run": name,
        "settings": loading.model_dump(),
        "mapping": [config.map, config.separator, config.format],
        "sources": content_hash(found),
        "clusters_per_part": _PART,
    }
    folder, size = local(config.out), sum(source.size for source in found)
    clusters, failures, parts = 0, list[str](), 0
    with leased(folder), folder_lock(folder, folder / LOCK), writing(folder):
        finished = _finished(folder, inputs)
        if not finished:
            _write(folder, _NOTE, json.dumps({"inputs": inputs}))
        with bar(total=size, label="summarize", unit="B") as progress:
            for part in _summarized(name, loading, found, finished, config):
                lines = part.lines or _checked(_read(folder, part.name), part, folder)
                if part.lines:
                    _write(folder, part.name, "\n".join(lines) + "\n")
                clusters, parts = clusters + len(lines), parts + 1
                failures += (error for line in lines if (error := json.loads(line).get("error")))
                progress.update(min(part.size, size - progress.n))
            progress.update(size - progress.n)  # the sizes of records are estimates
        numbers = {"clusters": clusters, "failed": len(failures), "parts": parts}
        _write(folder, _NOTE, json.dumps({"inputs": inputs, **numbers}))
    first_error = failures[0] if failures else ""
    return BatchResult(config.out, **numbers, seconds=time.monotonic() - started, first_error=first_error)


def _resolved(config: BatchConfig) -> tuple[str, LoadConfig]:
    """Return the path of the run, or the name of the system, and how it is loaded, with its exact step."""
    loading = LoadConfig(checkpoint=config.checkpoint, dtype=config.dtype, decode=config.decode)
    if extracts(config.run):
        return config.run, loading
    run = Run.resolve(config.run)
    checkpoint, *others = run.select_checkpoints(config.checkpoint)
    return str(run.path), loading if others else loading.model_copy(update={"checkpoint": str(checkpoint.step)})


def _finished(folder: Path, inputs: dict[str, Any]) -> set[str]:
    """Return the names of the parts in ``folder``. Raises UserError if it has other files, or parts of other inputs."""
    url = url_of(folder)
    names = {*listed(url)} if url else {file.name for file in folder.iterdir()}
    names -= {LOCK}
    parts = {name for name in names if name.startswith("part-") and name.endswith(".jsonl")}
    if names and _NOTE not in names:
        raise UserError(f"{shown(folder)} has other files: choose another --out")
    if names:
        try:
            earlier = dict(json.loads(_read(folder, _NOTE))["inputs"])
        except (ValueError, TypeError, KeyError):
            raise UserError(f"{shown(folder)} has a damaged {_NOTE}: remove it, or choose another --out") from None
        if parts and (changed := [name for name in inputs if earlier.get(name) != inputs[name]]):
            raise UserError(
                f"{shown(folder)} has summaries of other inputs ({', '.join(changed)}): remove it, or choose another "
                "--out"
            )
        say(f"Continuing after {len(parts)} finished parts")
    return parts


def _checked(content: str, part: _Part, folder: Path) -> list[str]:
    """Return the lines of a finished part. Raises UserError if it was damaged since."""
    lines = content.removesuffix("\n").split("\n")  # a text may contain other ends of lines
    try:
        is_whole = len(lines) == part.count and all(isinstance(json.loads(line), dict) for line in lines)
    except ValueError:
        is_whole = False
    if not is_whole:
        fix = f"remove it, and the same command writes its {part.count} lines again"
        raise UserError(f"{shown(folder)}/{part.name} is damaged: {fix}")
    return lines


def _summarized(
    name: str, loading: LoadConfig, sources: Sequence[RawSource], finished: Collection[str], config: BatchConfig
) -> Iterator[_Part]:
    """Yield the parts with their summaries, in any order, and those that are ``finished`` without lines."""
    if not config.workers:
        summarizer = _Summarizer(name, loading, 1)
        yield from (summarizer.part(part) for numbered in enumerate(sources) for part in _parts(*numbered, finished))
        return
    with ray_session(config.address, config.workers + 1, "decode"):
        import ray.data
        from ray.util import ActorPool

        quiet_data()
        each, nodes = share("decoder", config.workers), sum(node["Alive"] for node in ray.nodes())
        dataset = ray.data.from_items([{"source": number} for number in range(len(sources))])
        dataset.context.target_max_block_size = 1  # byte: every part is a block, which any actor can take
        parts = dataset.flat_map(
            lambda row: Failure.in_rows(_parts(row["source"], sources[row["source"]], finished), "part"),
            num_cpus=_READING,
            compute=ray.data.TaskPoolStrategy(min(_READERS, len(sources))),
        )
        # Actors of Ray Data would print an error each, about their restarts.
        options = {"num_cpus": each.cpus, "num_gpus": each.gpus, "max_restarts": -1, "max_task_retries": -1}
        actor: Any = ray.remote(_Summarizer).options(**options)
        pool = ActorPool([actor.remote(name, loading, -(-config.workers // nodes)) for _ in range(config.workers)])
        for row in parts.iter_rows():
            if not pool.has_free():
                yield unpickled(pool.get_next_unordered())
            pool.submit(lambda actor, part: actor.pickled.remote(part), row["part"])
        while pool.has_next():
            yield unpickled(pool.get_next_unordered())


def _parts(number: int, source: RawSource, finished: Collection[str]) -> Iterator[_Part]:
    records = source.records()
    for count, found in enumerate(iter(lambda: [*islice(records, _PART)], [])):
        part = _Part(number, count, sum(record.size for record in found), len(found))
        yield part if part.name in finished else replace(part, clusters=[*map(readable, found)])


class _Summarizer:
    """An actor that summarizes parts. ``neighbours`` share the cores of its node."""

    def __init__(self, name: str, loading: LoadConfig, neighbours: int):
        if not extracts(name):
            configure_process(None, neighbours)
        self._summarizer = summarizer_of(name, loading)

    def pickled(self, content: bytes) -> bytes:
        """Return the pickled summaries of a pickled part, or the Failure of either."""
        part = pickle.loads(content)
        try:
            return content if isinstance(part, Failure) else pickle.dumps(self.part(part))
        except Exception as error:
            return pickle.dumps(Failure.of(error))

    def part(self, part: _Part) -> _Part:
        clusters = [cluster for cluster in part.clusters if not isinstance(cluster, NoSummary)]
        summaries = iter(self._summarizer.summarize_each(clusters))
        results = [one if isinstance(one, NoSummary) else next(summaries) for one in part.clusters]
        lines = [json.dumps(result.to_dict(), ensure_ascii=False) for result in results]
        return replace(part, clusters=[], lines=lines)


def _write(folder: Path, name: str, content: str) -> None:
    write_text(folder / name, content)
    if url_of(folder):
        check_lease(folder)
        upload(folder, [name])
        (folder / name).unlink()  # the store has it


def _read(folder: Path, name: str) -> str:
    url = url_of(folder)
    content = read(f"{url}/{name}") if url else (folder / name).read_bytes()
    if content is None:
        raise UserError(f"{shown(folder)} has no {name}; remove the folder, or choose another --out")
    return content.decode()
