"""A search as HTML: charts and tables of its trials, for reports and for its own page, which updates itself."""

import math
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from operator import itemgetter
from pathlib import Path

from raysum.evaluate.table import cell
from raysum.pages import charts, parts
from raysum.pages.charts import Chart, Line, Point
from raysum.pages.parts import document
from raysum.runtime.progress import say
from raysum.runtime.storage import write_text
from raysum.tune.objective import metric_figure
from raysum.tune.record import SearchRecord, read_search
from raysum.tune.results import Trial, trial_table
from raysum.tune.schema import SpaceConfig
from raysum.tune.spaces import label, short_value

REFRESH_SECONDS = 5.0  # between reloads of the page of a running search or training
_PAUSE, _MAX_PAUSE = 20, 30.0  # the pause after writing a page: a multiple of its CPU seconds; maximum seconds
_LISTED, _RANKED = 60, 20  # trials in a plot and in an open table; trials in a chart with a row each
_NAMED = 3  # this many best dots have a label
_COLORED = 6  # up to this many trials have their own colours; otherwise only the best one does
_BEST, _OTHER = 1, charts.COLORS - 1
_COSTS = {"parameters": "parameters", "train_seconds": "seconds of training"}


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

    import matplotlib.ticker  # noqa: F401 - an import in the thread, beside those of Ray Tune, can find parts of it

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
    return document(search.name, parts.tiles(_tiles(search)), [content], refresh, late)


def _tiles(search: SearchRecord) -> list[tuple[str, str]]:
    states, metric = [trial.state for trial in search.trials], search.space.metric
    tiles = [("running" if search.running else "ended" if search.ended else "stopped", "the search")]
    tiles.append((f"{states.count('ended')} of {search.total}", "trials have ended"))
    for state, text in (("failed", "failed"), ("running", "running now")):
        tiles += [(f"{states.count(state)}", text)] if state in states else []
    if best := next((trial for trial in search.trials if trial.metrics), None):
        tiles.append(
            (cell(best.metrics, metric, metric_figure(metric)), f"best {metric_title(metric)}: {label(best.config)}")
        )
    tiles.append((parts.duration(60 * search.minutes), "of searching"))
    if search.running and search.left != 0:
        left = "not known yet" if search.left is None else f"about {parts.duration(60 * search.left)}"
        tiles.append((left, "left, at the speed so far"))
    return tiles


def search_section(search: SearchRecord) -> str:
    """Return the trials of a search with its name, and of the search after it."""
    return parts.heading(search.name) + parts.note(f"{search.space.about}.") + _trials(search)


def _trials(search: SearchRecord) -> str:
    space, pending = search.space, search.total - len(search.trials)
    notes = {
        f"{search.total} trials by {space.metric}, best first.": True,
        f"{pending} of them have not started yet.": pending > 0,
        f"Next: the attention predictor of the best run, then the search {space.then}.": space.then,
        "The search has not ended; repeat its `raysum tune` command to resume it.": search.state == "interrupted",
        f"The charts show the best {_LISTED}.": len(search.trials) > _LISTED,
    }
    scored = [trial for trial in search.trials if trial.metrics][:_LISTED]
    drawn = [best_so_far(search), _curves(space, scored), *result_charts(space, scored), _parallel(space, scored)]
    after = search_section(search.then) if search.then else ""
    note = parts.note(" ".join(text for text, applies in notes.items() if applies))
    return note + charts.side_by_side(*drawn) + _tables(search) + after


def _tables(search: SearchRecord) -> str:
    """Return the tables of ended and running trials, and of failed ones."""
    trials = [trial for trial in search.trials if not trial.error]
    table = trial_table(search.space, trials).rename_axis("trial")
    table["state"] = [trial.state for trial in trials]
    table["time"] = [parts.duration(trial.seconds) for trial in trials]
    html = parts.numbers(table[:_LISTED]) if trials else ""
    if len(trials) > _LISTED:
        html += parts.folded(f"{len(trials) - _LISTED} more trials", parts.numbers(table[_LISTED:]))
    failed = [[label(trial.config), trial.error] for trial in search.trials if trial.error]
    return html + (parts.heading("Failed trials") + parts.table(["trial", "reason"], failed) if failed else "")


def best_so_far(search: SearchRecord) -> Chart:
    """Return a chart of the last result of each trial, and of the best result by time."""
    metric, sign = search.space.metric, 1 if search.space.goal == "min" else -1
    # Decode trials compare only after all examples.
    comparable = sorted(
        (report.minutes, report.metrics[metric], trial.name, label(trial.config))
        for trial in search.trials
        for report in trial.reports
        if search.space.kind == "train" or (trial.state == "ended" and report.amount >= search.whole)
    )
    best, steps, last = math.inf, list[Point](), dict[str, Point]()
    for minutes, value, name, config in comparable:
        last[name] = Point(minutes, value, f"{config}: {metric} {value:.4g} after {minutes:.1f} min")
        if sign * value < sign * best or not steps:
            steps += [Point(minutes, best)] if steps else []
            steps.append(last[name])
            best = value
    if steps:
        steps.append(Point(max(search.minutes, comparable[-1][0]), best))
    lines = [Line("trials", [*last.values()], _OTHER, dots=True), Line("best so far", steps, _BEST, faint=True)]
    return Chart("Best so far", lines, "minutes of searching", metric_title(metric))


