"""The sections of runs: their learning curves, costs and configs."""

from collections.abc import Mapping, Sequence
from math import ceil
from typing import Any

import numpy as np
import pandas as pd

from raysum.config.loading import dump, leaves
from raysum.pages import charts, parts
from raysum.pages.charts import Chart, Line, Point
from raysum.report.gather import RunRecord

_POINTS = 500  # of a line, at most
_SHAPE = ("system", "encoder", "decoder", "layers", "width", "heads")


def curves(runs: Sequence[RunRecord]) -> str:
    """Return plots with all runs: loss over steps and time, and the other metrics of training.

    A plot needs two points of a run. Without any plot, as for an extractor, there is no section.
    """
    known = [run for run in runs if not run.lines.empty]
    missing = [
        parts.missing(
            f"{run.name} has no metrics.jsonl; training writes it:", f"raysum train {run.run.path}/config.yaml"
        )
        for run in runs
        if run.lines.empty
    ]
    if not runs:
        missing = [parts.missing("No run here; this makes one:", "raysum train PRESET data=DATA out=RUN")]
    predictors = [
        Line(run.name, _points(run.name, run.predictor, "step", "loss"), number) for number, run in enumerate(known)
    ]
    drawn = [
        loss(known),
        Chart("Loss over time", _losses(known, "minutes"), "minutes of training", "loss", log="y"),
        Chart("Learning rate", _each(known, "lr"), "step", "learning rate"),
        Chart("Speed", _each(known, "tokens_per_s"), "step", "tokens a second"),
        Chart("Gradient", _each(known, "grad_norm"), "step", "norm", log="y"),
        Chart("Attention predictor", predictors, "step", "loss", log="y"),
    ]
    drawn = [chart for chart in drawn if any(len(line.points) > 1 for line in chart.lines)]
    if not drawn and not missing:
        return ""
    text = "Thin: training. With dots: validation." if drawn else ""
    return parts.section("curves", "Learning curves", parts.note(text), charts.side_by_side(*drawn), *missing)


def loss(runs: Sequence[RunRecord]) -> Chart:
    """Return a chart of the loss over steps."""
    return Chart("Loss", _losses(runs, "step"), "step", "loss", log="y")


def _losses(runs: Sequence[RunRecord], x: str) -> list[Line]:
    """Return two lines for each run, in one colour if there are several runs."""
    drawn, single = [], len(runs) == 1
    for number, run in enumerate(runs):
        seconds = run.lines.dropna(subset="seconds").groupby("step")["seconds"].last()
        minutes = np.interp(run.lines["step"], [0, *seconds.index], [0.0, *seconds / 60])  # also of validations
        lines = run.lines.assign(minutes=minutes if len(seconds) else np.nan)
        names = ("training", "validation") if single else ("", run.name)
        drawn.append(Line(names[0], _points(run.name, lines, x, "loss"), number, faint=True))
        drawn.append(Line(names[1], _points(run.name, lines, x, "valid_loss"), number + single))
    return drawn


def _each(runs: Sequence[RunRecord], column: str) -> list[Line]:
    return [
        Line(run.name, _points(run.name, run.lines, "step", column), number, faint=True)
        for number, run in enumerate(runs)
    ]


def _points(name: str, lines: pd.DataFrame, x: str, y: str) -> list[Point]:
    """Return the last known value of each step; of many steps only some, and the last one."""
    known = lines.dropna(subset=[x, y]).drop_duplicates("step", keep="last")
    thinned = known.iloc[:: -max(1, ceil(len(known) / _POINTS))][::-1]
    return [
        Point(at, value, f"{name}, step {step}: {value:.4g}")
        for step, at, value in zip(thinned["step"], thinned[x], thinned[y], strict=True)
    ]


