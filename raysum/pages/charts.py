"""Charts as inline SVG: lines and dots with intervals, rows of intervals, parallel axes, heat maps.

CSS variables of the page define the colours.
"""

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from html import escape
from typing import Any

COLORS = 8  # CSS variables --c0 to --c7
LONGEST = 30  # letters of a row name
_WIDE, _HIGH = 480, 270  # size of a chart in SVG units, about pixels
_LEFT, _RIGHT, _TOP, _BOTTOM = 50, 14, 22, 40
_APART, _TICKS = 120, 14  # minimum distance of parallel axes; maximum names on an axis
_ROW, _LETTER = 22, 7.2  # height of a row; width of a letter at the font size of the page


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


@dataclass(frozen=True)
class IntervalRow:
    """A row of a chart: a name, a value and its interval."""

    name: str
    value: float
    low: float
    high: float
    color: int = 0


@dataclass(frozen=True)
class AxisScale:
    """A linear or logarithmic map from values ``low`` to ``high`` to positions ``start`` to ``end``."""

    low: float
    high: float
    start: float
    end: float
    log: bool = False

    @classmethod
    def over(cls, values: Iterable[float], start: float, end: float, log: bool = False) -> "AxisScale":
        """Return a scale of the finite ``values`` with a margin; ``log`` applies if they span a factor of 20."""
        finite = [value for value in values if math.isfinite(value)]
        low, high = min(finite), max(finite)
        if log and low > 0 and high / low > 20:
            return cls(low / 1.15, high * 1.15, start, end, True)
        margin = 0.06 * (high - low) or 0.1 * abs(high) or 1.0
        return cls(0.0 if 0 <= low < 3 * margin else low - margin, high + margin, start, end)

    def __call__(self, value: float) -> float:
        transform: Callable[[float], float] = math.log if self.log else float
        low, high = transform(self.low), transform(self.high)
        share = (transform(value) - low) / (high - low)
        return round(self.start + share * (self.end - self.start), 1)

    def ticks(self) -> list[float]:
        """Return four to eight round values."""
        if self.log:
            powers = range(math.floor(math.log10(self.low)), math.ceil(math.log10(self.high)) + 1)
            steps = (1, 2, 5) if self.high / self.low < 1000 else (1,)
            values = [step * 10.0**power for power in powers for step in steps]
        else:
            wide = self.high - self.low
            unit = 10.0 ** math.floor(math.log10(wide)) / 10
            step = min((size * unit for size in (1, 2, 5, 10, 20, 50)), key=lambda size: abs(wide / size - 5.5))
            first = math.ceil(self.low / step)
            values = [round((first + number) * step, 12) for number in range(int(wide / step) + 2)]
        return [value for value in values if self.low <= value <= self.high]


def short(value: float) -> str:
    """Return a number in a few letters: 12k, 1.2M, 0.015."""
    for size, letter in ((1e9, "G"), (1e6, "M"), (1e4, "k")):
        if abs(value) >= size:
            return f"{value / (1e3 if letter == 'k' else size):.3g}{letter}"
    return f"{value:.4g}"


def lines(title: str, drawn: Sequence[Line], x: str, y: str, *, log_x: bool = False, log_y: bool = False) -> str:
    """Return a figure of lines and dots over ``x``; "" without a finite point."""
    finite = [(line, [point for point in line.points if math.isfinite(point.x + point.y)]) for line in drawn]
    points = [point for _, line_points in finite for point in line_points]
    if not points:
        return ""
    across = AxisScale.over([point.x for point in points], _LEFT, _WIDE - _RIGHT, log_x)
    ends = [value for point in points for value in (point.y, point.low, point.high) if value is not None]
    up = AxisScale.over(ends, _HIGH - _BOTTOM, _TOP, log_y)
    marks = "".join(_line(line, line_points, across, up) for line, line_points in finite if line_points)
    names = [(line.name, line.color) for line, line_points in finite if line_points and line.name]
    return _figure(title, _WIDE, _HIGH, _axes(across, up, x, y) + marks, names)


