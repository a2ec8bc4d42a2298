"""Runs and searches in a folder: where they are, and how far each has come. Nothing is written or executed."""

import os
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import chain
from pathlib import Path

from raysum.errors import UserError
from raysum.pages import parts
from raysum.report import training
from raysum.report.gather import Trained, read_training
from raysum.runs.folder import Run
from raysum.runtime.lock import LOCK, is_held
from raysum.train.job_spec import out_of_patience
from raysum.tune.page import best_so_far, metric_title
from raysum.tune.record import RECORD, SearchRecord, read_search

_DEEP, _FOLDERS, _PLACES = 6, 20_000, 2_000
BOUNDS = f"Looked for {_DEEP} folders deep, {_PLACES:,} of them in {_FOLDERS:,} at most; links are not followed."
_TOLD = ("config.yaml", "metrics.jsonl", "checkpoints", "decode.yaml", "search.yaml", RECORD, "best.json")
_INSIDE = ("alignment/metrics.jsonl", "evaluation/*/*/table.json", f"*/{RECORD}", "*/best.json")


@dataclass(frozen=True)
class Place:
    """A run or a search, by its ``name``: the way to it from the folder."""

    name: str
    path: Path
    kind: str
    state: str = "damaged"
    done: str = ""
    last: str = ""
    best: str = ""
    time: str = ""
    trouble: str = ""
    drawn: str = ""  # HTML of what it has learned, while it runs
    changed: float = 0.0  # seconds since 1970

    @property
    def running(self) -> bool:
        return self.state == "running"


def find(folder: Path) -> list[Place]:
    """What is in ``folder``, those that run first, then the newest; as much as :func:`_folders` looks into."""
    found = [
        _look(path, kind, os.fsencode(path.relative_to(folder)).decode(errors="replace"))
        for path, kind in _folders(folder)
    ]
    return sorted(found, key=lambda place: (not place.running, -place.changed, place.name))


def _folders(folder: Path, left: int = _PLACES) -> Iterator[tuple[Path, str]]:
    """Folders of runs and searches, with what they are. What is in them is theirs, and links are not followed."""
    level, seen = [folder], 0
    for _ in range(_DEEP):
        deeper: list[Path] = []
        for path in level:
            seen += 1
            if seen > _FOLDERS or not left:
                return
            if kind := kind_of(path):
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


def kind_of(path: Path) -> str:
    """``search``, ``run``, or "" of what is neither."""
    if (path / "search.yaml").is_file():
        return "search"
    made = (path / "recipe.json").is_file() or (path / "checkpoints").is_dir()
    return "run" if made and (path / "config.yaml").is_file() else ""


def is_running(path: Path) -> bool:
    """Whether something trains or searches there."""
    return is_held(path / LOCK) or is_held(path / "alignment" / LOCK)


def stamp(path: Path) -> tuple[tuple[int, int], ...]:
    """What changes whenever one of the files does that tell how far it has come."""
    inside = chain.from_iterable(sorted(path.glob(pattern)) for pattern in _INSIDE)
    files = [*(path / name for name in _TOLD), *inside]
    return tuple((told.st_mtime_ns, told.st_size) for told in map(_stat, files) if told)


def _stat(path: Path) -> os.stat_result | None:
    try:
        return path.stat()
    except OSError:
        return None


def _look(path: Path, kind: str, name: str) -> Place:
    return _read(Place(name, path, kind), is_running(path), stamp(path))


@lru_cache(maxsize=2 * _PLACES)
def _read(place: Place, running: bool, told: tuple[tuple[int, int], ...]) -> Place:
    changed = max((time for time, _ in told), default=0) / 1e9
    try:
        if place.kind == "search":
            found = _of_search(place, read_search(place.path, running))
        else:
            found = _of_run(place, read_training(Run.open(place.path)), running)
        return replace(found, changed=changed)
    except UserError as error:
        return replace(place, trouble=str(error), changed=changed)
    except Exception as error:  # of values that nobody thought of
        return replace(place, trouble=f"does not read ({type(error).__name__}: {error})", changed=changed)


def _of_run(place: Place, run: Trained, running: bool) -> Place:
    losses, settings = run.validations, run.run.config.train
    step = max([run.state.get("step", 0), *(line.step for line in run.lines)])
    seconds = max([run.state.get("seconds") or 0.0, *(line.seconds or 0.0 for line in run.lines)])
    out = settings.minutes and seconds >= 60 * settings.minutes
    over = not run.lines or bool(run.run.config.model.TRAINER) or step >= settings.steps or out
    finished = run.best is not None and (
        over or out_of_patience(settings.patience, run.run.validation_scores(settings), step)
    )
    return replace(
        place,
        state="running" if running else "finished" if finished else "interrupted",
        done=f"step {step:,} of {settings.steps:,}" if run.lines and not run.run.config.model.TRAINER else "",
        last=f"valid loss {losses[max(losses)]:.4f}" if losses else "",
        best=f"valid loss {min(losses.values()):.4f}" if losses else "",
        time=parts.duration(seconds) if seconds else "",
        drawn=training.loss([run]) if running else "",
    )


def _of_search(place: Place, search: SearchRecord) -> Place:
    metric, states = search.space.metric, [trial.state for trial in search.trials]
    failed = f", {states.count('failed')} failed" if "failed" in states else ""
    known = [trial for trial in search.trials if trial.metrics]
    last = max((trial.reports[-1] for trial in known), key=lambda report: report.minutes, default=None)
    return replace(
        place,
        state="running" if search.running else "finished" if search.ended else "interrupted",
        done=f"{states.count('ended')} of {search.total} trials{failed}",
        last=f"{metric_title(metric)} {last.metrics[metric]:.4g}" if last else "",
        best=f"{metric_title(metric)} {known[0].metrics[metric]:.4g}" if known else "",
        time=parts.duration(60 * search.minutes),
        drawn=best_so_far(search) if search.running else "",
    )
