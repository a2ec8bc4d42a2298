"""Charts by matplotlib: inline SVG in the colours of the page with tooltips, or a PNG."""

import re
import threading
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from html import escape
from io import StringIO
from math import ceil, isfinite, log10
from operator import attrgetter
from pathlib import Path
from typing import TYPE_CHECKING, Any

from raysum.pages import parts

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from matplotlib.ticker import Locator

_STYLE = Path(__file__).with_name("templates") / "charts.mplstyle"
# The light colours of the variables in page.css.
_PALETTE = ("#2563d9", "#d9480f", "#0f8a5f", "#8b3fc4", "#b07d00", "#c2257a", "#0b8298", "#7b8494")
_SOFT, _GRID, _CARD = "#5b6475", "#dfe3ea", "#fffffe"
_VARIABLES = {_SOFT: "--soft", _GRID: "--line", _CARD: "--card"} | {c: f"--c{n}" for n, c in enumerate(_PALETTE)}
COLORS = len(_PALETTE)
LONGEST = 30  # characters of a row name
_WIDE, _HIGH = 480, 270  # size of a chart in pixels
_ROW, _LETTER, _APART = 22, 7.6, 120  # height of a row, width of a letter, distance of parallel axes
_TICKS = 14  # maximum names on an axis
_drawing = threading.Lock()  # matplotlib's settings belong to the process


@dataclass(frozen=True)
class Point:
    """A mark at ``x`` and ``y`` with a tooltip, and optionally an interval and a label."""

    x: float
    y: float
    tooltip: str = ""
    low: float | None = None
    high: float | None = None
    label: str = ""


@dataclass(frozen=True)
class Line:
    """Points of one colour: joined by a line, which is thin if ``faint``, or only ``dots``."""

    name: str
    points: Sequence[Point]
    color: int = 0
    dots: bool = False
    faint: bool = False


class Chart:
    """Lines and dots over ``x``; points that are not finite are left out.

    An axis in ``log``, such as "xy", is logarithmic if its values span a factor of 20.
    """

    horizontal = False  # intervals
    left = 50.0  # pixels beside the axes

    def __init__(self, title: str, drawn: Sequence[Line], x: str = "", y: str = "", log: str = ""):
        self.title, self.x, self.y, self.log, self.size = title, x, y, log, (_WIDE, _HIGH)
        finite = [(line, [point for point in line.points if isfinite(point.x + point.y)]) for line in drawn]
        self.lines = [replace(line, points=p, dots=line.dots or len(p) == 1) for line, p in finite if p]
        self.legend = {line.name: line.color % COLORS for line in self.lines if line.name}

    def html(self) -> str:
        """Return the chart as a figure of a page; "" without a point."""
        if not self.lines:
            return ""
        svg = StringIO()
        with _figure([self]) as figure:
            wide, high = self.size
            figure.subplots_adjust(self.left / wide, 40 / high, 1 - 22 / wide, 1 - 24 / high)
            figure.savefig(svg, format="svg", transparent=True)
        return parts.figure(self.title, _for_page(svg.getvalue(), self.lines), self.legend, *self.size)

    def draw(self, axes: "Axes") -> None:
        for line in self.lines:
            color, points = _PALETTE[line.color % COLORS], line.points
            style = {"linewidth": 1.2, "alpha": 0.75} if line.faint else {"linewidth": 2}
            form = "o" if line.dots else "-" if line.faint else "-o"
            axes.plot([p.x for p in points], [p.y for p in points], form, color=color, gid="line", **style)
            at = "y" if self.horizontal else "x"
            if spans := [(getattr(p, at), p.low, p.high) for p in points if p.low is not None and p.high is not None]:
                (axes.hlines if self.horizontal else axes.vlines)(*zip(*spans, strict=True), color=color, linewidth=2)
            for point in filter(attrgetter("label"), points):
                axes.annotate(point.label, (point.x, point.y), xytext=(6, 4), textcoords="offset points")
        axes.set(xlabel=self.x, title=self.y)
        self.set_scales(axes)

    def set_scales(self, axes: "Axes") -> None:
        from matplotlib.ticker import NullLocator

        for axis, name in ((axes.xaxis, "x"), (axes.yaxis, "y")):
            scale, locator = _scale([getattr(point, name) for line in self.lines for point in line.points])
            if name in self.log and scale is log10:
                axes.set(**{f"{name}scale": "log"})
                axis.set(major_locator=locator, minor_locator=NullLocator())
            axis.set_major_formatter(lambda value, _: short(value))


