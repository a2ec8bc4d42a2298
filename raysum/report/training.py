"""The sections of runs: their learning curves, costs and configs."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from raysum.config.loading import dump
from raysum.pages import charts, parts
from raysum.pages.charts import Point
from raysum.report.gather import MetricsLine, RunRecord
from raysum.runtime.storage import read_json

_POINTS = 500  # of a line, at most


def curves(runs: Sequence[RunRecord]) -> str:
    """Return plots with all runs: loss over steps and time, and the other metrics of training."""
    known = [run for run in runs if run.lines]
    lacking = "".join(
        parts.missing(
            f"{run.name} has no metrics.jsonl; training writes it:", f"raysum train {run.run.path}/config.yaml"
        )
        for run in runs
        if not run.lines
    )
    if not runs:
        lacking = parts.missing("No run here; this makes one:", "raysum train PRESET data=DATA out=RUN")
    drawn = [
        loss(known),
        charts.lines("Loss over time", _losses(known, _seconds), "minutes of training", "loss", log_y=True),
        charts.lines("Learning rate", _each(known, "lr"), "step", "learning rate"),
        charts.lines("Speed", _each(known, "tokens_per_s"), "step", "tokens a second"),
        charts.lines("Gradient", _each(known, "grad_norm"), "step", "norm", log_y=True),
        charts.lines("Attention predictor", _predictors(known), "step", "loss", log_y=True),
    ]
    text = "Thin: training. With dots: validation." if known else ""
    return parts.section("curves", "Learning curves", parts.note(text), parts.charts(*drawn), lacking)


def loss(runs: Sequence[RunRecord]) -> str:
    """A figure of it, over steps."""
    return charts.lines("Loss", _losses(runs, _steps), "step", "loss", log_y=True)


def _losses(runs: Sequence[RunRecord], place: Callable[[RunRecord], dict[int, float]]) -> list[charts.Line]:
    """Of each run two lines of one colour, of a single one of two."""
    drawn, one = [], len(runs) == 1
    for number, run in enumerate(runs):
        at = place(run)
        trained = {line.step: line.loss for line in run.lines if line.loss is not None}
        names = ("training", "validation") if one else ("", run.name)
        shown = _points(run.name, at, _thinned(trained)), _points(run.name, at, _thinned(run.validations))
        drawn.append(charts.Line(names[0], shown[0], number, faint=True))
        drawn.append(charts.Line(names[1], shown[1], number + one))
    return drawn


def _points(name: str, at: dict[int, float], values: dict[int, float]) -> list[Point]:
    return [Point(at[step], loss, f"{name}, step {step}: {loss:.4g}") for step, loss in values.items() if step in at]


def _steps(run: RunRecord) -> dict[int, float]:
    return {line.step: line.step for line in run.lines}


def _seconds(run: RunRecord) -> dict[int, float]:
    """Minutes by step: a validation is where the step was that it came after."""
    return {line.step: line.seconds / 60 for line in run.lines if line.seconds is not None}


def _each(runs: Sequence[RunRecord], field: str) -> list[charts.Line]:
    lines = []
    for number, run in enumerate(runs):
        values = {line.step: value for line in run.lines if (value := getattr(line, field)) is not None}
        lines.append(charts.Line(run.name, _points(run.name, _steps(run), _thinned(values)), number, faint=True))
    return lines


def _predictors(runs: Sequence[RunRecord]) -> list[charts.Line]:
    drawn = []
    for number, run in enumerate(runs):
        values = {line.step: line.loss for line in run.predictor if line.loss is not None}
        at = {step: float(step) for step in values}
        drawn.append(charts.Line(run.name, _points(run.name, at, _thinned(values)), number))
    return drawn


def _thinned(values: dict[int, float]) -> dict[int, float]:
    """Every so many of ``values``, and the last."""
    every = -(-len(values) // _POINTS) or 1
    return {step: value for number, (step, value) in enumerate(values.items(), 1 - len(values)) if number % every == 0}


def costs(runs: Sequence[RunRecord]) -> str:
    """Return a table of the runs: their models, steps and costs."""
    if not runs:
        return ""
    columns = [_facts(run) for run in runs]
    names = dict.fromkeys(name for column in columns for name in column)
    lines = [[name, *(column.get(name, "") for column in columns)] for name in names]
    drawn = ""
    if len(runs) > 1:
        drawn = parts.charts(
            over_cost(runs, "Loss by size", "parameters", lambda run: run.parameters),
            over_cost(runs, "Loss by time", "minutes of training", lambda run: run.state.get("seconds", 0) / 60),
        )
    return parts.section("runs", "Runs", parts.table(["", *(run.name for run in runs)], lines), drawn)


def over_cost(runs: Sequence[RunRecord], title: str, x: str, cost: Callable[[RunRecord], float]) -> str:
    """The best validation loss of each run over what it cost."""
    known = [(number, run, run.validations.get(run.best or 0)) for number, run in enumerate(runs)]
    dots = [
        charts.Line(run.name, [Point(cost(run), loss, f"{run.name}: {loss:.4f}")], number, dots=True)
        for number, run, loss in known
        if loss is not None and cost(run)
    ]
    return charts.lines(title, dots, x, "validation loss", log_x=True)


def _facts(run: RunRecord) -> dict[str, str]:
    model: dict[str, Any] = run.run.config.model.model_dump()
    shown = ("system", "encoder", "decoder", "layers", "width", "heads")
    found = {name: str(model[name]) for name in shown if model.get(name) is not None}
    state, lines, validations = run.state, run.lines, run.validations
    speeds = sorted(line.tokens_per_s for line in lines if line.tokens_per_s is not None)
    memory = max((line.peak_rss_mb for line in lines if line.peak_rss_mb is not None), default=None)
    found |= {"parameters": f"{run.parameters:,}"} if run.parameters else {}
    found |= {"steps": f"{lines[-1].step:,}"} if lines else {}
    found |= {"best step": f"{run.best:,}"} if run.best is not None else {}
    found |= {"its validation loss": f"{validations[run.best]:.4f}"} if run.best in validations else {}
    found |= {"time of training": parts.duration(state["seconds"])} if state.get("seconds") else {}
    for name in ("source_tokens", "target_tokens"):
        found |= {name.replace("_", " "): f"{state[name]:,}"} if state.get(name) else {}
    found |= {"tokens a second, median": f"{speeds[len(speeds) // 2]:,.0f}"} if speeds else {}
    found |= {"peak memory of a worker": f"{memory:,.0f} MB"} if memory else {}
    found |= {name: str(state[name]) for name in ("workers", "dtype") if name in state}
    found |= {"ZeRO stage": str(state["stage"])} if "stage" in state else {}
    predictor: Sequence[MetricsLine] = [line for line in run.predictor if line.valid_loss is not None]
    found |= {"predictor's validation loss": f"{predictor[-1].valid_loss:.4g}"} if predictor else {}
    return found | {"data": str(run.run.config.data or ""), "folder": str(run.run.path)}


def configs(runs: Sequence[RunRecord]) -> str:
    """Where the configs differ, then each whole, and what a search found best of its decoding."""
    if not runs:
        return ""
    whole = [flat(run.run.config.model_dump(mode="json")) for run in runs]
    keys = dict.fromkeys(key for values in whole for key in values)
    differing = [key for key in keys if len({str(values.get(key, "")) for values in whole}) > 1]
    lines = [[key, *(str(values.get(key, "")) for values in whole)] for key in differing]
    beside = parts.table(["where they differ", *(run.name for run in runs)], lines) if lines else ""
    texts = [parts.folded(f"{run.name}: config.yaml", parts.code(dump(run.run.config))) for run in runs]
    found = [_file(run, name) for run in runs for name in ("decode.yaml", "recipe.json")]
    return parts.section("config", "Configuration", beside, *texts, *found)


def _file(run: RunRecord, name: str) -> str:
    """One of the run's files, where it has it."""
    file: Path = run.run.path / name
    if not file.is_file():
        return ""
    values = flat(read_json(file)) if name.endswith("json") else flat(run.run.decode.model_dump(mode="json"))
    text = {"decode.yaml": "decoding, as a search found it best", "recipe.json": "recipe of its data"}[name]
    return parts.folded(f"{run.name}: {text}", parts.code("\n".join(f"{key}: {one}" for key, one in values.items())))


def flat(values: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    """Nested ``values`` by dotted keys."""
    found: dict[str, Any] = {}
    for key, value in values.items():
        found |= flat(value, f"{prefix}{key}.") if isinstance(value, dict) and value else {f"{prefix}{key}": value}
    return found
