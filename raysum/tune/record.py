"""The record of a search: lines that the driver writes while trials run, and the states and reports in them.

Ray Tune's own files appear late. They are read only for searches of earlier versions, which have no record.
"""

import math
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any

from pydantic import BaseModel, BeforeValidator, Field, ValidationError

from raysum.config.loading import parse_yaml, read_text
from raysum.config.problems import validate
from raysum.errors import UserError
from raysum.evaluate.scorers import FIGURES
from raysum.runs.folder import Run
from raysum.runtime.lock import LOCK, is_held
from raysum.runtime.storage import append_line, read_json, read_lines
from raysum.tune.results import Trial, ranked
from raysum.tune.schema import SpaceConfig
from raysum.tune.spaces import label

RECORD = "progress.jsonl"
_COSTS = ("valid_loss", "step", "parameters", "train_seconds", "examples")  # of a trial, besides its metrics
_RECORDED = {*_COSTS, *(key + end for key in FIGURES for end in ("", "_low", "_high"))}


def is_finite(value: Any) -> bool:
    """Return whether a value is finite; diverging trainings report others."""
    return not isinstance(value, float) or math.isfinite(value)


def _finite(figures: Any) -> Any:
    return {key: value for key, value in figures.items() if is_finite(value)} if isinstance(figures, dict) else figures


Number = Annotated[float, Field(ge=-1e30, le=1e30)]  # charts can draw it
Figures = Annotated[dict[str, Number], BeforeValidator(_finite)]


class RecordLine(BaseModel):
    """A line of the record: a search began or resumed with ``begun`` trials, or the state of one trial changed."""

    time: float = Field(ge=0, le=1e12, allow_inf_nan=False)  # seconds since 1970
    begun: int | None = Field(None, ge=0, le=10**9)
    trial: str = ""
    state: str = "running"  # or ended, failed
    config: dict[str, Any] = {}
    seconds: float = Field(0.0, ge=0, le=1e10, allow_inf_nan=False)
    metrics: Figures = {}
    error: str | None = None


class RecordWriter:
    """Writes lines into the folders of searches. If the disk is full, it writes them with the next line."""

    def __init__(self) -> None:
        self._pending: list[tuple[Path, dict[str, Any]]] = []

    def add(self, folder: Path, **values: Any) -> None:
        self._pending.append((folder / RECORD, {"time": time.time(), **values}))
        with suppress(OSError):
            while self._pending:
                append_line(*self._pending[0])
                self._pending.pop(0)


def recorded_metrics(result: dict[str, Any]) -> dict[str, float]:
    """Return the metrics of a trial's ``result`` that the record keeps."""
    return {key: value for key, value in result.items() if key in _RECORDED and isinstance(value, int | float)}


@dataclass(frozen=True)
class TrialReport:
    """Metrics of a trial after ``minutes`` of the search and ``amount`` examples or steps."""

    minutes: float
    amount: float
    metrics: dict[str, float]


@dataclass(frozen=True)
class TrialRecord(Trial):
    """A trial that is running, ended, failed, or stopped with its search. ``curve`` has its validations by step."""

    state: str = "ended"
    reports: tuple[TrialReport, ...] = ()
    until: float = 0.0  # minutes of the search at its last line
    curve: dict[float, float] = field(default_factory=dict)