def _curves(space: SpaceConfig, trials: Sequence[Trial]) -> Chart:
    """Return a chart of the validations of each training, or of the metric by the number of decoded examples."""
    few, drawn = len(trials) <= _COLORED, list[Line]()
    for rank, trial in enumerate(trials):
        name = label(trial.config)
        points = [Point(x, y, f"{name}: {y:.4g} at {x:.0f}") for x, y in sorted(trial.curve.items())]
        if few:
            drawn.append(Line(name, points, rank if rank > _BEST else _BEST - rank))
        elif rank == 0:
            drawn.append(Line("the best", points, _BEST))
        else:
            drawn.append(Line("the others", points, _OTHER, faint=True))
    if space.kind == "decode" and len({x for trial in trials for x in trial.curve}) < 2:
        drawn = []  # every trial has scored the same examples once
    title, x = ("Validation", "step") if space.kind == "train" else ("Metric by scored examples", "examples")
    return Chart(title, drawn[::-1], x, metric_title(space.metric))


def _parallel(space: SpaceConfig, trials: Sequence[Trial]) -> Chart:
    """Return a chart with a line for each trial through its values and its metric."""
    metric, keys = space.metric, [*space.search]
    finite = [t for t in trials if t.config.keys() >= {*keys} and math.isfinite(t.metrics[metric])]
    drawn = []
    for rank, trial in enumerate(finite):
        color = _BEST if rank == 0 else 0 if rank < len(finite) / 4 else _OTHER
        line = Line(f"{label(trial.config)}: {metric} {trial.metrics[metric]:.4g}", (), color, faint=rank > 0)
        drawn.append((line, [*(trial.config[key] for key in keys), trial.metrics[metric]]))
    names = [*(key.rpartition(".")[2] for key in keys), metric_title(metric)]
    title = "Settings and results of the trials (the best at the top)"
    return charts.ParallelChart(title, names, drawn[::-1] if len(drawn) > 1 else [], space.goal == "max")


def result_charts(space: SpaceConfig, trials: Sequence[Trial]) -> list[Chart]:
    """Return the results of ``trials`` (best first): by their costs if they train, by their settings, or by rank.

    Decode trials are drawn over the first searched key if it is a number, with a line for each value of the others.
    """
    metric, title = space.metric, metric_title(space.metric)
    if space.kind == "train":
        return [*(_over_cost(cost, trials, metric) for cost in _COSTS), _ranked(trials, metric)]
    values = [next(iter(trial.config.values()), None) for trial in trials]
    few = len(space.search) <= (2 if space.searcher == "grid" else 1)
    if not few or not all(isinstance(value, int | float) for value in values):
        return [_ranked(trials, metric)]
    lines: dict[str, list[Point]] = {}
    for value, trial in sorted(zip(values, trials, strict=True), key=itemgetter(0)):
        text = f"{label(trial.config)}: {metric} {trial.metrics[metric]:.2f}"
        others = ", ".join(map(short_value, [*trial.config.values()][1:]))
        point = Point(float(value or 0), trial.metrics[metric], text, *bounds(trial.metrics, metric))
        lines.setdefault(others, []).append(point)
    key = next(iter(space.search)).removeprefix("decode.")
    drawn = [Line(others, lines[others], number) for number, others in enumerate(sorted(lines))]
    return [Chart(f"{title} over {key}", drawn, key, f"{title}, 95 % intervals")]


def _over_cost(cost: str, trials: Sequence[Trial], metric: str) -> Chart:
    """Return the metric of trained models over a cost; the best ones have labels."""
    points = list[Point]()
    for trial in trials:
        if spent := trial.metrics.get(cost):
            value = trial.metrics[metric]
            text = f"{label(trial.config)}: {metric} {value:.4g}, {charts.short(spent)} {cost}"
            points.append(Point(spent, value, text, label=_values(trial) if len(points) < _NAMED else ""))
    dots = [Line("the others", points[1:], _OTHER, dots=True), Line("the best", points[:1], _BEST, dots=True)]
    return Chart(f"{metric_title(metric)} by {_COSTS[cost]}", dots, _COSTS[cost], metric_title(metric), log="x")


def _ranked(trials: Sequence[Trial], metric: str) -> Chart:
    title = f"Trials by {metric_title(metric)}" if len(trials) <= _RANKED else f"The best {_RANKED} trials"
    names = [label(trial.config) for trial in trials[:_RANKED]]
    if any(len(name) > charts.LONGEST for name in names):
        names = [_values(trial) for trial in trials[:_RANKED]]
    rows = enumerate(zip(names, trials, strict=False))
    drawn = [interval_row(name, trial.metrics, metric, _OTHER if rank else _BEST) for rank, (name, trial) in rows]
    return charts.RowChart(title, drawn, metric_title(metric))


def _values(trial: Trial) -> str:
    """Return the searched values of a trial, such as LLG/PPP."""
    return "/".join(map(short_value, trial.config.values()))


def bounds(figures: Mapping[str, float], key: str) -> tuple[float, float]:
    """Return the interval of the metric ``key``, of length 0 if it has none."""
    return figures.get(f"{key}_low", figures[key]), figures.get(f"{key}_high", figures[key])


def interval_row(name: str, figures: Mapping[str, float], key: str, color: int) -> Line:
    """Return the metric ``key`` with its interval as a row of a chart."""
    return Line(name, [Point(figures[key], 0, "", *bounds(figures, key))], color)


def metric_title(metric: str) -> str:
    return metric_figure(metric).label.strip()
