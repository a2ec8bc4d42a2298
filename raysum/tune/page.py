"""A search as HTML: its trials drawn and as tables, for reports, and as a page of its own that follows it."""

import math
from collections.abc import Mapping, Sequence

from raysum.evaluate.scorers import FIGURES
from raysum.evaluate.table import cell
from raysum.pages import charts, parts
from raysum.pages.charts import Line, Point
from raysum.pages.parts import document
from raysum.tune.record import Searched, Tried
from raysum.tune.results import SHOWN
from raysum.tune.spaces import label, short

EVERY = 5.0  # seconds after which a page of something that runs is looked for anew
_LISTED, _RANKED = 60, 20  # trials of a plot, and of a table that is open; of a chart with a row each
_NAMED = 3  # the best so many dots have their names beside them
_COLORED = 6  # trials with a colour each; of more only the best is marked
_BEST, _OTHER = 1, charts.COLORS - 1


def page(search: Searched) -> str:
    """The whole page; of a search that runs, one that looks for a newer one of itself."""
    late = "Nothing came for a while: the search was killed, or waits; its `raysum tune` command goes on with it."
    content = parts.section("search", search.space.about, _trials(search))
    return document(search.name, parts.tiles(_tiles(search)), [content], {}, EVERY if search.running else None, late)


def _tiles(search: Searched) -> list[tuple[str, str]]:
    states = [trial.state for trial in search.trials]
    known = [trial for trial in search.trials if trial.metrics]
    told = [("running" if search.running else "ended" if search.ended else "stopped", "the search")]
    told.append((f"{states.count('ended')} of {search.total}", "trials have ended"))
    told += [(f"{states.count('failed')}", "failed")] if "failed" in states else []
    told += [(f"{states.count('running')}", "running now")] if "running" in states else []
    if known:
        figure = cell(known[0].metrics, search.space.metric, {**FIGURES, **SHOWN}[search.space.metric])
        told.append((figure, f"best {titled(search.space.metric)}: {label(known[0].config)}"))
    told.append((parts.duration(60 * search.minutes), "of searching"))
    if search.running and search.left != 0:
        told.append((_about(search.left), "left, at the pace so far"))
    return told


def _about(minutes: float | None) -> str:
    if minutes is None:
        return "not known yet"
    if minutes < 1:
        return "under 1 min"
    return f"about {minutes:.0f} min" if minutes < 90 else f"about {minutes / 60:.1f} h"


def search_part(search: Searched) -> str:
    """The trials of a search under its name, and of the one that followed."""
    return parts.heading(search.name) + parts.note(f"{search.space.about}.") + _trials(search)


def _trials(search: Searched) -> str:
    space = search.space
    told = f"{search.total} trials by {space.metric}, best first."
    coming = search.total - len(search.trials)
    told += f" {coming} of them have yet to begin." if coming else ""
    told += f" Of the best run the attention predictor is trained and {space.then} searched next." if space.then else ""
    told += "" if search.ended or search.running else " It has not ended; its `raysum tune` command goes on with it."
    known = [trial for trial in search.trials if trial.metrics][:_LISTED]
    told += f" The best {_LISTED} are drawn." if len(search.trials) > _LISTED else ""
    drawn = (_costs if space.kind == "train" else _decoding)(search, known)
    ways = [best_so_far(search), _curves(search, known), *drawn, _parallel(search, known)]
    after = search_part(search.then) if search.then else ""
    return parts.note(told) + parts.charts(*ways) + _tables(search) + after


def _tables(search: Searched) -> str:
    """The trials with a result, those that run and have none yet, and those that failed."""
    first = {search.space.metric: {**FIGURES, **SHOWN}[search.space.metric], **SHOWN}
    shown = {name: figure for name, figure in first.items() if any(name in one.metrics for one in search.trials)}
    head = ["trial", *(figure.label for figure in shown.values()), "state", "time"]
    lines = []
    for trial in search.trials:
        cells = [cell(trial.metrics, name, one, interval=name == search.space.metric) for name, one in shown.items()]
        if trial.state != "failed":
            lines.append([label(trial.config), *cells, trial.state, parts.duration(trial.seconds)])
    failed = [[label(trial.config), str(trial.error)] for trial in search.trials if trial.state == "failed"]
    html = parts.table(head, lines[:_LISTED], numbers=True) if lines else ""
    if rest := lines[_LISTED:]:
        html += parts.folded(f"{len(rest)} more trials", parts.table(head, rest, numbers=True))
    return html + (parts.heading("Failed trials") + parts.table(["trial", "reason"], failed) if failed else "")


def best_so_far(search: Searched) -> str:
    """What each trial ended with, or has so far, and the best of what was known by then."""
    metric, low = search.space.metric, search.space.mode == "min"
    most = max((one.amount for trial in search.trials for one in trial.reports), default=0.0)
    # Of a trial that decodes, the mean over some of the examples is not comparable.
    counted = sorted(
        (one.minutes, one.metrics[metric], trial.name, label(trial.config))
        for trial in search.trials
        for one in trial.reports
        if search.space.kind == "train" or (trial.state == "ended" and one.amount >= most)
    )
    best, steps, last = math.inf if low else -math.inf, list[Point](), dict[str, Point]()
    for minutes, value, name, tried in counted:
        told = f"{tried}: {metric} {value:.4g} after {minutes:.1f} min"
        last[name] = Point(minutes, value, told)
        if (value < best) if low else (value > best):
            steps += [Point(minutes, best)] if steps else []
            steps.append(Point(minutes, value, told))
            best = value
    if not steps:
        return ""
    steps.append(Point(max(search.minutes, counted[-1][0]), best))
    lines = [Line("trials", [*last.values()], _OTHER, dots=True), Line("best so far", steps, _BEST, faint=True)]
    return charts.lines("Best so far", lines, "minutes of searching", titled(metric))