def rows(title: str, drawn: Sequence[IntervalRow], x: str) -> str:
    """Return a figure of values with their intervals, one per row; "" without a finite row."""
    finite = [row for row in drawn if math.isfinite(row.value + row.low + row.high)]
    if not finite:
        return ""
    names = [row.name if len(row.name) <= LONGEST else f"{row.name[: LONGEST - 1]}…" for row in finite]
    left, high = 14 + _LETTER * max(map(len, names)), 8 + _ROW * len(finite)
    across = AxisScale.over([value for row in finite for value in (row.value, row.low, row.high)], left, _WIDE - 22)
    parts = [_grid(across, 4, high), _text(_WIDE - 22, high + 34, x, "end")]
    for number, (row, name) in enumerate(zip(finite, names, strict=True)):
        y = 6 + _ROW * (number + 0.5)
        tooltip = f"{row.name}: {short(row.value)} [{short(row.low)}, {short(row.high)}]"
        mark = f'<path d="M{across(row.low)} {y}H{across(row.high)}"/><circle cx="{across(row.value)}" cy="{y}" r="4"/>'
        parts.append(_text(left - 8, y + 4, name, "end"))
        parts.append(f'<g class="mark k{row.color % COLORS}">{_title(tooltip)}{mark}</g>')
    return _figure(title, _WIDE, high + 40, "".join(parts), [])


def parallel(title: str, names: Sequence[str], drawn: Sequence[tuple[Line, Sequence[Any]]], upward: bool = True) -> str:
    """Return a figure with a parallel axis for each of ``names``; each line connects its values, the last one on top.

    Numbers have a linear or logarithmic scale; other values are in alphabetical order. Unless ``upward``, the last axis
    is reversed.
    """
    columns = [_ParallelAxis.of([values[index] for _, values in drawn]) for index in range(len(names))]
    if upward is False:
        columns[-1] = columns[-1].reversed()
    gap = max(_APART, (_WIDE - 2 * _LEFT - _RIGHT) / max(len(names) - 1, 1))
    wide = round(2 * _LEFT + _RIGHT + gap * (len(names) - 1))
    positions = [1.5 * _LEFT + gap * index for index in range(len(names))]
    marks = []
    for line, values in drawn:
        path = "L".join(f"{x:.1f} {column(value)}" for x, column, value in zip(positions, columns, values, strict=True))
        kind = f"k{line.color % COLORS}{' faint' if line.faint else ''}"
        marks.append(f'<g class="{kind}">{_title(line.name)}<path class="mark" d="M{path}"/></g>')
    axes = []
    for x, name, column in zip(positions, names, columns, strict=True):
        axes.append(f'<path class="grid" d="M{x:.1f} {_TOP + 6}V{_HIGH - 14}"/>{_text(x, 13, name, "middle")}')
        side, anchor = (6, "start") if x == positions[-1] else (-6, "end")
        axes += [_text(x + side, column(tick) + 4, label, anchor, "over") for tick, label in column.ticks()]
    size = f'viewBox="0 0 {wide} {_HIGH}" style="min-width:{round(0.8 * wide)}px"'  # narrower pages scroll
    body = f'<div class="wide"><svg {size} role="img">{_title(title)}{"".join(marks + axes)}</svg></div>'
    whole = ' style="grid-column:1/-1"' if wide > 1.3 * _WIDE else ""
    return f'<figure class="parallel"{whole}><figcaption>{escape(title)}</figcaption>{body}</figure>'