class RowChart(Chart):
    """Values with their intervals, one per row: lines of one point, with the value as ``x``, and optionally a tooltip.

    If ``from_zero``, the axis contains 0, which has a line.
    """

    horizontal = True

    def __init__(self, title: str, drawn: Sequence[Line], x: str, from_zero: bool = False):
        self.from_zero = from_zero
        self.names, lines = list[str](), list[Line]()
        for row in drawn:
            value, low, high = row.points[0].x, row.points[0].low, row.points[0].high
            if low is not None and high is not None and isfinite(value + low + high):
                tooltip = row.points[0].tooltip or f"{row.name}: {short(value)} [{short(low)}, {short(high)}]"
                lines.append(Line("", [Point(value, len(lines), tooltip, low, high)], row.color))
                self.names.append(_shortened(row.name, LONGEST))
        super().__init__(title, lines, x)
        self.size = (_WIDE, 64 + _ROW * len(lines))
        self.left = 14 + _LETTER * max(map(len, self.names), default=0)

    def set_scales(self, axes: "Axes") -> None:
        super().set_scales(axes)
        axes.set_yticks(range(len(self.names)), self.names)
        axes.grid(visible=False, axis="y")
        axes.invert_yaxis()
        if self.from_zero:
            axes.axvline(0, color=_SOFT, linewidth=1)


class ParallelChart(Chart):
    """Lines through parallel axes, one for each of ``names``; a line has a value for each axis, the last is on top.

    Numbers have a linear or logarithmic scale; other values are in alphabetical order. Unless ``upward``, the last axis
    is reversed.
    """

    def __init__(self, title: str, names: Sequence[str], drawn: Sequence[tuple[Line, Sequence[Any]]], upward: bool):
        values = [*zip(*(values for _, values in drawn), strict=True)]
        columns = [_heights(column, not upward and column is values[-1]) for column in values]
        paths = zip(*(heights for heights, _ in columns), strict=True)
        lines = [
            replace(line, points=[Point(index, height) for index, height in enumerate(path)])
            for (line, _), path in zip(drawn, paths, strict=True)
        ]
        super().__init__(title, lines)
        self.legend, self.names, self.ticks = {}, names, [ticks for _, ticks in columns]
        self.size = (max(_WIDE, _APART * (len(names) + 1)), _HIGH)

    def set_scales(self, axes: "Axes") -> None:
        last = len(self.names) - 1
        axes.set_xticks(range(last + 1), self.names)
        axes.set_yticks([])
        axes.xaxis.tick_top()
        axes.margins(x=0.15 / max(last, 1))
        box = {"facecolor": _CARD, "edgecolor": "none", "pad": 0.5}
        for index, ticks in enumerate(self.ticks):
            side, gap = ("left", 6) if index == last else ("right", -6)
            for height, text in ticks.items():
                how: dict[str, Any] = {"textcoords": "offset points", "ha": side, "va": "center", "bbox": box}
                axes.annotate(text, (index, height), xytext=(gap, 0), **how)


def _heights(values: Sequence[Any], is_reversed: bool) -> tuple[list[float], dict[float, str]]:
    """Return the heights (0 to 1) of ``values`` on a parallel axis, and the texts of its ticks by height."""
    scale: Callable[[float], float] = float
    if any(isinstance(value, bool) or not isinstance(value, int | float) for value in values):
        order = sorted({*map(str, values)}, reverse=True)
        values, low, high = [order.index(str(value)) for value in values], -0.5, len(order) - 0.5
        every = ceil(len(order) / _TICKS)
        ticks = {float(at): _shortened(name, 12) for at, name in enumerate(order) if at % every == 0}
    else:
        scale, locator = _scale(values)
        low, high = scale(min(values)), scale(max(values))
        ticks = {value: short(value) for value in locator.tick_values(min(values), max(values))}

    def height(value: float) -> float:
        share = (scale(value) - low) / (high - low or 1.0)
        return 1 - share if is_reversed else share

    return [*map(height, values)], {height(at): text for at, text in ticks.items() if 0 <= height(at) <= 1}


