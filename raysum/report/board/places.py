"""The runs and searches in a folder, and their progress. Nothing is written or executed."""

import os
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import chain
from pathlib import Path

from raysum.errors import UserError
from raysum.pages import parts
from raysum.report import training
from raysum.report.gather import RunRecord, read_training
from raysum.report.progress import is_finished
from raysum.runs.folder import Run
from raysum.runtime.lock import LOCK, is_held
from raysum.tune.page import best_so_far, metric_title
from raysum.tune.record import RECORD, SearchRecord, read_search

_DEEP, _FOLDERS, _ENTRIES = 6, 20_000, 2_000
BOUNDS = f"Looked for {_DEEP} folders deep, {_ENTRIES:,} of them in {_FOLDERS:,} at most; links are not followed."
_FILES = ("config.yaml", "metrics.jsonl", "checkpoints", "decode.yaml", "search.yaml", RECORD, "best.json")
_INSIDE = ("alignment/metrics.jsonl", "evaluation/*/*/table.json", f"*/{RECORD}", "*/best.json")


@dataclass(frozen=True)
class BoardEntry:
    """A run or a search. ``name`` is its path in the folder."""

    name: str
    path: Path
    kind: str
    state: str = "damaged"
    done: str = ""
    last: str = ""
    best: str = ""
    time: str = ""
    trouble: str = ""
    drawn: str = ""  # HTML chart, while it runs
    changed: float = 0.0  # seconds since 1970

    @property
    def running(self) -> bool:
        return self.state == "running"


def find_entries(folder: Path) -> list[BoardEntry]:
    """Return the runs and searches in ``folder``: running ones first, then the newest."""
    entries = [
        _look(path, kind, os.fsencode(path.relative_to(folder)).decode(errors="replace"))
        for path, kind in _folders(folder)
    ]
    return sorted(entries, key=lambda entry: (not entry.running, -entry.changed, entry.name))


def _folders(folder: Path, left: int = _ENTRIES) -> Iterator[tuple[Path, str]]:
    """Yield the folders of runs and searches with their kind, not those inside of them. Links are not followed."""
    level, seen = [folder], 0
    for _ in range(_DEEP):
        deeper: list[Path] = []
        for path in level:
            seen += 1
            if seen > _FOLDERS or not left:
                return
            if kind := folder_kind(path):
                left -= 1
                yield path, kind
                continue
            try:
                with os.scandir(path) as items:
                    inner = [Path(item) for item in items if item.is_dir(follow_symlinks=False)]
            except OSError:
                continue
            deeper += sorted(item for item in inner if not item.name.startswith("."))
        level = deeper


def folder_kind(path: Path) -> str:
    """Return ``search``, ``run``, or "" for another folder."""
    if (path / "search.yaml").is_file():
        return "search"
    made = (path / "recipe.json").is_file() or (path / "checkpoints").is_dir()
    return "run" if made and (path / "config.yaml").is_file() else ""


def is_running(path: Path) -> bool:
    """Return whether a process trains or searches in ``path``."""
    return is_held(path / LOCK) or is_held(path / "alignment" / LOCK)


def stamp(path: Path) -> tuple[tuple[int, int], ...]:
    """Return a value that changes if a file that shows progress changes."""
    inside = chain.from_iterable(sorted(path.glob(pattern)) for pattern in _INSIDE)
    files = [*(path / name for name in _FILES), *inside]
    return tuple((status.st_mtime_ns, status.st_size) for status in map(_stat, files) if status)


def _stat(path: Path) -> os.stat_result | None:
    try:
        return path.stat()
    except OSError:
        return None


def _look(path: Path, kind: str, name: str) -> BoardEntry:
    return _read(BoardEntry(name, path, kind), is_running(path), stamp(path))


@lru_cache(maxsize=2 * _ENTRIES)
def _read(entry: BoardEntry, running: bool, state: tuple[tuple[int, int], ...]) -> BoardEntry:
    changed = max((time for time, _ in state), default=0) / 1e9
    try:
        if entry.kind == "search":
            updated = _of_search(entry, read_search(entry.path, running))
        else:
            updated = _of_run(entry, read_training(Run.open(entry.path)), running)
        return replace(updated, changed=changed)
    except UserError as error:
        return replace(entry, trouble=str(error), changed=changed)
    except Exception as error:  # unexpected values in damaged files
        return replace(entry, trouble=f"cannot be read ({type(error).__name__}: {error})", changed=changed)


def _of_run(entry: BoardEntry, run: RunRecord, running: bool) -> BoardEntry:
    losses, settings = run.validations, run.run.config.train
    step = max([run.state.get("step", 0), *(line.step for line in run.lines)])
    seconds = max([run.state.get("seconds") or 0.0, *(line.seconds or 0.0 for line in run.lines)])
    finished = is_finished(run, step)
    return replace(
        entry,
        state="running" if running else "finished" if finished else "interrupted",
        done=f"step {step:,} of {settings.steps:,}" if run.lines and not run.run.config.model.TRAINER else "",
        last=f"valid loss {losses[max(losses)]:.4f}" if losses else "",
        best=f"valid loss {min(losses.values()):.4f}" if losses else "",
        time=parts.duration(seconds) if seconds else "",
        drawn=training.loss([run]) if running else "",
    )


def _of_search(entry: BoardEntry, search: SearchRecord) -> BoardEntry:
    metric, states = search.space.metric, [trial.state for trial in search.trials]
    failed = f", {states.count('failed')} failed" if "failed" in states else ""
    known = [trial for trial in search.trials if trial.metrics]
    last = max((trial.reports[-1] for trial in known), key=lambda report: report.minutes, default=None)
    return replace(
        entry,
        state="running" if search.running else "finished" if search.ended else "interrupted",
        done=f"{states.count('ended')} of {search.total} trials{failed}",
        last=f"{metric_title(metric)} {last.metrics[metric]:.4g}" if last else "",
        best=f"{metric_title(metric)} {known[0].metrics[metric]:.4g}" if known else "",
        time=parts.duration(60 * search.minutes),
        drawn=best_so_far(search) if search.running else "",
    )
