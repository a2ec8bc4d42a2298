"""The record of a search: lines that the driver writes while trials run, and the states and reports in them.

Ray Tune's own files appear late. They are read only for searches of earlier versions, which have no record.
"""

import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import BaseModel, Field

from raysum.config.loading import parse_yaml, read_text
from raysum.config.problems import validate
from raysum.errors import UserError
from raysum.evaluate.saved import Figures, checked
from raysum.runs.folder import Run
from raysum.runtime.lock import LOCK, is_held
from raysum.runtime.storage import append_line, read_json, read_lines
from raysum.tune.objective import FIGURES
from raysum.tune.results import Trial, TrialReport, ranked
from raysum.tune.schema import SpaceConfig
from raysum.tune.spaces import label

RECORD = "progress.jsonl"
_METRICS = {"examples", *(key + end for key in FIGURES for end in ("", "_low", "_high"))}  # of Tune's result.json


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


@dataclass(frozen=True)
class SearchRecord:
    """A search with its space and trials, best first; ``then`` is the search after it.

    Minutes count from the start of the search, without pauses between sessions. ``began`` is the start of the last one.
    """

    name: str
    path: Path
    space: SpaceConfig
    trials: list[Trial]
    ended: bool
    running: bool = False
    total: int = 0
    began: float = 0.0
    minutes: float = 0.0
    then: "SearchRecord | None" = None

    @property
    def state(self) -> str:
        return "running" if self.running else "finished" if self.ended else "interrupted"

    @property
    def whole(self) -> float:
        """The steps or examples of a whole trial, as far as they are known."""
        return max((report.amount for trial in self.trials for report in trial.reports), default=0.0)

    @property
    def left(self) -> float | None:
        """Minutes until all trials end, at the speed of this session; None before the first trial ends."""
        current = [trial for trial in self.trials if not self.began or trial.until > self.began]
        spent = self.minutes - self.began
        if not self.running or not any(trial.state == "ended" for trial in current) or not spent > 0:
            return None
        left = max(self.total - sum(map(self._share, self.trials)), 0.0)
        return left * spent / sum(map(self._share, current))

    def _share(self, trial: Trial) -> float:
        """Return the completed share of a trial."""
        if trial.state in ("ended", "failed"):
            return 1.0
        return trial.reports[-1].amount / self.whole if trial.reports and self.whole else 0.0


def read_search(path: Path, running: bool | None = None) -> SearchRecord:
    """Return the search in a folder. Its lock shows whether it runs, if ``running`` is None.

    Raises UserError if a file is damaged.
    """
    file = path / "search.yaml"
    values, locations = parse_yaml(read_text(file), str(file))
    space, name = searched_space(values, locations, file), values.get("name") or "a space"
    running = is_held(path / LOCK) if running is None else running
    lines, then = _lines(path, space), path / str(space.then)
    start = lines[0].time if lines else time.time()  # moved by the pauses between sessions
    began, last, total, by_trial = 0.0, 0.0, 0, dict[str, list[tuple[float, RecordLine]]]()
    for line in lines:
        if line.begun is None:
            last = max((line.time - start) / 60, last)
            by_trial.setdefault(line.trial, []).append((last, line))
        else:
            start += max(line.time - start - 60 * last, 0.0)
            began, total = last, line.begun
    resumed = began if running else float("inf")
    trials = [_trial(path, name, space.metric, own, resumed) for name, own in by_trial.items()]
    return SearchRecord(
        name=path.name if path.name == name else f"{path.name} ({name})",
        path=path,
        space=space,
        trials=ranked(space, trials),
        ended=(path / "best.json").is_file(),
        running=running,
        total=max(total, len(trials)),
        began=began,
        minutes=(time.time() - start) / 60 if running else last,
        then=read_search(then) if space.then and (then / "search.yaml").is_file() else None,
    )