def _curves(search: Searched, trials: Sequence[Tried]) -> str:
    """Validations of each training, or the metric over the examples that were decoded."""
    metric, decoded = search.space.metric, search.space.kind == "decode"
    drawn = []
    for place, trial in enumerate(trials):
        reported = {one.amount: one.metrics[metric] for one in trial.reports}
        values = reported if decoded or not trial.curve else trial.curve
        name = label(trial.config)
        points = [Point(x, y, f"{name}: {y:.4g} at {x:.0f}") for x, y in sorted(values.items())]
        color, few = place if place > _BEST else _BEST - place, len(trials) <= _COLORED
        shown = name if few else "the best" if place == 0 else "the others"
        drawn.append(Line(shown, points, color if few else _OTHER if place else _BEST, faint=not few and place > 0))
    title, x = ("As they were scored", "examples") if decoded else ("Validation", "step")
    return charts.lines(title, drawn[::-1], x, titled(metric))


def _parallel(search: Searched, trials: Sequence[Tried]) -> str:
    """What was tried and what it gave: a line a trial through its value of each key."""
    metric, keys = search.space.metric, [*search.space.search]
    whole = [trial for trial in trials if all(key in trial.config for key in keys)]
    known = [trial for trial in whole if math.isfinite(trial.metrics[metric])]
    if len(known) < 2:
        return ""
    drawn = []
    for place, trial in reversed([*enumerate(known)]):
        color, faint = (_BEST, False) if place == 0 else (0, True) if place < len(known) / 4 else (_OTHER, True)
        told = f"{label(trial.config)}: {metric} {trial.metrics[metric]:.4g}"
        values = [*(trial.config[key] for key in keys), trial.metrics[metric]]
        drawn.append((Line(told, (), color, faint=faint), values))
    names = [*(key.rpartition(".")[2] for key in keys), titled(metric)]
    title = "What was tried and what it gave (the best at the top)"
    return charts.parallel(title, names, drawn, upward=search.space.mode == "max")


def _decoding(search: Searched, trials: Sequence[Tried]) -> list[str]:
    """The metric over the first key that is searched where it is a number, a line for each value of the others; else
    trial by trial."""
    space, metric = search.space, search.space.metric
    values = [next(iter(trial.config.values()), None) for trial in trials]
    few = len(space.search) <= (2 if space.searcher == "grid" else 1)
    if not few or not all(isinstance(value, int | float) for value in values):
        return [_ranked(trials, metric)]
    lines: dict[str, list[Point]] = {}
    for trial, value in zip(trials, values, strict=True):
        told = f"{label(trial.config)}: {metric} {trial.metrics[metric]:.2f}"
        other = ", ".join(map(short, [*trial.config.values()][1:]))
        row = row_of(other, trial.metrics, metric, 0)
        lines.setdefault(other, []).append(Point(float(value or 0), row.value, told, row.low, row.high))
    key = next(iter(space.search)).removeprefix("decode.")
    drawn = [
        Line(other, sorted(lines[other], key=lambda point: point.x), number)
        for number, other in enumerate(sorted(lines))
    ]
    return [charts.lines(f"{titled(metric)} over {key}", drawn, key, f"{titled(metric)}, 95 % intervals")]


def _costs(search: Searched, trials: Sequence[Tried]) -> list[str]:
    """Trained models by quality, and their quality over parameters and time; the best in a colour of its own."""
    metric, over = search.space.metric, {"parameters": "parameters", "train_seconds": "seconds of training"}
    drawn = []
    for cost, told in over.items():
        points = [_dot(place, trial, metric, cost) for place, trial in enumerate(trials) if cost in trial.metrics]
        groups = {"the others": (points[1:], _OTHER), "the best": (points[:1], _BEST)}
        dots = [Line(name, some, color, dots=True) for name, (some, color) in groups.items()]
        drawn.append(charts.lines(f"{titled(metric)} by {told}", dots, told, titled(metric), log_x=True))
    return [*drawn, _ranked(trials, metric)]


def _dot(place: int, trial: Tried, metric: str, cost: str) -> Point:
    """A trial, the best few with their names."""
    paid, value = trial.metrics[cost], trial.metrics[metric]
    told = f"{label(trial.config)}: {metric} {value:.4g}, {charts.short(paid)} {cost}"
    name = "/".join(map(short, trial.config.values())) if place < _NAMED else ""
    return Point(paid, value, told, label=name)


def _ranked(trials: Sequence[Tried], metric: str) -> str:
    named = f"Trials by {titled(metric)}" if len(trials) <= _RANKED else f"The best {_RANKED} trials"
    trials = trials[:_RANKED]
    names = [label(trial.config) for trial in trials]
    if any(len(name) > charts.LONGEST for name in names):
        names = ["/".join(map(short, trial.config.values())) for trial in trials]
    figures = zip(names, trials, strict=True)
    drawn = [row_of(name, one.metrics, metric, _OTHER if at else _BEST) for at, (name, one) in enumerate(figures)]
    return charts.rows(named, drawn, titled(metric))


def row_of(name: str, figures: Mapping[str, float], key: str, color: int) -> charts.IntervalRow:
    """The figure ``key`` with its interval, as far as that is known."""
    low, high = (figures.get(f"{key}_{end}", figures[key]) for end in ("low", "high"))
    return charts.IntervalRow(name, figures[key], low, high, color)


def titled(metric: str) -> str:
    return {**FIGURES, **SHOWN}[metric].label.strip()
