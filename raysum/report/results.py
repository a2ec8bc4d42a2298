"""The sections of results: tables of evaluations with intervals, lengths, searches."""

from collections.abc import Sequence

import numpy as np

from raysum.evaluate.scorers import HEADLINES
from raysum.evaluate.table import figure_table
from raysum.pages import charts, parts
from raysum.pages.charts import Chart, Line, Point
from raysum.report.gather import EvaluationRecord, RunRecord
from raysum.tune.page import interval_row, metric_title, search_section
from raysum.tune.record import SearchRecord

_DRAWN = (*HEADLINES, "rouge1", "rouge2", "rougeL", "support", "attention_similarity")
_OTHER = charts.COLORS - 1
_BINS = 24


def evaluations(evaluated: Sequence[EvaluationRecord], runs: Sequence[RunRecord]) -> str:
    """Return a table and charts of each evaluation, before them a table of all first systems if there are several."""
    commands = {f"No evaluation of {r.name}; this makes one:": str(r.run.path) for r in runs if not r.evaluations}
    if not evaluated and not commands:
        commands = {"No evaluation here; this makes one:": "RUN"}
    missing = (parts.missing(text, f"raysum evaluate {run} --data DATA") for text, run in commands.items())
    beside = _beside(evaluated) if len(evaluated) > 1 else ""
    return parts.section("evaluation", "Evaluation", beside, *map(_evaluation, evaluated), *missing)


def _beside(evaluated: Sequence[EvaluationRecord]) -> str:
    """Return a table of the first system of each evaluation."""
    first = []
    for each in evaluated:
        name, figures = next(iter(each.table.systems.items()), ("", {}))
        first.append((f"{each.name}: {name}", figures))
    table = figure_table(first)
    table.loc["examples"] = [str(each.table.examples) for each in evaluated]
    different = "They count ROUGE in different ways. " if len({each.table.counting for each in evaluated}) > 1 else ""
    note = f"The first system of each. {different}± is half of the 95 % interval."
    return parts.heading("Beside each other") + parts.note(note) + parts.numbers(table)


def _evaluation(evaluated: EvaluationRecord) -> str:
    table = evaluated.table
    how = "".join(f"<dt>{parts.escape(name)}</dt><dd>{parts.escape(what)}</dd>" for name, what in table.how.items())
    note = f"{table.examples} examples; ± is half of the 95 % interval. ROUGE: {table.protocol}"
    drawn = []
    for name in _DRAWN:
        systems = [(system, own, _OTHER if number else 0) for number, (system, own) in enumerate(table.systems.items())]
        rows = [interval_row(system, own, name, color) for system, own, color in systems if name in own]
        drawn.append(charts.RowChart(f"{metric_title(name)}, 95 % intervals", rows, metric_title(name)))
    for name in (*HEADLINES, "rouge2"):
        rows = [interval_row(pair, gaps, name, 1) for pair, gaps in table.differences.items() if name in gaps]
        drawn.append(charts.RowChart(f"Differences in {metric_title(name)}, paired", rows, "points", from_zero=True))
    return (
        parts.heading(evaluated.name)
        + parts.numbers(figure_table(table.systems.items()))
        + parts.note(note)
        + (f"<dl>{how}</dl>" if how else "")
        + charts.side_by_side(*drawn)
    )


def lengths(evaluated: Sequence[EvaluationRecord]) -> str:
    """Return the lengths of references and summaries, in words."""
    known = [each for each in evaluated if not each.words.empty]
    return parts.section("lengths", "Lengths of summaries", *map(_lengths, known)) if known else ""


def _lengths(evaluated: EvaluationRecord) -> str:
    """Return a chart of the references and the first system, and a table of all systems."""
    words = evaluated.words
    low, high = int(words.to_numpy().min()), int(words.to_numpy().max()) + 1
    width = max(1, -(-(high - low) // _BINS))
    edges = np.arange(low, high + width, width)
    drawn = []
    for number, name in enumerate(words.columns[:2]):
        shares = 100 * np.histogram(words[name], edges)[0] / len(words)
        points = [
            Point(at + (width - 1) / 2, share, f"{name}, words from {at} to {at + width - 1}: {share:.1f} %")
            for at, share in zip(edges, shares, strict=False)
        ]
        drawn.append(Line(name, points, _OTHER if number == 0 else number - 1))
    chart = Chart(f"{evaluated.name}: words of a summary", drawn, "words", "% of the summaries")
    statistics = words.describe(percentiles=[0.05, 0.5, 0.95]).T[["mean", "5%", "50%", "95%"]]
    lines = [
        [name, f"{mean:.1f}", *(f"{value:.0f}" for value in rest)] for name, mean, *rest in statistics.itertuples()
    ]
    counted = parts.table(["words", "mean", "5 % below", "median", "5 % above"], lines, numbers=True)
    return f'<div class="charts">{chart.html()}<div>{counted}</div></div>'


def searches(found: Sequence[SearchRecord], runs: Sequence[RunRecord]) -> str:
    """Return the trials of each search, as charts and tables."""
    content = [*map(search_section, found)]
    if not found:
        run = runs[0].run.path if runs else "RUN"
        content = [parts.missing("No search here; this makes one:", f"raysum tune beta run={run} data=DATA out=SEARCH")]
    return parts.section("search", "Searches", *content)