def save(file: Path, title: str, drawn: Sequence[Chart]) -> None:
    """Write the charts that have a point side by side as a PNG."""
    drawn = [chart for chart in drawn if chart.lines]
    if not drawn:
        return
    with _figure(drawn) as figure:
        figure.set_layout_engine("constrained")
        figure.suptitle(title)
        for axes, chart in zip(figure.axes, drawn, strict=True):
            if len(chart.legend) > 1:
                axes.legend(axes.get_lines(), [line.name for line in chart.lines])
        figure.savefig(file, dpi=144)


@contextmanager
def _figure(drawn: Sequence[Chart]) -> Iterator["Figure"]:
    """Yield a figure with charts side by side in the style of the pages.

    Warnings are ignored: matplotlib's font lacks letters of some names, but the browser has them.
    """
    with _drawing:  # around the imports, too: threads that import matplotlib together find incomplete modules
        import matplotlib
        from matplotlib.figure import Figure

        size = sum(chart.size[0] for chart in drawn) / 72, max(chart.size[1] for chart in drawn) / 72
        with warnings.catch_warnings(), matplotlib.rc_context(fname=_STYLE):
            warnings.simplefilter("ignore")
            figure = Figure(figsize=size, dpi=72)
            for chart, axes in zip(drawn, figure.subplots(1, len(drawn), squeeze=False)[0], strict=True):
                chart.draw(axes)
            yield figure


def _for_page(svg: str, lines: Sequence[Line]) -> str:
    """Return the content of matplotlib's ``svg`` with the variables of the page as colours, and with tooltips."""
    content = svg[svg.index('<g id="figure') : svg.rindex("</svg>")]
    content = re.sub("|".join(_VARIABLES), lambda color: f"var({_VARIABLES[color[0]]})", content)
    content, *groups = content.split('<g id="line">')
    for line, group in zip(lines, groups, strict=True):
        tooltips = [point.tooltip for point in line.points] if line.dots or not line.faint else []
        tooltips = tooltips if line.dots else [line.name, *tooltips]
        titled = partial(_titled, iter(tooltips))
        content += "<g>" + re.sub("<(path d|use )([^>]*)/>", titled, group, count=len(tooltips))
    return re.sub(r' id="[A-Za-z]+_\d+"', "", content)


def _titled(texts: Iterator[str], mark: re.Match[str]) -> str:
    return f'<{mark[1]}{mark[2]} class="mark"><title>{escape(next(texts))}</title></{mark[1].split()[0]}>'


def side_by_side(*drawn: Chart) -> str:
    """Return charts side by side if they fit; "" if all are empty."""
    html = "".join(chart.html() for chart in drawn)
    return f'<div class="charts">{html}</div>' if html else ""


def short(value: float) -> str:
    """Return a number in a few letters: 12k, 1.2M, 0.015."""
    for size, letter in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if abs(value) >= max(size, 1e4):
            return f"{value / size:.3g}{letter}"
    return f"{value:.4g}"


def _scale(values: Sequence[float]) -> tuple[Callable[[float], float], "Locator"]:
    """Return the scale of an axis for ``values``, logarithmic if they span a factor of 20, and its ticks."""
    from matplotlib.ticker import LogLocator, MaxNLocator

    low, high = min(values), max(values)
    if 0 < low < high / 20:
        return log10, LogLocator(subs=(1, 2, 5) if high < 1000 * low else (1,))
    return float, MaxNLocator(6)


def _shortened(text: str, length: int) -> str:
    return text if len(text) <= length else f"{text[: length - 1]}…"
