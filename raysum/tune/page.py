"""A search as HTML: charts and tables of its trials, for reports and for its own page, which updates itself."""

import math
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from raysum.evaluate.scorers import FIGURES
from raysum.evaluate.table import cell
from raysum.pages import charts, parts
from raysum.pages.charts import Line, Point
from raysum.pages.parts import document
from raysum.runtime.progress import say
from raysum.runtime.storage import write_text
from raysum.tune.record import SearchRecord, TrialRecord, read_search
from raysum.tune.results import SHOWN
from raysum.tune.spaces import label, short_value

REFRESH_SECONDS = 5.0  # between reloads of the page of a running search or training
_PAUSE, _MAX_PAUSE = 20, 30.0  # the pause after writing a page: a multiple of its CPU seconds; maximum seconds
_LISTED, _RANKED = 60, 20  # trials in a plot and in an open table; trials in a chart with a row each
_NAMED = 3  # this many best dots have a label
_COLORED = 6  # up to this many trials have their own colours; otherwise only the best one does
_BEST, _OTHER = 1, charts.COLORS - 1


@contextmanager
def live_page(out: Path) -> Iterator[Path]:
    """Keep the page of the search in ``out`` current during the block, and write its end after it.

    An error of reading or writing is reported once and does not stop the search.
    """
    stopped, file, errors = threading.Event(), out / "index.html", list[str]()

    def write(running: bool) -> None:
        try:
            write_text(file, search_page(read_search(out, running)))
        except Exception as error:  # no error of the page may stop the search
            errors.append(str(error))
            if len(errors) == 1:
                say(f"the search's page {file} cannot be written ({error}); the search continues")

    def follow() -> None:
        wait = 0.0
        while not stopped.wait(wait):
            began = time.thread_time()
            write(running=True)
            wait = max(REFRESH_SECONDS, min(_PAUSE * (time.thread_time() - began), _MAX_PAUSE))

    thread = threading.Thread(target=follow, name="search page", daemon=True)
    thread.start()
    try:
        yield file
    finally:
        stopped.set()
        thread.join()
        write(running=False)


def search_page(search: SearchRecord) -> str:
    """Return the page of a search; the page of a running search reloads itself."""
    late = "No news for a while: the search was killed, or waits. Repeat its `raysum tune` command to resume it."
    content = parts.section("search", search.space.about, _trials(search))
    refresh = REFRESH_SECONDS if search.running else None
    return document(search.name, parts.tiles(_tiles(search)), [content], {}, refresh, late)


def _tiles(search: SearchRecord) -> list[tuple[str, str]]:
    states = [trial.state for trial in search.trials]
    scored = [trial for trial in search.trials if trial.metrics]
    tiles = [("running" if search.running else "ended" if search.ended else "stopped", "the search")]
    tiles.append((f"{states.count('ended')} of {search.total}", "trials have ended"))
    tiles += [(f"{states.count('failed')}", "failed")] if "failed" in states else []
    tiles += [(f"{states.count('running')}", "running now")] if "running" in states else []
    if scored:
        figure = cell(scored[0].metrics, search.space.metric, {**FIGURES, **SHOWN}[search.space.metric])
        tiles.append((figure, f"best {metric_title(search.space.metric)}: {label(scored[0].config)}"))
    tiles.append((parts.duration(60 * search.minutes), "of searching"))
    if search.running and search.left != 0:
        tiles.append((_remaining(search.left), "left, at the speed so far"))
    return tiles


def _remaining(minutes: float | None) -> str:
    if minutes is None:
        return "not known yet"
    if minutes < 1:
        return "under 1 min"
    return f"about {minutes:.0f} min" if minutes < 90 else f"about {minutes / 60:.1f} h"


def search_section(search: SearchRecord) -> str:
    """Return the trials of a search with its name, and of the search after it."""
    return parts.heading(search.name) + parts.note(f"{search.space.about}.") + _trials(search)