def costs(runs: Sequence[RunRecord]) -> str:
    """Return a table of the runs: their models, steps and costs."""
    if not runs:
        return ""
    drawn = []
    if len(runs) > 1:
        drawn = [
            _over_cost(runs, "Loss by size", "parameters", [run.parameters for run in runs]),
            _over_cost(runs, "Loss by time", "minutes of training", [run.state.get("seconds", 0) / 60 for run in runs]),
        ]
    return parts.section("runs", "Runs", _beside("", runs, [*map(_facts, runs)]), charts.side_by_side(*drawn))


def _over_cost(runs: Sequence[RunRecord], title: str, x: str, costs: Sequence[float]) -> Chart:
    """Return a chart of the best validation loss of each run over its cost."""
    dots = []
    for number, (run, cost) in enumerate(zip(runs, costs, strict=True)):
        if cost and run.best in run.validations:
            value = run.validations[run.best]
            dots.append(Line(run.name, [Point(cost, value, f"{run.name}: {value:.4f}")], number, dots=True))
    return Chart(title, dots, x, "validation loss", log="x")


def _facts(run: RunRecord) -> dict[str, str]:
    """Return the facts about a run that are known."""
    model, state, lines = run.run.config.model, run.state, run.lines
    facts: list[tuple[str, str, Any]] = [
        *((name, "{}", getattr(model, name, None)) for name in _SHAPE),
        ("parameters", "{:,}", run.parameters or None),
        ("steps", "{:,}", lines["step"].max()),
        ("best step", "{:,}", run.best),
        ("its validation loss", "{:.4f}", run.validations.get(run.best or 0)),
        ("time of training", "{}", parts.duration(state["seconds"]) if state.get("seconds") else None),
        ("source tokens", "{:,}", state.get("source_tokens") or None),
        ("target tokens", "{:,}", state.get("target_tokens") or None),
        ("tokens a second, median", "{:,.0f}", lines["tokens_per_s"].median()),
        ("peak memory of a worker", "{:,.0f} MB", lines["peak_rss_mb"].max()),
        ("workers", "{}", state.get("workers")),
        ("dtype", "{}", state.get("dtype")),
        ("ZeRO stage", "{}", state.get("stage")),
        ("predictor's validation loss", "{:.4g}", run.predictor["valid_loss"].dropna().iloc[-1:].max()),
        ("data", "{}", run.run.config.data),
        ("folder", "{}", run.run.path),
    ]
    return {name: text.format(value) for name, text, value in facts if not pd.isna(value)}


def configs(runs: Sequence[RunRecord]) -> str:
    """Return the keys in which the configs differ, each config, and the best decoding settings of a search."""
    if not runs:
        return ""
    values = pd.DataFrame(
        [{key: str(value) for key, value in leaves(run.run.config.model_dump(mode="json"))} for run in runs]
    ).fillna("")
    differing = values.loc[:, values.nunique() > 1]
    beside = "" if differing.empty else _beside("where they differ", runs, differing.to_dict("records"))
    texts = [parts.folded(f"{run.name}: config.yaml", parts.code(dump(run.run.config))) for run in runs]
    for run in runs:
        if (run.run.path / "decode.yaml").is_file():
            texts.append(_settings(run, "decoding, as a search found it best", run.run.decode.model_dump(mode="json")))
        if (run.run.path / "recipe.json").is_file():
            texts.append(_settings(run, "recipe of its data", run.run.recipe))
    return parts.section("config", "Configuration", beside, *texts)


def _settings(run: RunRecord, title: str, values: dict[str, Any]) -> str:
    lines = (f"{key}: {value}" for key, value in leaves(values))
    return parts.folded(f"{run.name}: {title}", parts.code("\n".join(lines)))


def _beside(title: str, runs: Sequence[RunRecord], columns: Sequence[Mapping[Any, str]]) -> str:
    """Return a table with a column for each run."""
    names = dict.fromkeys(name for column in columns for name in column)
    lines = [[name, *(column.get(name, "") for column in columns)] for name in names]
    return parts.table([title, *(run.name for run in runs)], lines)
