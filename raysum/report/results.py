"""The sections of results: tables of evaluations with intervals, lengths, searches."""

from collections.abc import Mapping, Sequence
from itertools import chain

import numpy as np

from raysum.evaluate.scorers import FIGURES
from raysum.evaluate.table import cell
from raysum.report import charts, parts
from raysum.report.charts import Point
from raysum.report.gather import Evaluated, Trained
from raysum.report.searches import Searched
from raysum.tune.results import SHOWN, Trial
from raysum.tune.spaces import label, short

_DRAWN = ("facts_f1", "rouge1", "rouge2", "rougeL", "support", "attention_similarity")
_LISTED = 60  # trials of a table or plot, at most
_NAMED = 3  # the best so many dots have their names beside them
_OTHER = charts.COLORS - 1
_BINS = 24


def evaluations(found: Sequence[Evaluated], runs: Sequence[Trained]) -> str:
    """A table and plots of each evaluation; of several first the runs beside each other."""
    lacking = [
        parts.missing(f"No evaluation of {run.name}; this makes one:", f"raysum evaluate {run.run.path} --data DATA")
        for run in runs
        if not run.evaluations
    ]
    if not found and not lacking:
        lacking = [parts.missing("No evaluation here; this makes one:", "raysum evaluate RUN --data DATA")]
    beside = _beside(found) if len(found) > 1 else ""
    return parts.section("evaluation", "Evaluation", beside, *map(_evaluation, found), *lacking)


def _beside(found: Sequence[Evaluated]) -> str:
    """The first system of each evaluation."""
    first = [next(iter(one.table.systems.items()), ("", {})) for one in found]
    shown = {name: figure for name, figure in FIGURES.items() if any(name in figures for _, figures in first)}
    lines = [[figure.label, *(cell(figures, name, figure) for _, figures in first)] for name, figure in shown.items()]
    lines.append(["examples", *(str(one.table.examples) for one in found)])
    different = "They count ROUGE in different ways. " if len({_way(one) for one in found}) > 1 else ""
    told = f"The first system of each. {different}± is half of the 95 % interval."
    heads = [f"{one.name}: {name}" for one, (name, _) in zip(found, first, strict=True)]
    return parts.heading("Beside each other") + parts.note(told) + parts.table(["", *heads], lines, numbers=True)


def _way(one: Evaluated) -> str:
    return one.table.protocol.partition(" | n ")[0]


def _evaluation(one: Evaluated) -> str:
    systems = one.table.systems
    shown = {name: figure for name, figure in FIGURES.items() if any(name in figures for figures in systems.values())}
    lines = [
        [figure.label, *(cell(figures, name, figure) for figures in systems.values())] for name, figure in shown.items()
    ]
    drawn = [_intervals(one, name) for name in _DRAWN if name in shown]
    how = "".join(f"<dt>{parts.escape(name)}</dt><dd>{parts.escape(what)}</dd>" for name, what in one.table.how.items())
    told = f"{one.table.examples} examples; ± is half of the 95 % interval. ROUGE: {one.table.protocol}"
    return (
        parts.heading(one.name)
        + parts.table(["", *systems], lines, numbers=True)
        + parts.note(told)
        + (f"<dl>{how}</dl>" if how else "")
        + parts.charts(*drawn, *(_differences(one, name) for name in ("facts_f1", "rouge2")))
    )


def _intervals(one: Evaluated, name: str) -> str:
    """A figure of all systems, the first in a colour of its own."""
    known = [(system, figures) for system, figures in one.table.systems.items() if name in figures]
    first = next(iter(one.table.systems))
    rows = [_row(system, figures, name, 0 if system == first else _OTHER) for system, figures in known]
    return charts.rows(f"{_label(name)}, 95 % intervals", rows, _label(name))


def _differences(one: Evaluated, name: str) -> str:
    rows = [_row(pair, by, name, 1) for pair, by in one.table.differences.items() if name in by]
    return charts.rows(f"Differences in {_label(name)}, paired", rows, "points")


def _row(name: str, figures: Mapping[str, float], key: str, color: int) -> charts.Row:
    """The figure ``key`` with its interval, as far as that is known."""
    low, high = (figures.get(f"{key}_{end}", figures[key]) for end in ("low", "high"))
    return charts.Row(name, figures[key], low, high, color)


def lengths(found: Sequence[Evaluated]) -> str:
    """How long references and summaries are, in words."""
    known = [one for one in found if one.words]
    if not known:
        return ""
    return parts.section("lengths", "Lengths of summaries", *map(_lengths, known))


