"""Resume a killed `raysum prepare`: the same command continues in the unfinished folder.

Each finished chunk has a note with the results of its clusters and the checksums of its files. The same sources and
settings always give the same chunks, so a chunk with a note is skipped.
"""

import hashlib
import json
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from raysum.data.writer import Shard
from raysum.errors import UserError
from raysum.prepare.config import PrepareConfig
from raysum.runtime.checksums import check_file, checksum
from raysum.runtime.progress import say
from raysum.runtime.storage import read_json, write_text
from raysum.sources.find import RawSource
from raysum.sources.staging import with_urls

_JOB = "job.json"  # the inputs of the dataset, written after the vocabulary
_NOTE = ".done"
_FILES = (".shard", ".npy", ".rejected")  # of a chunk, as far as it has them
_IDLE = {"address", "max_rejected"}  # settings that change no row


@dataclass
class Part:
    """The progress of a chunk: its shard and the results of its clusters."""

    shard: Shard
    kept: int = 0  # clusters that gave rows
    rejected: Counter[str] = field(default_factory=Counter)
    size: int = 0  # bytes of text read from the source
    first_rejected: dict[str, str] = field(default_factory=dict)  # position and detail by reason
    problem: str = ""  # a mistake of the user, which stops the job
    fault: str = ""  # the traceback of an error of raysum

    @property
    def clusters(self) -> int:
        return self.kept + self.rejected.total()


def job_of(sources: list[RawSource], config: PrepareConfig, version: str, vocabulary: str) -> dict[str, Any]:
    """Return all inputs of a dataset's rows: files with sizes and times, settings, ``version`` and ``vocabulary``."""
    files = [(with_urls(str(file)), file.stat()) for source in sources for file in _files(source.path)]
    states = json.dumps([(name, state.st_size, state.st_mtime_ns) for name, state in files])
    settings = config.model_dump(mode="json", exclude=_IDLE)
    sources_hash = hashlib.sha256(states.encode(errors="backslashreplace")).hexdigest()
    return {"version": version, "vocabulary": vocabulary, "settings": settings, "sources": sources_hash}


def _files(path: Path) -> list[Path]:
    return sorted(file for file in path.rglob("*") if file.is_file()) if path.is_dir() else [path]


def can_resume(folder: Path, job: Mapping[str, Any]) -> bool:
    """Report and return whether an earlier start left a part of this ``job`` in ``folder``."""
    if not (folder / _JOB).is_file():
        return False
    try:
        earlier = read_json(folder / _JOB)
    except UserError:
        earlier = {}
    changed = [name for name in job if not isinstance(earlier, dict) or earlier.get(name) != job[name]]
    if changed:
        say(f"Cannot resume an earlier start with other {' and '.join(changed)}: starting over")
    else:
        shards = len([*folder.glob(f"*{_NOTE}")])
        say(f"Resuming with the vocabulary{f' and {shards} finished shards' * (shards > 0)} of an earlier start")
    return not changed


def is_begun(folder: Path) -> bool:
    return (folder / _JOB).exists()


def begin(folder: Path, job: Mapping[str, Any]) -> None:
    """Write the inputs of the dataset into ``folder``, after the vocabulary."""
    write_text(folder / _JOB, json.dumps(job))


def end_of_shards(folder: Path) -> None:
    """Remove all notes from ``folder``, which is now a dataset."""
    for file in (*folder.glob(f"*{_NOTE}"), *folder.glob("*.partial"), folder / _JOB):
        file.unlink(missing_ok=True)


def write_note(folder: Path, part: Part) -> None:
    """Write the note of a ``part`` with complete files. Raises OSError if the disk is full."""
    name = part.shard.name
    files = [folder / (name + suffix) for suffix in _FILES]
    checksums = {file.name: checksum(file, flush=True) for file in files if file.exists()}
    content = {"part": {**vars(part), "shard": vars(part.shard)}, "files": checksums}
    write_text(folder / (name + _NOTE), json.dumps(content))  # which escapes invalid Unicode


def read_note(folder: Path, name: str) -> Part | None:
    """Return the finished part of that ``name``; None if there is none, or if a file is missing or damaged."""
    if not (folder / (name + _NOTE)).exists():
        return None
    try:
        content = read_json(folder / (name + _NOTE))
        for file, checksums in content["files"].items():
            check_file(folder / file, checksums)
        shard = content["part"].pop("shard")
        counted = {**content["part"], "rejected": Counter(content["part"]["rejected"])}
        return Part(Shard(**{**shard, "counts": Counter(shard["counts"])}), **counted)
    except (UserError, KeyError, TypeError, AttributeError):
        return None
