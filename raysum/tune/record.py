"""What a search tells of its trials while they run, line by line, and what is read from that: their states and reports.

Ray Tune's own files come into the folder late. They tell of searches of former versions, which have no such record.
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
_COSTS = ("valid_loss", "step", "parameters", "train_seconds", "examples")  # of a trial, beside its figures
_KEPT = {*_COSTS, *(key + end for key in FIGURES for end in ("", "_low", "_high"))}


def is_finite(value: Any) -> bool:
    """Whether a figure is not that of a training that diverges."""
    return not isinstance(value, float) or math.isfinite(value)


def _known(figures: Any) -> Any:
    return {name: one for name, one in figures.items() if is_finite(one)} if isinstance(figures, dict) else figures


Number = Annotated[float, Field(ge=-1e30, le=1e30)]  # no chart fails on it
Figures = Annotated[dict[str, Number], BeforeValidator(_known)]


class Line(BaseModel):
    """Of the record: that a search began (again) with so many trials, or what one of its trials did."""

    time: float = Field(ge=0, le=1e12, allow_inf_nan=False)  # seconds since 1970
    begun: int | None = Field(None, ge=0, le=10**9)
    trial: str = ""
    state: str = "running"  # or ended, failed
    config: dict[str, Any] = {}
    seconds: float = Field(0.0, ge=0, le=1e10, allow_inf_nan=False)
    metrics: Figures = {}
    error: str | None = None


class Record:
    """Writes lines into the folders of searches. What a full disk does not take is tried again with the next line."""

    def __init__(self) -> None:
        self._left: list[tuple[Path, dict[str, Any]]] = []

    def add(self, folder: Path, **told: Any) -> None:
        self._left.append((folder / RECORD, {"time": time.time(), **told}))
        with suppress(OSError):
            while self._left:
                append_line(*self._left[0])
                self._left.pop(0)


def figures(result: dict[str, Any]) -> dict[str, float]:
    """What is kept of a ``result`` that a trial reported."""
    return {key: value for key, value in result.items() if key in _KEPT and isinstance(value, int | float)}


@dataclass(frozen=True)
class Report:
    """What a trial reported: after so many minutes of the search, and ``amount`` examples or steps."""

    minutes: float
    amount: float
    metrics: dict[str, float]


@dataclass(frozen=True)
class Tried(Trial):
    """A trial on its way: running, ended or failed; stopped, where its search was. ``curve``: validations by step."""

    state: str = "ended"
    reports: tuple[Report, ...] = ()
    until: float = 0.0  # minutes of the search when it was last heard of
    curve: dict[float, float] = field(default_factory=dict)


@dataclass(frozen=True)
class Searched:
    """A search: its space and its trials, best first; ``then`` is the one that followed.

    Minutes count from its beginning, without those between two sessions; the last session ``began`` at one of them.
    """

    name: str
    path: Path
    space: SpaceConfig
    trials: list[Tried]
    ended: bool
    running: bool = False
    total: int = 0
    began: float = 0.0
    minutes: float = 0.0
    whole: float = 0.0  # steps or examples of a whole trial; 0 where it is not known
    then: "Searched | None" = None

    @property
    def left(self) -> float | None:
        """Minutes until all trials will have ended, at the pace of this session; None before one has."""
        here = [trial for trial in self.trials if not self.began or trial.until > self.began]
        done, spent = sum(map(self._share, here)), self.minutes - self.began
        if not self.running or not any(trial.state == "ended" for trial in here) or not spent > 0:
            return None
        return max(self.total - sum(map(self._share, self.trials)), 0.0) * spent / done

    def _share(self, trial: Tried) -> float:
        """How much of the trial is done."""
        if trial.state in ("ended", "failed"):
            return 1.0
        amount = trial.reports[-1].amount if trial.reports else 0.0
        return min(amount / self.whole, 1.0) if self.whole else 0.0


def read_search(path: Path, running: bool | None = None) -> Searched:
    """What the folder tells; whether it runs, its lock, where that is not given.

    Raises UserError where something in it does not read.
    """
    file = path / "search.yaml"
    values, places = parse_yaml(read_text(file), str(file))
    if not isinstance(values.get("space"), dict):
        raise UserError(f"{file} does not say what was searched; put back a copy, or search again")
    inner = {key.removeprefix("space."): place for key, place in places.items()}
    space = validate(_told(values["space"]), inner, SpaceConfig)
    running = is_held(path / LOCK) if running is None else running
    found = _Folded(space, _lines(path, space), running)
    then = path / str(space.then)
    return Searched(
        name=f"{path.name} ({values.get('name') or 'a space'})",
        path=path,
        space=space,
        trials=_ordered(space, [found.trial(name, path) for name in found.names]),
        ended=(path / "best.json").is_file(),
        running=running,
        total=max(found.total, len(found.names)),
        began=found.began,
        minutes=found.minutes(time.time()) if running else found.last,
        whole=_whole(space, values),
        then=read_search(then) if space.then and (then / "search.yaml").is_file() else None,
    )


def _told(values: dict[str, Any]) -> dict[str, Any]:
    """``values`` without those that were written although nobody had given them: nothing, and sections of nothing."""
    inner = {key: _told(value) if isinstance(value, dict) else value for key, value in values.items()}
    return {key: value for key, value in inner.items() if value not in (None, {})}


def _whole(space: SpaceConfig, values: dict[str, Any]) -> float:
    """Steps or examples of a whole trial, as far as the search's file tells."""
    if space.kind == "decode":
        return float(space.examples or 0)
    config = values.get("config")
    train = config.get("train") if isinstance(config, dict) else None
    steps = train.get("steps") if isinstance(train, dict) else None
    return float(steps) if isinstance(steps, int | float) and "train.steps" not in space.search else 0.0