def searched_space(values: dict[str, Any], locations: dict[str, str], file: Path) -> SpaceConfig:
    """Return the space in the ``values`` of a search.yaml, which may lack settings of later versions.

    Raises UserError if it is missing or not valid.
    """
    if not isinstance(values.get("space"), dict):
        raise UserError(f"{file} does not contain the search space; put back a copy, or search again")
    inner = {key.removeprefix("space."): location for key, location in locations.items()}
    return validate(_without_unset(values["space"]), inner, SpaceConfig)


def _without_unset(values: dict[str, Any]) -> dict[str, Any]:
    """Return ``values`` without null values and empty sections, which were not set by the user."""
    inner = {key: _without_unset(value) if isinstance(value, dict) else value for key, value in values.items()}
    return {key: value for key, value in inner.items() if value not in (None, {})}


def _trial(path: Path, name: str, metric: str, lines: Sequence[tuple[float, RecordLine]], resumed: float) -> Trial:
    """Return the trial ``name``. If a resumed trial repeats a report, the later one counts."""
    reports, config = list[TrialReport](), dict[str, Any]()
    for minutes, line in lines:
        config = line.config or config
        if metric in line.metrics:
            amount = line.metrics.get("examples", line.metrics.get("step", 0.0))
            reports = [report for report in reports if report.amount < amount]
            reports.append(TrialReport(minutes, amount, line.metrics))
    until, last = lines[-1]
    state, error = last.state, None
    if state == "running" and 0 < resumed >= until:
        state = "stopped"
    elif state == "failed" or (state == "ended" and not reports):
        state, error = "failed", last.error or f"it reported no {metric}"
    metrics = reports[-1].metrics if reports and not error else {}
    seconds = max(line.seconds for _, line in lines)
    curve = {report.amount: report.metrics[metric] for report in reports}
    with suppress(UserError):  # validations.json may be damaged
        validated = metric if metric == "valid_loss" else f"valid_{metric}"
        validations = Run(path / "trials" / Path(name).name).validations(validated)
        curve = {float(step): loss for step, loss in validations.items()} or curve
    return Trial(name, config, metrics, seconds, error, state, reports, until, curve)


def _lines(path: Path, space: SpaceConfig) -> list[RecordLine]:
    """Return the lines of the record, and of Tune's result.json for trials that are not in it, by time."""
    record = path / RECORD
    lines = [checked(RecordLine, line, record) for line in read_lines(record)]
    known = tuple(f"{line.trial}_" for line in lines if line.trial)
    for file in sorted(path.glob("tune/*/result.json")):
        if not f"{file.parent.name}_".startswith(known):  # Tune adds a suffix for a second try
            lines += _tune_lines(file, space)
    return sorted(lines, key=lambda line: line.time)


def _tune_lines(file: Path, space: SpaceConfig) -> Iterator[RecordLine]:
    """Yield lines from the files that Tune writes for a trial: its start, its results, and its end."""
    results, error = [*read_lines(file)], file.with_name("error.txt")
    has_failed, written = error.is_file(), file.stat().st_mtime
    if not results and not has_failed:
        return
    settings = results[-1].get("config") if results else read_json(file.with_name("params.json"))
    line = checked(RecordLine, {"time": error.stat().st_mtime if has_failed else written, "config": settings}, file)
    if not results:  # params.json is sorted
        keys = [key for key in [*space.search, *line.config] if key in line.config]
        line.config = {key: line.config[key] for key in keys}
    line.trial = label(line.config) if space.searcher == "grid" else file.parent.name
    for number, result in enumerate(results):
        at, seconds = result.get("timestamp", written), result.get("time_total_s", 0.0)
        values = {"time": at, "seconds": seconds, "metrics": {key: result[key] for key in _METRICS & result.keys()}}
        line = checked(RecordLine, line.model_dump() | values, file)
        if number == 0:
            yield line.model_copy(update={"time": line.time - line.seconds, "metrics": {}})
        yield line
    reasons = error.read_text(encoding="utf-8", errors="replace").strip().splitlines() if has_failed else []
    reason = reasons[-1] if reasons else None
    yield line.model_copy(update={"state": "failed" if has_failed else "ended", "error": reason})
