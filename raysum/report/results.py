"""The sections of results: tables of evaluations with intervals, lengths, searches."""

from collections.abc import Sequence
from itertools import chain

import numpy as np

from raysum.evaluate.scorers import FIGURES, HEADLINES
from raysum.evaluate.table import cell
from raysum.pages import charts, parts
from raysum.pages.charts import Point
from raysum.report.gather import Evaluated, RunRecord
from raysum.tune.page import interval_row, metric_title, search_section
from raysum.tune.record import SearchRecord

_DRAWN = (*HEADLINES, "rouge1", "rouge2", "rougeL", "support", "attention_similarity")
_OTHER = charts.COLORS - 1
_BINS = 24


def evaluations(found: Sequence[Evaluated], runs: Sequence[RunRecord]) -> str:
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
        + parts.charts(*drawn, *(_differences(one, name) for name in (*HEADLINES, "rouge2")))
    )


def _intervals(one: Evaluated, name: str) -> str:
    """A figure of all systems, the first in a colour of its own."""
    known = [(system, figures) for system, figures in one.table.systems.items() if name in figures]
    first = next(iter(one.table.systems))
    rows = [interval_row(system, figures, name, 0 if system == first else _OTHER) for system, figures in known]
    return charts.rows(f"{metric_title(name)}, 95 % intervals", rows, metric_title(name))


def _differences(one: Evaluated, name: str) -> str:
    rows = [interval_row(pair, by, name, 1) for pair, by in one.table.differences.items() if name in by]
    return charts.rows(f"Differences in {metric_title(name)}, paired", rows, "points")


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


def searches(found: Sequence[SearchRecord], runs: Sequence[RunRecord]) -> str:
    """The trials of each search, drawn and as tables."""
    if not found:
        run = str(runs[0].run.path) if runs else "RUN"
        told = parts.missing("No search here; this makes one:", f"raysum tune beta run={run} data=DATA out=SEARCH")
        return parts.section("search", "Searches", told)
    return parts.section("search", "Searches", *map(search_section, found))