def _lengths(one: Evaluated) -> str:
    """References and the first system drawn, all as a table."""
    every = [*chain.from_iterable(one.words.values())]
    width = max(1, -(-(max(every) + 1 - min(every)) // _BINS))
    edges = np.arange(min(every), max(every) + 1 + width, width)
    drawn, lines = [], []
    for number, (name, values) in enumerate(one.words.items()):
        shares = (100 * np.histogram(values, edges)[0] / len(values)).tolist()
        bins = zip(edges.tolist(), shares, strict=False)
        told = f"{name}, words from %d to %d: %.1f %%"
        points = [Point(at + (width - 1) / 2, share, told % (at, at + width - 1, share)) for at, share in bins]
        drawn.append(charts.Line(name, points, _OTHER if number == 0 else number - 1))
        low, middle, high = np.percentile(values, (5, 50, 95))
        lines.append([name, f"{np.mean(values):.1f}", f"{low:.0f}", f"{middle:.0f}", f"{high:.0f}"])
    figure = charts.lines(f"{one.name}: words of a summary", drawn[:2], "words", "% of the summaries")
    counted = parts.table(["words", "mean", "5 % below", "median", "5 % above"], lines, numbers=True)
    return f'<div class="charts">{figure}<div>{counted}</div></div>'


def searches(found: Sequence[Searched], runs: Sequence[Trained]) -> str:
    """The trials of each search, drawn and as a table."""
    if not found:
        run = str(runs[0].run.path) if runs else "RUN"
        told = parts.missing("No search here; this makes one:", f"raysum tune beta run={run} data=DATA out=SEARCH")
        return parts.section("search", "Searches", told)
    return parts.section("search", "Searches", *map(_search, found))


def _search(search: Searched) -> str:
    space, trials = search.space, search.trials[:_LISTED]
    told = f"{space.about}. {len(search.trials)} trials by {space.metric}, best first."
    told += "" if len(trials) == len(search.trials) else f" The best {len(trials)} are shown."
    told += "" if search.ended else " It has not ended; its `raysum tune` command goes on with it."
    ended = [trial for trial in trials if not trial.error]
    drawn = (_costs if space.kind == "train" else _decoding)(search, ended)
    after = _search(search.then) if search.then else ""
    return parts.heading(search.name) + parts.note(told) + drawn + (_trials(search, trials) if trials else "") + after


def _trials(search: Searched, trials: Sequence[Trial]) -> str:
    metric = search.space.metric
    shown = {name: figure for name, figure in SHOWN.items() if any(name in trial.metrics for trial in trials)}
    lines = []
    for trial in trials:
        cells = [cell(trial.metrics, name, figure, interval=name == metric) for name, figure in shown.items()]
        name = f"{label(trial.config)} failed: {trial.error}" if trial.error else label(trial.config)
        lines.append([name, *cells, parts.duration(trial.seconds)])
    return parts.table(["trial", *(figure.label for figure in shown.values()), "time"], lines, numbers=True)


def _decoding(search: Searched, trials: Sequence[Trial]) -> str:
    """The metric over the first key that is searched where it is a number, a line for each value of the others; else
    trial by trial."""
    space, metric = search.space, search.space.metric
    values = [next(iter(trial.config.values()), None) for trial in trials]
    few = len(space.search) <= (2 if space.searcher == "grid" else 1)
    if not few or not all(isinstance(value, int | float) for value in values):
        return parts.charts(_ranked(trials, metric))
    lines: dict[str, list[Point]] = {}
    for trial, value in zip(trials, values, strict=True):
        told = f"{label(trial.config)}: {metric} {trial.metrics[metric]:.2f}"
        other = ", ".join(map(short, [*trial.config.values()][1:]))
        row = _row(other, trial.metrics, metric, 0)
        lines.setdefault(other, []).append(Point(float(value or 0), row.value, told, row.low, row.high))
    key = next(iter(space.search)).removeprefix("decode.")
    drawn = [
        charts.Line(other, sorted(lines[other], key=lambda point: point.x), number)
        for number, other in enumerate(sorted(lines))
    ]
    return parts.charts(charts.lines(f"{_label(metric)} over {key}", drawn, key, f"{_label(metric)}, 95 % intervals"))


def _costs(search: Searched, trials: Sequence[Trial]) -> str:
    """Trained models by quality, and their quality over parameters and time; the best in a colour of its own."""
    metric, over = search.space.metric, {"parameters": "parameters", "train_seconds": "seconds of training"}
    drawn = []
    for cost, told in over.items():
        points = [_dot(place, trial, metric, cost) for place, trial in enumerate(trials) if cost in trial.metrics]
        groups = {"the others": (points[1:], _OTHER), "the best": (points[:1], 1)}
        dots = [charts.Line(name, some, color, dots=True) for name, (some, color) in groups.items()]
        drawn.append(charts.lines(f"{_label(metric)} by {told}", dots, told, _label(metric), log_x=True))
    return parts.charts(*drawn, _ranked(trials, metric))


def _dot(place: int, trial: Trial, metric: str, cost: str) -> Point:
    """A trial, the best few with their names."""
    paid, value = trial.metrics[cost], trial.metrics[metric]
    told = f"{label(trial.config)}: {metric} {value:.4g}, {charts.short(paid)} {cost}"
    name = "/".join(map(short, trial.config.values())) if place < _NAMED else ""
    return Point(paid, value, told, label=name)


def _ranked(trials: Sequence[Trial], metric: str) -> str:
    rows = [
        _row(label(trial.config), trial.metrics, metric, _OTHER if place else 1) for place, trial in enumerate(trials)
    ]
    return charts.rows(f"Trials by {_label(metric)}", rows, _label(metric))


def _label(metric: str) -> str:
    return {**FIGURES, **SHOWN}[metric].label.strip()