def _ordered(space: SpaceConfig, trials: Sequence[Tried]) -> list[Tried]:
    """Best first, then those without a result. One that failed or was stopped, and tried again, counts once."""
    names = [label(trial.config) for trial in trials]
    kept = [
        trial
        for place, trial in enumerate(trials)
        if trial.state in ("ended", "running") or names[place] not in names[place + 1 :]
    ]
    known = [trial for trial in kept if trial.metrics]
    return [*ranked(space, known), *(trial for trial in kept if not trial.metrics)]


class _Folded:
    """The lines of a record by trial, and the clock of the search."""

    def __init__(self, space: SpaceConfig, lines: Sequence[Line], running: bool):
        self.space, self.running, self.total = space, running, 0
        self.began = self.last = 0.0
        self._shift = lines[0].time if lines else time.time()  # what a time is less, for the search's clock
        self.names: dict[str, list[tuple[float, Line]]] = {}
        for line in lines:
            if line.begun is not None:
                self._shift += max(line.time - self._shift - 60 * self.last, 0.0)
                self.began, self.total = self.last, line.begun
            else:
                self.last = max(self.minutes(line.time), self.last)
                self.names.setdefault(line.trial, []).append((self.last, line))

    def minutes(self, at: float) -> float:
        return (at - self._shift) / 60

    def trial(self, name: str, path: Path) -> Tried:
        """The trial ``name`` by its lines: of those that it went back behind, the later ones count."""
        reports: list[Report] = []
        config: dict[str, Any] = {}
        for minutes, line in self.names[name]:
            config = line.config or config
            if self.space.metric in line.metrics:
                amount = line.metrics.get("examples", line.metrics.get("step", 0.0))
                while reports and reports[-1].amount >= amount:
                    reports.pop()
                reports.append(Report(minutes, amount, line.metrics))
        until, last = self.names[name][-1]
        seconds = max((line.seconds for _, line in self.names[name] if line.state != "failed"), default=0.0)
        state = last.state
        if state == "running" and (not self.running or 0 < self.began >= until):
            state = "stopped"
        error = None
        if state == "failed" or (state == "ended" and not reports):
            state, error = "failed", last.error or f"it reported no {self.space.metric}"
        metrics = reports[-1].metrics if reports and not error else {}
        return Tried(name, config, metrics, seconds, error, state, tuple(reports), until, _curve(path, name))


def _curve(path: Path, name: str) -> dict[float, float]:
    """The validations of the run that the trial ``name`` trains, as far as they read."""
    if Path(name).name != name:
        return {}
    try:
        return {float(step): loss for step, loss in Run(path / "trials" / name).validations().items()}
    except UserError:
        return {}


def _lines(path: Path, space: SpaceConfig) -> list[Line]:
    """Those of the record, and of Tune's result.json for trials that are not in it, in the order of their time."""
    file = path / RECORD
    try:
        lines = [Line.model_validate(line) for line in read_lines(file)]
    except ValidationError as error:
        raise UserError(f"{file} is damaged: {error.errors()[0]['msg']}; put back a copy, or remove it") from None
    known = {line.trial for line in lines if line.trial}
    lines += [line for file in sorted(path.glob("tune/*/result.json")) for line in _former(file, space, known)]
    return sorted(lines, key=lambda line: line.time)


def _former(file: Path, space: SpaceConfig, known: set[str]) -> Iterator[Line]:
    """What a ``result.json`` and the error beside it tell; nothing where the trial is among the ``known`` ones."""
    folder = file.parent.name
    if any(folder == name or folder.startswith(f"{name}_") for name in known):  # Tune adds that to a second try
        return
    reported, error = list(read_lines(file)), file.with_name("error.txt")
    if not reported and not error.is_file():
        return
    config = reported[-1].get("config") if reported else read_json(file.with_name("params.json"))
    if not isinstance(config, dict):
        raise UserError(f"{file} does not say what the trial tried; put back a copy")
    if not reported:  # params.json has lost the order
        config = {key: config[key] for key in [*space.search, *config] if key in config}
    name = label(config) if space.searcher == "grid" else folder
    line = Line(time=error.stat().st_mtime if error.is_file() else 0.0, trial=name, config=config)
    for number, one in enumerate(reported):
        spent, at = (one.get(key) for key in ("time_total_s", "timestamp"))
        spent = float(spent) if isinstance(spent, int | float) else 0.0
        line.time = at if isinstance(at, int | float) else file.stat().st_mtime
        if number == 0:
            yield line.model_copy(update={"time": line.time - spent})
        yield line.model_copy(update={"seconds": spent, "metrics": figures(one)})
    told = error.read_text(encoding="utf-8", errors="replace").split("\n") if error.is_file() else []
    why = next((text.strip() for text in reversed(told) if text.strip()), None)
    yield line.model_copy(update={"state": "failed" if told else "ended", "error": why})