@dataclass(frozen=True)
class SearchRecord:
    """A search with its space and trials, best first; ``then`` is the search after it.

    Minutes count from the start of the search, without pauses between sessions. ``began`` is the start of the last one.
    """

    name: str
    path: Path
    space: SpaceConfig
    trials: list[TrialRecord]
    ended: bool
    running: bool = False
    total: int = 0
    began: float = 0.0
    minutes: float = 0.0
    whole: float = 0.0  # steps or examples of a whole trial; 0 if unknown
    then: "SearchRecord | None" = None

    @property
    def left(self) -> float | None:
        """Minutes until all trials end, at the speed of this session; None before the first trial ends."""
        current = [trial for trial in self.trials if not self.began or trial.until > self.began]
        done, spent = sum(map(self._share, current)), self.minutes - self.began
        if not self.running or not any(trial.state == "ended" for trial in current) or not spent > 0:
            return None
        return max(self.total - sum(map(self._share, self.trials)), 0.0) * spent / done

    def _share(self, trial: TrialRecord) -> float:
        """Return the completed share of a trial."""
        if trial.state in ("ended", "failed"):
            return 1.0
        amount = trial.reports[-1].amount if trial.reports else 0.0
        return min(amount / self.whole, 1.0) if self.whole else 0.0


def read_search(path: Path, running: bool | None = None) -> SearchRecord:
    """Return the search in a folder. Its lock shows whether it runs, if ``running`` is None.

    Raises UserError if a file is damaged.
    """
    file = path / "search.yaml"
    values, locations = parse_yaml(read_text(file), str(file))
    if not isinstance(values.get("space"), dict):
        raise UserError(f"{file} does not contain the search space; put back a copy, or search again")
    inner = {key.removeprefix("space."): location for key, location in locations.items()}
    space = validate(_without_unset(values["space"]), inner, SpaceConfig)
    running = is_held(path / LOCK) if running is None else running
    record = _RecordReader(space, _lines(path, space), running)
    then = path / str(space.then)
    return SearchRecord(
        name=f"{path.name} ({values.get('name') or 'a space'})",
        path=path,
        space=space,
        trials=_ordered(space, [record.trial(name, path) for name in record.lines]),
        ended=(path / "best.json").is_file(),
        running=running,
        total=max(record.total, len(record.lines)),
        began=record.began,
        minutes=record.minutes(time.time()) if running else record.last,
        whole=_whole(space, values),
        then=read_search(then) if space.then and (then / "search.yaml").is_file() else None,
    )


def _without_unset(values: dict[str, Any]) -> dict[str, Any]:
    """Return ``values`` without null values and empty sections, which were not set by the user."""
    inner = {key: _without_unset(value) if isinstance(value, dict) else value for key, value in values.items()}
    return {key: value for key, value in inner.items() if value not in (None, {})}


def _whole(space: SpaceConfig, values: dict[str, Any]) -> float:
    """Return the steps or examples of a whole trial, or 0 if the search file does not contain them."""
    if space.kind == "decode":
        return float(space.examples or 0)
    config = values.get("config")
    train = config.get("train") if isinstance(config, dict) else None
    steps = train.get("steps") if isinstance(train, dict) else None
    return float(steps) if isinstance(steps, int | float) and "train.steps" not in space.search else 0.0


def _ordered(space: SpaceConfig, trials: Sequence[TrialRecord]) -> list[TrialRecord]:
    """Return the trials, best first, those without a result last. Only the last try of a failed trial is included."""
    names = [label(trial.config) for trial in trials]
    latest = [
        trial
        for index, trial in enumerate(trials)
        if trial.state in ("ended", "running") or names[index] not in names[index + 1 :]
    ]
    with_metrics = [trial for trial in latest if trial.metrics]
    return [*ranked(space, with_metrics), *(trial for trial in latest if not trial.metrics)]