def _trials(search: SearchRecord) -> str:
    space = search.space
    note = f"{search.total} trials by {space.metric}, best first."
    pending = search.total - len(search.trials)
    note += f" {pending} of them have not started yet." if pending else ""
    note += f" Next: the attention predictor of the best run, then the search {space.then}." if space.then else ""
    is_stopped = not search.ended and not search.running
    note += " The search has not ended; repeat its `raysum tune` command to resume it." if is_stopped else ""
    scored = [trial for trial in search.trials if trial.metrics][:_LISTED]
    note += f" The charts show the best {_LISTED}." if len(search.trials) > _LISTED else ""
    by_kind = (_costs if space.kind == "train" else _decoding)(search, scored)
    drawn = [best_so_far(search), _curves(search, scored), *by_kind, _parallel(search, scored)]
    after = search_section(search.then) if search.then else ""
    return parts.note(note) + parts.charts(*drawn) + _tables(search) + after


def _tables(search: SearchRecord) -> str:
    """Return the tables of ended and running trials, and of failed ones."""
    first = {search.space.metric: {**FIGURES, **SHOWN}[search.space.metric], **SHOWN}
    shown = {name: figure for name, figure in first.items() if any(name in trial.metrics for trial in search.trials)}
    head = ["trial", *(figure.label for figure in shown.values()), "state", "time"]
    lines = []
    for trial in search.trials:
        cells = [cell(trial.metrics, key, fig, interval=key == search.space.metric) for key, fig in shown.items()]
        if trial.state != "failed":
            lines.append([label(trial.config), *cells, trial.state, parts.duration(trial.seconds)])
    failed = [[label(trial.config), str(trial.error)] for trial in search.trials if trial.state == "failed"]
    html = parts.table(head, lines[:_LISTED], numbers=True) if lines else ""
    if rest := lines[_LISTED:]:
        html += parts.folded(f"{len(rest)} more trials", parts.table(head, rest, numbers=True))
    return html + (parts.heading("Failed trials") + parts.table(["trial", "reason"], failed) if failed else "")


def best_so_far(search: SearchRecord) -> str:
    """Return a chart of the last result of each trial, and of the best result by time."""
    metric, low = search.space.metric, search.space.mode == "min"
    whole = max((report.amount for trial in search.trials for report in trial.reports), default=0.0)
    # Decode trials compare only after all examples.
    comparable = sorted(
        (report.minutes, report.metrics[metric], trial.name, label(trial.config))
        for trial in search.trials
        for report in trial.reports
        if search.space.kind == "train" or (trial.state == "ended" and report.amount >= whole)
    )
    best, steps, last = math.inf if low else -math.inf, list[Point](), dict[str, Point]()
    for minutes, value, name, config in comparable:
        text = f"{config}: {metric} {value:.4g} after {minutes:.1f} min"
        last[name] = Point(minutes, value, text)
        if (value < best) if low else (value > best):
            steps += [Point(minutes, best)] if steps else []
            steps.append(Point(minutes, value, text))
            best = value
    if not steps:
        return ""
    steps.append(Point(max(search.minutes, comparable[-1][0]), best))
    lines = [Line("trials", [*last.values()], _OTHER, dots=True), Line("best so far", steps, _BEST, faint=True)]
    return charts.lines("Best so far", lines, "minutes of searching", metric_title(metric))


def _curves(search: SearchRecord, trials: Sequence[TrialRecord]) -> str:
    """Return a chart of the validations of each training, or of the metric by the number of decoded examples."""
    metric, decoded = search.space.metric, search.space.kind == "decode"
    drawn = []
    for rank, trial in enumerate(trials):
        reported = {report.amount: report.metrics[metric] for report in trial.reports}
        values = reported if decoded or not trial.curve else trial.curve
        name = label(trial.config)
        points = [Point(x, y, f"{name}: {y:.4g} at {x:.0f}") for x, y in sorted(values.items())]
        color, few = rank if rank > _BEST else _BEST - rank, len(trials) <= _COLORED
        legend = name if few else "the best" if rank == 0 else "the others"
        drawn.append(Line(legend, points, color if few else _OTHER if rank else _BEST, faint=not few and rank > 0))
    title, x = ("Metric by scored examples", "examples") if decoded else ("Validation", "step")
    return charts.lines(title, drawn[::-1], x, metric_title(metric))


