"""The result of an evaluation, as a table and as JSON."""

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import pandas as pd

from raysum.evaluate.scorers import FIGURES
from raysum.metrics.statistics import Figure
from raysum.runtime.shown import Shown

if TYPE_CHECKING:
    from rich.table import Table


@dataclass(frozen=True)
class Evaluation(Shown):
    """The figures of each system (see ``scorers.means``), how ROUGE was counted, and the ``scores`` of each example.

    ``differences`` of the first system to each other one in facts F1 (of the facts of all examples together) and in
    ROUGE-2 (a mean over examples), where these are known, with the bounds of the paired bootstrap interval.
    ``weights``: of the score terms by which systems differ, where they are one model decoded in several ways.
    ``how``: what each system does.
    """

    systems: dict[str, dict[str, float]]
    differences: dict[str, dict[str, float]]
    protocol: str
    examples: int
    scores: pd.DataFrame
    weights: dict[str, dict[str, float]] = field(default_factory=dict)
    how: dict[str, str] = field(default_factory=dict)

    def to_dict(self) -> dict[str, Any]:
        shown = ["systems", "how", "differences", "protocol", "examples", *(["weights"] if self.weights else [])]
        return {name: getattr(self, name) for name in shown}

    def to_pandas(self) -> pd.DataFrame:
        """A line a system, a column a figure; the examples' own scores are in ``scores``."""
        return pd.DataFrame.from_dict(self.systems, orient="index").rename_axis("system")

    def render(self) -> "Table":
        """A column a system, a line a figure with half of its 95 % interval."""
        from rich import box
        from rich.table import Table

        ways = (f"{name}: {how}" for name, how in self.how.items())
        differences = (
            f"{pair}: {', '.join(_difference(by, name) for name in FIGURES if name in by)}"
            for pair, by in self.differences.items()
        )
        table = Table(
            title=f"{self.examples} examples",
            caption="\n".join([*ways, self.protocol, *differences]),
            caption_justify="left",
            box=box.SIMPLE_HEAD,
            show_edge=False,
            pad_edge=False,
            padding=(0, 0, 0, 1),
        )
        table.add_column("", no_wrap=True)
        for system in self.systems:
            table.add_column(system, justify="right", no_wrap=len(self.systems) < 6)
        for name, figure in FIGURES.items():
            if any(name in figures for figures in self.systems.values()):
                table.add_row(figure.label, *(cell(figures, name, figure) for figures in self.systems.values()))
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
