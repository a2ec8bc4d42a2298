"""The result of an evaluation, as a table and as JSON."""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain
from typing import Any

import pandas as pd
from rich.console import Group

from raysum.evaluate.scorers import FIGURES, Wording, means
from raysum.metrics.statistics import Figure, difference_of, figure_of
from raysum.runtime.rendering import Grid, Shown

_WORDING = "% of n-grams that no source has, of 3-grams repeated, of words copied; copy density; length in %"


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

    @classmethod
    def of(cls, scores: pd.DataFrame, compared: Sequence[str], **described: Any) -> "Evaluation":
        """Return the evaluation with these ``scores`` of examples, and the differences in the figures ``compared``."""
        systems = {str(name): part for name, part in scores.groupby("system", sort=False)}
        first, *others = systems
        differences = {}
        for other in others:
            gaps = [difference_of(name, FIGURES[name], systems[first], systems[other]) for name in compared]
            if any(gaps):
                differences[f"{first} - {other}"] = dict(chain.from_iterable(gap.items() for gap in gaps))
        return cls({name: means(part) for name, part in systems.items()}, differences, scores=scores, **described)

    def to_dict(self) -> dict[str, Any]:
        names = ("systems", "how", "differences", "protocol", "data", "examples", "weights")
        return {name: getattr(self, name) for name in names if name != "weights" or self.weights}

    def to_pandas(self) -> pd.DataFrame:
        """Return a row for each system: its figures, then ROUGE's precision and recall."""
        parts = [name for name in map(str, self.scores) if re.fullmatch("rouge.*_(precision|recall)", name)]
        lines = {system: dict(figures) for system, figures in self.systems.items()}
        for system, scores in self.scores.groupby("system"):
            for name in parts:
                lines[str(system)] |= figure_of(name, Figure(name, 2), scores)
        return pd.DataFrame.from_dict(lines, orient="index").rename_axis("system")

    def render(self) -> Group:
        """Return a table of figures with half of their 95 % intervals, a table of the wording, and notes."""
        empty = ", ".join(
            f"{name} {figures['empty']}" for name, figures in self.systems.items() if figures.get("empty")
        )
        notes = [f"{self.examples} examples"] + [f"empty summaries, of {self.examples}: {empty}"] * bool(empty)
        notes += [*(f"{name}: {how}" for name, how in self.how.items()), self.protocol]
        for pair, gaps in self.differences.items():
            notes.append(f"{pair}: {', '.join(_difference(gaps, name) for name in FIGURES if name in gaps)}")
        notes.append(f"saved in {self.place}" if self.place else "not saved; --out FOLDER does")
        compared = figure_table(self.systems.items(), [name for name in FIGURES if name not in Wording.figures])
        wording = figure_table(self.systems.items(), Wording.figures, interval=False).T
        how: dict[str, Any] = {"no_wrap": True, "padding": (0, 0, 0, 1), "title_justify": "left"}
        tables = [
            Grid.of(table, title=title, **how) for table, title in ((compared, None), (wording, _WORDING)) if table.size
        ]
        return Group(*tables, "\n".join(notes))


def figure_table(
    systems: Iterable[tuple[str, Mapping[str, float]]], names: Iterable[str] = FIGURES, interval: bool = True
) -> pd.DataFrame:
    """Return the texts of the figures that any of the ``systems`` has: a row for each, a column for each system."""
    columns = [*systems]
    known = [name for name in names if any(name in figures for _, figures in columns)]
    texts = [[cell(figures, name, FIGURES[name], interval) for _, figures in columns] for name in known]
    return pd.DataFrame(texts, [FIGURES[name].label for name in known], [system for system, _ in columns])


def _difference(gaps: dict[str, float], name: str) -> str:
    value, low, high = (f"{gaps[name + end]:+.{FIGURES[name].digits}f}" for end in ("", "_low", "_high"))
    return f"{value} {FIGURES[name].label} [{low}, {high}]"


def cell(figures: Mapping[str, float], name: str, figure: Figure, interval: bool = True) -> str:
    """Return a figure, with half of its 95 % ``interval``; empty if it is not known."""
    value = f"{figures[name]:,.{figure.digits}f}" if name in figures else ""
    if not interval or f"{name}_low" not in figures:
        return value
    half = (figures[f"{name}_high"] - figures[f"{name}_low"]) / 2
    return f"{value} ±{half:.{figure.digits}f}"