def _parallel(search: SearchRecord, trials: Sequence[TrialRecord]) -> str:
    """Return a chart with a line for each trial through its values and its metric."""
    metric, keys = search.space.metric, [*search.space.search]
    complete = [trial for trial in trials if all(key in trial.config for key in keys)]
    finite = [trial for trial in complete if math.isfinite(trial.metrics[metric])]
    if len(finite) < 2:
        return ""
    drawn = []
    for rank, trial in reversed([*enumerate(finite)]):
        color, faint = (_BEST, False) if rank == 0 else (0, True) if rank < len(finite) / 4 else (_OTHER, True)
        text = f"{label(trial.config)}: {metric} {trial.metrics[metric]:.4g}"
        values = [*(trial.config[key] for key in keys), trial.metrics[metric]]
        drawn.append((Line(text, (), color, faint=faint), values))
    names = [*(key.rpartition(".")[2] for key in keys), metric_title(metric)]
    title = "Settings and results of the trials (the best at the top)"
    return charts.parallel(title, names, drawn, upward=search.space.mode == "max")


def _decoding(search: SearchRecord, trials: Sequence[TrialRecord]) -> list[str]:
    """Return the metric over the first searched key if it is a number, with a line for each value of the others.

    Otherwise return the trials by rank.
    """
    space, metric = search.space, search.space.metric
    values = [next(iter(trial.config.values()), None) for trial in trials]
    few = len(space.search) <= (2 if space.searcher == "grid" else 1)
    if not few or not all(isinstance(value, int | float) for value in values):
        return [_ranked(trials, metric)]
    lines: dict[str, list[Point]] = {}
    for trial, value in zip(trials, values, strict=True):
        text = f"{label(trial.config)}: {metric} {trial.metrics[metric]:.2f}"
        other = ", ".join(map(short_value, [*trial.config.values()][1:]))
        row = interval_row(other, trial.metrics, metric, 0)
        lines.setdefault(other, []).append(Point(float(value or 0), row.value, text, row.low, row.high))
    key = next(iter(space.search)).removeprefix("decode.")
    drawn = [
        Line(other, sorted(lines[other], key=lambda point: point.x), number)
        for number, other in enumerate(sorted(lines))
    ]
    return [charts.lines(f"{metric_title(metric)} over {key}", drawn, key, f"{metric_title(metric)}, 95 % intervals")]


def _costs(search: SearchRecord, trials: Sequence[TrialRecord]) -> list[str]:
    """Return the metric of trained models over parameters and over time, and the trials by rank."""
    metric, costs = search.space.metric, {"parameters": "parameters", "train_seconds": "seconds of training"}
    drawn = []
    for cost, unit in costs.items():
        points = [_dot(rank, trial, metric, cost) for rank, trial in enumerate(trials) if cost in trial.metrics]
        groups = {"the others": (points[1:], _OTHER), "the best": (points[:1], _BEST)}
        dots = [Line(name, group, color, dots=True) for name, (group, color) in groups.items()]
        drawn.append(charts.lines(f"{metric_title(metric)} by {unit}", dots, unit, metric_title(metric), log_x=True))
    return [*drawn, _ranked(trials, metric)]


def _dot(rank: int, trial: TrialRecord, metric: str, cost: str) -> Point:
    """Return the dot of a trial; the best ones have labels."""
    spent, value = trial.metrics[cost], trial.metrics[metric]
    text = f"{label(trial.config)}: {metric} {value:.4g}, {charts.short(spent)} {cost}"
    name = "/".join(map(short_value, trial.config.values())) if rank < _NAMED else ""
    return Point(spent, value, text, label=name)


def _ranked(trials: Sequence[TrialRecord], metric: str) -> str:
    title = f"Trials by {metric_title(metric)}" if len(trials) <= _RANKED else f"The best {_RANKED} trials"
    trials = trials[:_RANKED]
    names = [label(trial.config) for trial in trials]
    if any(len(name) > charts.LONGEST for name in names):
        names = ["/".join(map(short_value, trial.config.values())) for trial in trials]
    colors = [_BEST] + [_OTHER] * len(trials)
    pairs = zip(names, trials, colors, strict=False)
    drawn = [interval_row(name, trial.metrics, metric, color) for name, trial, color in pairs]
    return charts.rows(title, drawn, metric_title(metric))


def interval_row(name: str, figures: Mapping[str, float], key: str, color: int) -> charts.IntervalRow:
    """Return a row with the metric ``key`` and its interval, if it has one."""
    low, high = (figures.get(f"{key}_{end}", figures[key]) for end in ("low", "high"))
    return charts.IntervalRow(name, figures[key], low, high, color)


def metric_title(metric: str) -> str:
    return {**FIGURES, **SHOWN}[metric].label.strip()