@dataclass(frozen=True)
class _ParallelAxis:
    """The positions of values: by the ``scale``, after values that are not numbers are replaced by their ``order``."""

    scale: AxisScale
    order: dict[str, int] | None

    @classmethod
    def of(cls, values: Sequence[Any]) -> "_ParallelAxis":
        low, high = _HIGH - 18, _TOP + 10
        if all(isinstance(value, int | float) and not isinstance(value, bool) for value in values):
            return cls(AxisScale.over(values, low, high, log=True), None)
        order = {value: number for number, value in enumerate(sorted(set(map(str, values)), reverse=True))}
        return cls(AxisScale(-0.5, len(order) - 0.5, low, high), order)

    def reversed(self) -> "_ParallelAxis":
        return replace(self, scale=replace(self.scale, start=self.scale.end, end=self.scale.start))

    def __call__(self, value: Any) -> float:
        return self.scale(value if self.order is None else self.order[str(value)])

    def ticks(self) -> list[tuple[Any, str]]:
        if self.order is None:
            return [(tick, short(tick)) for tick in self.scale.ticks()]
        every = -(-len(self.order) // _TICKS)
        return [(value, value if len(value) <= 12 else f"{value[:11]}…") for value in [*self.order][::every]]


def heat(title: str, names: Sequence[str], columns: Sequence[str], cells: Sequence[Sequence[tuple[float, str]]]) -> str:
    """Return a figure of shares (0 to 1) with a row for each of ``names`` and a cell for each of ``columns``.

    Each of the ``cells`` has a share and CSS classes. The figure has a fixed size, and the page scrolls it.
    """
    side, left = 30, 12 + _LETTER * max(map(len, names))
    top = max(float(max((share for row in cells for share, _ in row), default=0.0)), 1e-9)
    parts = []
    for number, column in enumerate(columns):
        parts.append(_text(left + side * (number + 0.5), 14, column, "middle"))
    for line, (name, row) in enumerate(zip(names, cells, strict=True)):
        y = 20 + side * line
        parts.append(_text(left - 6, y + side / 2 + 4, name, "end"))
        for number, (share, classes) in enumerate(row):
            tooltip = _title(f"{name}, {columns[number]}: {100 * share:.0f} %")
            box = f'x="{left + side * number:.1f}" y="{y}" width="{side - 2}" height="{side - 2}" rx="3"'
            shade = f'class="mark cell {classes}" fill-opacity="{0.06 + 0.94 * share / top:.3f}"'
            parts.append(f"<rect {box} {shade}>{tooltip}</rect>")
    wide, high = round(left + side * len(columns) + 4), 24 + side * len(names)
    body = f'<svg viewBox="0 0 {wide} {high}" width="{wide}" height="{high}" role="img">{_title(title)}{"".join(parts)}'
    return f'<div class="wide">{body}</svg></div>'


def _line(line: Line, points: Sequence[Point], across: AxisScale, up: AxisScale) -> str:
    positions = [(across(point.x), up(point.y)) for point in points]
    joined = "" if line.dots or len(points) == 1 else "M" + "L".join(f"{x} {y}" for x, y in positions)
    path = f'<path class="mark" d="{joined}"/>' if joined else ""
    dots = [_dot(point, *position, up) for point, position in zip(points, positions, strict=True)]
    parts = path + ("" if line.faint and joined else "".join(dots))
    return f'<g class="k{line.color % COLORS}{" faint" if line.faint else ""}">{parts}</g>'


def _dot(point: Point, x: float, y: float, up: AxisScale) -> str:
    has_interval = point.low is not None and point.high is not None
    bar = f'<path d="M{x} {up(point.low or 0.0)}V{up(point.high or 0.0)}"/>' if has_interval else ""
    right = x < 0.7 * _WIDE
    label = _text(x + (7 if right else -7), y - 5, point.label, "start" if right else "end") if point.label else ""
    return f'<g class="mark">{_title(point.tooltip)}{bar}<circle cx="{x}" cy="{y}" r="3.5"/></g>{label}'


def _axes(across: AxisScale, up: AxisScale, x: str, y: str) -> str:
    parts = [_grid(across, _TOP, _HIGH - _BOTTOM)]
    for tick in up.ticks():
        parts.append(f'<path class="grid" d="M{_LEFT} {up(tick)}H{_WIDE - _RIGHT}"/>')
        parts.append(_text(_LEFT - 6, up(tick) + 4, short(tick), "end"))
    return "".join(parts) + _text(_WIDE - _RIGHT, _HIGH - 5, x, "end") + _text(2, 11, y, "start")


def _grid(across: AxisScale, top: float, bottom: float) -> str:
    """Return vertical lines at the ticks of ``across``, with their numbers below."""
    lines = (f'<path class="grid" d="M{across(tick)} {top}V{bottom}"/>' for tick in across.ticks())
    return "".join(lines) + "".join(_text(across(tick), bottom + 15, short(tick), "middle") for tick in across.ticks())


def _figure(title: str, wide: int, high: int, body: str, names: Sequence[tuple[str, int]]) -> str:
    listed = dict.fromkeys(names) if len(dict.fromkeys(names)) > 1 else ()
    legend = "".join(f'<span class="k{color % COLORS}"><i></i>{escape(name)}</span>' for name, color in listed)
    legend = f'<div class="legend">{legend}</div>' if legend else ""
    drawing = f'<svg viewBox="0 0 {wide} {high}" role="img">{_title(title)}{body}</svg>'
    return f"<figure><figcaption>{escape(title)}</figcaption>{drawing}{legend}</figure>"


def _title(text: str) -> str:
    return f"<title>{escape(text)}</title>" if text else ""


def _text(x: float, y: float, text: str, anchor: str, kind: str = "") -> str:
    own = f' class="{kind}"' if kind else ""
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}"{own}>{escape(text)}</text>'
