"""`raysum status`: the state of a run or a search, also of one on a store that another machine writes."""

import os
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from raysum.errors import UserError
from raysum.pages import parts
from raysum.report.board.places import folder_kind, is_running
from raysum.report.gather import RunRecord, read_training
from raysum.report.progress import is_finished
from raysum.runs.events import Event, read_events
from raysum.runs.folder import Run
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
    failure: str | None = None
    failure_age: float | None = None

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)

    def render(self) -> str:
        lines = {"step": self._step(), "trials": self._trials(), "best": self._best(), "speed": self._speed()}
        if self.seconds_left is not None:
            lines["remaining"] = f"about {parts.duration(self.seconds_left)}"
        if self.hosts:
            names = ", ".join(f"{name} ({self.hosts.count(name)})" for name in dict.fromkeys(self.hosts))
            lines["workers"] = f"{len(self.hosts)} on {names}"
        if self.checkpoint is not None:
            lines["checkpoint"] = f"step {self.checkpoint:,}{_ago(self.checkpoint_age)}"
        if self.failure:
            lines["last failure"] = f"{self.failure}{_ago(self.failure_age)}"
        shown_lines = [f"  {name:<13} {value}" for name, value in lines.items() if value]
        return "\n".join([f"{self.place}: {self.state}", *shown_lines])

    def _step(self) -> str:
        if self.step is None or not self.steps:
            return ""
        return f"{self.step:,} of {self.steps:,} ({100 * self.step / self.steps:.0f} %)"

    def _trials(self) -> str:
        return ", ".join(f"{count} {state}" for state, count in (self.trials or {}).items())

    def _best(self) -> str:
        return ", ".join(f"{title} {value:.4g}" for title, value in (self.best or {}).items())

    def _speed(self) -> str:
        if self.speed is None:
            return ""
        tokens = f", {self.tokens_per_s:,.0f} tokens/s" if self.tokens_per_s else ""
        return f"{self.speed:.2f} steps/s{tokens}"


def _ago(seconds: float | None) -> str:
    return "" if seconds is None else f", {parts.duration(seconds)} ago"


def status(path: str | os.PathLike[str]) -> Status:
    """Return the state of the run or search at ``path``, a folder or the URL of one. Nothing is written there.

    Raises UserError if there is none, or if one of its files is damaged.
    """
    folder = sync_down(path)
    kind = folder_kind(folder) or ("run" if (folder / "config.yaml").is_file() else "")
    if not kind:
        Run.open(path)  # raises the error that explains what is there
        raise UserError(f"{path} is neither a run nor a search; name a folder that `raysum train` or `tune` made")
    url = url_of(folder)
    running = is_leased(url) if url else is_running(folder)
    if kind == "search":
        return _of_search(folder, read_search(folder, running))
    return _of_run(read_training(Run.open(folder)), running)


def _of_run(record: RunRecord, running: bool) -> Status:
    run, events = record.run, read_events(record.run.path)
    start, save, failure = (_newest(events, kind) for kind in ("start", "checkpoint", "failure"))
    settings, checkpoint = run.config.train, run.latest()
    step = max([record.state.get("step", 0), *(line.step for line in record.lines)])
    points = [
        (line.step, line.seconds, line.tokens_per_s)
        for line in record.lines
        if line.seconds is not None and line.step > (start.step if start else 0)
    ][-_RECENT:]
    speed = left = None
    if len(points) > 1 and points[-1][1] > points[0][1]:
        speed = (points[-1][0] - points[0][0]) / (points[-1][1] - points[0][1])
    finished = is_finished(record, step)
    if running and speed and not finished:
        left = (settings.steps - step) / speed
        if settings.minutes:
            left = min(left, max(60 * settings.minutes - points[-1][1], 0.0))
    return Status(
        place=run.place,
        kind="run",
        state="running" if running else "finished" if finished else "interrupted",
        step=step,
        steps=settings.steps,
        speed=speed,
        tokens_per_s=points[-1][2] if points else None,
        seconds_left=left,
        hosts=start.hosts if start else None,
        checkpoint=checkpoint.step if checkpoint else None,
        checkpoint_age=_age(save) if checkpoint and save and save.step == checkpoint.step else None,
        failure=failure.message if failure else None,
        failure_age=_age(failure),
    )


def _newest(events: list[Event], kind: str) -> Event | None:
    return next((event for event in reversed(events) if event.event == kind), None)


def _of_search(folder: Path, search: SearchRecord) -> Status:
    states = [trial.state for trial in search.trials]
    counts = {state: states.count(state) for state in dict.fromkeys(["ended", "running", *states])}
    known = [trial for trial in search.trials if trial.metrics]
    failed = [trial for trial in search.trials if trial.error]
    last = max(failed, key=lambda trial: trial.until, default=None)
    return Status(
        place=shown(folder),
        kind="search",
        state="running" if search.running else "finished" if search.ended else "interrupted",
        seconds_left=None if search.left is None else 60 * search.left,
        trials=counts | {"in total": search.total},
        best={metric_title(search.space.metric): known[0].metrics[search.space.metric]} if known else None,
        failure=f"{last.name}: {last.error}" if last else None,
    )


def _age(event: Event | None) -> float | None:
    return max(time.time() - event.time, 0.0) if event else None
