"""`raysum status`: the state of a run or a search, also of one on a store that another machine writes."""

import math
import os
import time
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

from raysum.pages.parts import duration
from raysum.report.gather import RunRecord
from raysum.runs.folder import Event, Run
from raysum.runtime.lock import LOCK, is_held
from raysum.runtime.remote import shown, url_of
from raysum.runtime.remote_lock import is_leased
from raysum.runtime.rendering import Shown
from raysum.runtime.run_sync import sync_down
from raysum.tune.page import metric_title
from raysum.tune.record import SearchRecord, read_search

_RECENT = 10  # metrics lines that the speed is measured on


@dataclass(frozen=True)
class Status(Shown):
    """The state of a run or a search: running, finished or interrupted. Values that are not known are None.

    ``speed`` is in steps per second, ``seconds_left`` an estimate from it, ``checkpoint_age`` in seconds. ``hosts`` has
    the name of each worker's host. A search has ``trials`` by state, and ``best`` by the title of its metric.
    """

    place: str
    kind: str
    state: str
    step: int | None = None
    steps: int | None = None
    speed: float | None = None
    tokens_per_s: float | None = None
    seconds_left: float | None = None
    hosts: list[str] | None = None
    checkpoint: int | None = None
    checkpoint_age: float | None = None
    trials: dict[str, int] | None = None
    best: dict[str, float] | None = None
    slow_host: str | None = None
    failure: str | None = None
    failure_age: float | None = None

    def render(self) -> str:
        lines = dict[str, str | None]()
        if self.step is not None and self.steps:
            lines["step"] = f"{self.step:,} of {self.steps:,} ({100 * self.step / self.steps:.0f} %)"
        lines["trials"] = ", ".join(f"{count} {state}" for state, count in (self.trials or {}).items())
        lines["best"] = ", ".join(f"{title} {value:.4g}" for title, value in (self.best or {}).items())
        if self.speed is not None:
            tokens = f", {self.tokens_per_s:,.0f} tokens/s" if self.tokens_per_s else ""
            lines["speed"] = f"{self.speed:.2f} steps/s{tokens}"
        if self.seconds_left is not None:
            lines["remaining"] = f"about {duration(self.seconds_left)}"
        if self.hosts:
            hosts = ", ".join(f"{name} ({count})" for name, count in Counter(self.hosts).items())
            lines["workers"] = f"{len(self.hosts)} on {hosts}"
        if self.checkpoint is not None:
            lines["checkpoint"] = f"step {self.checkpoint:,}{_ago(self.checkpoint_age)}"
        lines["slow host"] = self.slow_host
        lines["last failure"] = self.failure and f"{self.failure}{_ago(self.failure_age)}"
        known = (f"  {name:<13} {text}" for name, text in lines.items() if text)
        return "\n".join([f"{self.place}: {self.state}", *known])


def _ago(seconds: float | None) -> str:
    return "" if seconds is None else f", {duration(seconds)} ago"


def status(path: str | os.PathLike[str]) -> Status:
    """Return the state of the run or search at ``path``, a folder or the URL of one. Nothing is written there.

    Raises UserError if there is none, or if one of its files is damaged.
    """
    folder = sync_down(path)
    url = url_of(folder)
    running = is_leased(url) if url else is_running(folder)
    kind = folder_kind(folder)
    if kind == "search":
        return _of_search(folder, read_search(folder, running))
    return _of_run(RunRecord(Run.open(folder if kind else path)), running)


def folder_kind(path: Path) -> str:
    """Return ``search``, ``run``, or "" for another folder."""
    if (path / "search.yaml").is_file():
        return "search"
    made = (path / "recipe.json").is_file() or (path / "checkpoints").is_dir()
    return "run" if made and (path / "config.yaml").is_file() else ""


def is_running(path: Path) -> bool:
    """Return whether a process trains or searches in ``path``."""
    return is_held(path / LOCK) or is_held(path / "alignment" / LOCK)


def _of_run(record: RunRecord, running: bool) -> Status:
    run, last = record.run, {event.event: event for event in record.run.events()}
    start, save, failure, slow = (last.get(kind) for kind in ("start", "checkpoint", "failure", "slow"))
    settings, checkpoint = run.config.train, run.latest()
    timed = record.lines.dropna(subset="seconds")
    recent = timed[timed["step"] > (start.step if start else 0)].tail(_RECENT)
    steps, seconds = (recent[name].iloc[-1:].sum() - recent[name].iloc[:1].sum() for name in ("step", "seconds"))
    speed = float(steps / seconds) if seconds > 0 else None
    left = None
    if running and speed and not record.is_finished:
        left = (settings.steps - record.step) / speed
        if settings.minutes:
            left = min(left, max(60 * settings.minutes - recent["seconds"].iloc[-1], 0.0))
    tokens = recent["tokens_per_s"].iloc[-1] if len(recent) else math.nan
    return Status(
        place=run.place,
        kind="run",
        state=record.state_name(running),
        step=record.step,
        steps=settings.steps,
        speed=speed,
        tokens_per_s=None if math.isnan(tokens) else float(tokens),
        seconds_left=left,
        hosts=start.hosts if start else None,
        checkpoint=checkpoint.step if checkpoint else None,
        checkpoint_age=_age(save) if checkpoint and save and save.step == checkpoint.step else None,
        slow_host=slow.message if slow and start and slow.time > start.time else None,
        failure=failure.message if failure else None,
        failure_age=_age(failure),
    )


def _of_search(folder: Path, search: SearchRecord) -> Status:
    states, metric = [trial.state for trial in search.trials], search.space.metric
    counts = {state: states.count(state) for state in dict.fromkeys(["ended", "running", *states])}
    best = next((trial.metrics[metric] for trial in search.trials if trial.metrics), None)
    failed = [trial for trial in search.trials if trial.error]
    last = max(failed, key=lambda trial: trial.until, default=None)
    return Status(
        place=shown(folder),
        kind="search",
        state=search.state,
        seconds_left=None if search.left is None else 60 * search.left,
        trials=counts | {"in total": search.total},
        best=None if best is None else {metric_title(metric): best},
        failure=f"{last.name}: {last.error}" if last else None,
    )


def _age(event: Event | None) -> float | None:
    return max(time.time() - event.time, 0.0) if event else None
