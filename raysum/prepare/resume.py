"""What a killed `raysum prepare` had finished: it stays in the unfinished folder, and the same command goes on with it.

Each chunk that was written has a note with what became of its clusters and with the checksums of its files. A chunk is
the same in every run of the same sources and settings, so its note is all that is needed to pass over it.
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
from raysum.sources.staging import as_asked

_JOB = "job.json"  # what the folder is made of; written when the vocabulary is there
_NOTE = ".done"
_FILES = (".shard", ".npy", ".rejected")  # of a chunk, as far as it has them
_IDLE = {"address", "max_rejected"}  # settings that change no row


@dataclass
class Part:
    """A chunk on its way: where it goes, and what became of its clusters."""

    shard: Shard
    kept: int = 0  # clusters that gave rows
    rejected: Counter[str] = field(default_factory=Counter)
    size: int = 0  # bytes of text that were read of the source
    first_rejected: dict[str, str] = field(default_factory=dict)  # by reason: where, and the detail
    problem: str = ""  # of the user's, for which the whole job stops
    fault: str = ""  # of ours: the traceback

    @property
    def clusters(self) -> int:
        return self.kept + self.rejected.total()


def job_of(sources: list[RawSource], config: PrepareConfig, version: str, vocabulary: str) -> dict[str, Any]:
    """What the rows of a dataset follow from: files with sizes and times, settings, ``version`` and ``vocabulary``."""
    files = [(as_asked(str(file)), file.stat()) for source in sources for file in _files(source.path)]
    told = json.dumps([(name, found.st_size, found.st_mtime_ns) for name, found in files])
    settings = config.model_dump(mode="json", exclude=_IDLE)
    sources_hash = hashlib.sha256(told.encode(errors="backslashreplace")).hexdigest()
    return {"version": version, "vocabulary": vocabulary, "settings": settings, "sources": sources_hash}


def _files(path: Path) -> list[Path]:
    return sorted(file for file in path.rglob("*") if file.is_file()) if path.is_dir() else [path]


def can_resume(folder: Path, job: Mapping[str, Any]) -> bool:
    """Whether an earlier start left in ``folder`` a part of this ``job``; what there is, is said."""
    if not (folder / _JOB).is_file():
        return False
    try:
        former = read_json(folder / _JOB)
    except UserError:
        former = {}
    changed = [name for name in job if not isinstance(former, dict) or former.get(name) != job[name]]
    if changed:
        say(f"An earlier start is not gone on with, as it had other {' and '.join(changed)}: all begins anew")
    else:
        shards = len([*folder.glob(f"*{_NOTE}")])
        say(f"Going on with the vocabulary{f' and {shards} finished shards' * (shards > 0)} of an earlier start")
    return not changed


def is_begun(folder: Path) -> bool:
    return (folder / _JOB).exists()


def begin(folder: Path, job: Mapping[str, Any]) -> None:
    """Tell in ``folder`` what it is made of; the vocabulary is in it."""
    write_text(folder / _JOB, json.dumps(job))


def end(folder: Path) -> None:
    """Take all notes out of ``folder``, which is now a dataset."""
    for told in (*folder.glob(f"*{_NOTE}"), *folder.glob("*.partial"), folder / _JOB):
        told.unlink(missing_ok=True)


def note(folder: Path, part: Part) -> None:
    """Remember a ``part`` all of whose files are written. Raises OSError where the disk is full."""
    name = part.shard.name
    files = [folder / (name + suffix) for suffix in _FILES]
    told = {file.name: checksum(file, flush=True) for file in files if file.exists()}
    written = {"part": {**vars(part), "shard": vars(part.shard)}, "files": told}
    write_text(folder / (name + _NOTE), json.dumps(written))  # also of no valid Unicode


def recall(folder: Path, name: str) -> Part | None:
    """The part of that ``name`` that was finished before; None where there is none, or not with all its files."""
    if not (folder / (name + _NOTE)).exists():
        return None
    try:
        told = read_json(folder / (name + _NOTE))
        for file, sums in told["files"].items():
            check_file(folder / file, sums)
        shard = told["part"].pop("shard")
        counted = {**told["part"], "rejected": Counter(told["part"]["rejected"])}
        return Part(Shard(**{**shard, "counts": Counter(shard["counts"])}), **counted)
    except (UserError, KeyError, TypeError, AttributeError):
        return None