class _RecordReader:
    """The lines of a record by trial, with the minutes of the search."""

    def __init__(self, space: SpaceConfig, lines: Sequence[RecordLine], running: bool):
        self.space, self.running, self.total = space, running, 0
        self.began = self.last = 0.0
        self._shift = lines[0].time if lines else time.time()  # subtracted from a time to get seconds of the search
        self.lines: dict[str, list[tuple[float, RecordLine]]] = {}
        for line in lines:
            if line.begun is not None:
                self._shift += max(line.time - self._shift - 60 * self.last, 0.0)
                self.began, self.total = self.last, line.begun
            else:
                self.last = max(self.minutes(line.time), self.last)
                self.lines.setdefault(line.trial, []).append((self.last, line))

    def minutes(self, at: float) -> float:
        return (at - self._shift) / 60

    def trial(self, name: str, path: Path) -> TrialRecord:
        """Return the trial ``name``. If a resumed trial repeats a report, the later one counts."""
        reports: list[TrialReport] = []
        config: dict[str, Any] = {}
        for minutes, line in self.lines[name]:
            config = line.config or config
            if self.space.metric in line.metrics:
                amount = line.metrics.get("examples", line.metrics.get("step", 0.0))
                while reports and reports[-1].amount >= amount:
                    reports.pop()
                reports.append(TrialReport(minutes, amount, line.metrics))
        until, last = self.lines[name][-1]
        seconds = max((line.seconds for _, line in self.lines[name] if line.state != "failed"), default=0.0)
        state = last.state
        if state == "running" and (not self.running or 0 < self.began >= until):
            state = "stopped"
        error = None
        if state == "failed" or (state == "ended" and not reports):
            state, error = "failed", last.error or f"it reported no {self.space.metric}"
        metrics = reports[-1].metrics if reports and not error else {}
        return TrialRecord(name, config, metrics, seconds, error, state, tuple(reports), until, _curve(path, name))


def _curve(path: Path, name: str) -> dict[float, float]:
    """Return the validations of the run of the trial ``name``; empty if they are damaged."""
    if Path(name).name != name:
        return {}
    try:
        return {float(step): loss for step, loss in Run(path / "trials" / name).validations().items()}
    except UserError:
        return {}


def _lines(path: Path, space: SpaceConfig) -> list[RecordLine]:
    """Return the lines of the record, and of Tune's result.json for trials that are not in it, by time."""
    file = path / RECORD
    try:
        lines = [RecordLine.model_validate(line) for line in read_lines(file)]
    except ValidationError as error:
        raise UserError(f"{file} is damaged: {error.errors()[0]['msg']}; put back a copy, or remove it") from None
    known = {line.trial for line in lines if line.trial}
    lines += [line for file in sorted(path.glob("tune/*/result.json")) for line in _tune_lines(file, space, known)]
    return sorted(lines, key=lambda line: line.time)


def _tune_lines(file: Path, space: SpaceConfig, known: set[str]) -> Iterator[RecordLine]:
    """Yield lines from Tune's ``result.json`` and error.txt, unless the trial is ``known``."""
    folder = file.parent.name
    if any(folder == name or folder.startswith(f"{name}_") for name in known):  # Tune's suffix of a second try
        return
    reported, error = list(read_lines(file)), file.with_name("error.txt")
    if not reported and not error.is_file():
        return
    config = reported[-1].get("config") if reported else read_json(file.with_name("params.json"))
    if not isinstance(config, dict):
        raise UserError(f"{file} does not contain the settings of the trial; put back a copy")
    if not reported:  # params.json does not keep the order
        config = {key: config[key] for key in [*space.search, *config] if key in config}
    name = label(config) if space.searcher == "grid" else folder
    line = RecordLine(time=error.stat().st_mtime if error.is_file() else 0.0, trial=name, config=config)
    for number, result in enumerate(reported):
        spent, at = (result.get(key) for key in ("time_total_s", "timestamp"))
        spent = float(spent) if isinstance(spent, int | float) else 0.0
        line.time = at if isinstance(at, int | float) else file.stat().st_mtime
        if number == 0:
            yield line.model_copy(update={"time": line.time - spent})
        yield line.model_copy(update={"seconds": spent, "metrics": recorded_metrics(result)})
    texts = error.read_text(encoding="utf-8", errors="replace").split("\n") if error.is_file() else []
    reason = next((text.strip() for text in reversed(texts) if text.strip()), None)
    yield line.model_copy(update={"state": "failed" if texts else "ended", "error": reason})
