"""The result of an evaluation, as a table and as JSON."""

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pandas import DataFrame
    from rich.table import Table

# What a figure is called in tables, and its digits after the point; the order of the rows.
FIGURES = {
    "rouge1": ("ROUGE-1", 2),
    "rouge2": ("ROUGE-2", 2),
    "rougeL": ("ROUGE-L", 2),
    "rougeLsum": ("ROUGE-Lsum", 2),
    "facts_f1": ("facts F1", 1),
    "facts_right": ("facts right", 0),
    "facts_wrong": ("facts wrong", 0),
    "citation_precision": ("citations P", 1),
    "citation_recall": ("citations R", 1),
    "lexical_precision": ("  by words P", 1),
    "lexical_recall": ("  by words R", 1),
    "random_precision": ("  at random P", 1),
    "random_recall": ("  at random R", 1),
    "attention_similarity": ("attention", 3),
    "words": ("words", 1),
    "valid_loss": ("valid loss", 4),
    "step": ("step", 0),
}


@dataclass(frozen=True)
class Evaluation:
    """The figures of each system (see ``scoring.means``), how ROUGE was counted, and the ``scores`` of each example.

    ``differences`` of the first system to each other one in ROUGE-2, with the bounds of the paired bootstrap interval.
    ``weights``: of the score terms by which systems differ, where they are one model decoded in several ways.
    """

    systems: dict[str, dict[str, float]]
    differences: dict[str, dict[str, float]]
    protocol: str
    examples: int
    scores: "DataFrame"
    weights: dict[str, dict[str, float]] = field(default_factory=dict)

    def to_dict(self) -> dict[str, Any]:
        return {
            "systems": self.systems,
            "differences": self.differences,
            "protocol": self.protocol,
            "examples": self.examples,
            **({"weights": self.weights} if self.weights else {}),
        }

    def table(self) -> "Table":
        """A column a system, a line a figure with half of its 95 % interval."""
        from rich import box
        from rich.table import Table

        weights = (f"{name}: {key} {value}" for name, one in self.weights.items() for key, value in one.items())
        differences = (
            f"{pair}: {d['rouge2']:+.2f} ROUGE-2 [{d['rouge2_low']:+.2f}, {d['rouge2_high']:+.2f}]"
            for pair, d in self.differences.items()
        )
        table = Table(
            title=f"{self.examples} examples",
            caption="\n".join([self.protocol, *weights, *differences]),
            caption_justify="left",
            box=box.SIMPLE_HEAD,
            show_edge=False,
            pad_edge=False,
            padding=(0, 0, 0, 1),
        )
        table.add_column("", no_wrap=True)
        for system in self.systems:
            table.add_column(system, justify="right", no_wrap=len(self.systems) < 6)
        for name, (label, _) in FIGURES.items():
            if any(name in figures for figures in self.systems.values()):
                table.add_row(label, *(cell(figures, name) for figures in self.systems.values()))
        return table


def cell(figures: dict[str, float], name: str, interval: bool = True) -> str:
    """A figure, with half of its 95 % ``interval``; empty where it is not known."""
    digits = FIGURES[name][1]
    if name not in figures:
        return ""
    if not interval or f"{name}_low" not in figures:
        return f"{figures[name]:.{digits}f}"
    half = (figures[f"{name}_high"] - figures[f"{name}_low"]) / 2
    return f"{figures[name]:.{digits}f} ±{half:.{digits}f}"
