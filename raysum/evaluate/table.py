"""The result of an evaluation, as a table and as JSON."""

import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import pandas as pd

from raysum.evaluate.scorers import FIGURES, Wording
from raysum.metrics.statistics import Figure, figure_of
from raysum.runtime.rendering import Grid, Shown

if TYPE_CHECKING:
    from rich.console import Group


@dataclass(frozen=True)
class Evaluation(Shown):
    """The figures of each system (see ``scorers.means``), how ROUGE was counted, and the ``scores`` of each example.

    ``differences`` of the first system to each other one in the headline metrics of registered scorers and in
    ROUGE-2 (a mean over examples), where these are known, with the bounds of the paired bootstrap interval.
    ``weights``: the score terms that differ between systems, if they are one model with several decoding settings.
    ``how``: a description of each system. ``data``: the ``fingerprint`` of the dataset and the ``split``.
    ``place``: the folder that it was saved in.
    """

    systems: dict[str, dict[str, float]]
    differences: dict[str, dict[str, float]]
    protocol: str
    examples: int
    scores: pd.DataFrame
    weights: dict[str, dict[str, float]] = field(default_factory=dict)
    how: dict[str, str] = field(default_factory=dict)
    data: dict[str, str] = field(default_factory=dict)
    place: str = ""

    def to_dict(self) -> dict[str, Any]:
        shown = [
            "systems",
            "how",
            "differences",
            "protocol",
            "data",
            "examples",
            *(["weights"] if self.weights else []),
        ]
        return {name: getattr(self, name) for name in shown}

    def to_pandas(self) -> pd.DataFrame:
        """A line a system, a column a figure, at last ROUGE's precision and recall; the examples' are in ``scores``."""
        parts = [name for name in map(str, self.scores) if re.fullmatch("rouge.*_(precision|recall)", name)]
        lines = {system: dict(figures) for system, figures in self.systems.items()}
        for system, scores in self.scores.groupby("system"):
            for name in parts:
                lines[str(system)] |= figure_of(name, Figure(name, 2), scores)
        return pd.DataFrame.from_dict(lines, orient="index").rename_axis("system")

    def render(self) -> "Group":
        """A column a system, a line a figure with half of its 95 % interval; then a line a system of its wording."""
        from rich.console import Group

        without = [f"{name} {n}" for name, one in self.systems.items() if (n := one.get("empty"))]
        empty = [f"empty summaries, of {self.examples}: {', '.join(without)}"] if without else []
        ways = (f"{name}: {how}" for name, how in self.how.items())
        differences = (
            f"{pair}: {', '.join(_difference(by, name) for name in FIGURES if name in by)}"
            for pair, by in self.differences.items()
        )
        saved = f"saved in {self.place}" if self.place else "not saved; --out FOLDER does"
        told = "\n".join([f"{self.examples} examples", *empty, *ways, self.protocol, *differences, saved])
        compared = [name for name in FIGURES if name not in Wording.figures]
        tables = [_table(compared, self.systems, down=True), _table([*Wording.figures], self.systems, down=False)]
        return Group(*(table for table in tables if table.row_count), told)


def _table(names: list[str], systems: dict[str, dict[str, float]], down: bool) -> Grid:
    """The figures of ``names`` that any system has: a line a figure (``down``, with intervals), or a line a system."""
    known = [name for name in names if any(name in figures for figures in systems.values())]
    table = Grid(padding=(0, 0, 0, 1))
    table.add_column("", no_wrap=True)
    for column in systems if down else known:
        table.add_column(column if down else FIGURES[column].label, justify="right", no_wrap=True)
    if down:
        for name in known:
            table.add_row(FIGURES[name].label, *(cell(figures, name, FIGURES[name]) for figures in systems.values()))
    elif known:
        table.title = "% of n-grams that no source has, of 3-grams repeated, of words copied; copy density; length in %"
        table.title_justify = "left"
        for system, figures in systems.items():
            table.add_row(system, *(cell(figures, name, FIGURES[name], interval=False) for name in known))
    return table


def _difference(by: dict[str, float], name: str) -> str:
    value, low, high = (f"{by[name + end]:+.{FIGURES[name].digits}f}" for end in ("", "_low", "_high"))
    return f"{value} {FIGURES[name].label} [{low}, {high}]"


def cell(figures: dict[str, float], name: str, figure: Figure, interval: bool = True) -> str:
    """A figure, with half of its 95 % ``interval``; empty where it is not known."""
    value = f"{figures[name]:,.{figure.digits}f}" if name in figures else ""
    if not interval or f"{name}_low" not in figures:
        return value
    half = (figures[f"{name}_high"] - figures[f"{name}_low"]) / 2
    return f"{value} ±{half:.{figure.digits}f}"
