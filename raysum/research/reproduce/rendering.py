"""The tables that were made, for people: in a terminal, as JSON and as a page."""

from dataclasses import dataclass, field
from html import escape
from typing import TYPE_CHECKING, Any

from rich.console import Group

from raysum.pages.parts import document, note, section, table
from raysum.research.reproduce.tables import PAPERS, PaperTable, expected
from raysum.runtime.progress import span
from raysum.runtime.rendering import Grid, Shown

if TYPE_CHECKING:
    from pandas import DataFrame

_DEFAULT = 30.0  # seconds of training of each system
_FEW = 3  # columns that fit beside each other with ours
_DIGITS = {"attention": 4, "ranks": 4}  # decimals; by default two, or three if all figures are below one


@dataclass(frozen=True)
class Filled(Shown):
    """A table with our figures beside the paper's. ``rows``: name, ``paper`` and ``ours`` by column, ``note``."""

    table: PaperTable
    rows: list[dict[str, Any]]
    facts: dict[str, str]  # of all rows: protocol, data, training, size
    notes: list[str] = field(default_factory=list)
    plot: str | None = None  # a file beside the page

    def to_dict(self) -> dict[str, Any]:
        own = {name: getattr(self.table, name) for name in ("id", "paper", "about", "columns")}
        return own | {"rows": self.rows, **self.facts, "notes": self.notes, "plot": self.plot}

    @property
    def compares(self) -> bool:
        """Whether the paper has any figure of it."""
        return any(value is not None for row in self.rows for value in row["paper"])

    def lines(self) -> list[list[str]]:
        """Return a line a row: its name, then of each column the paper's figure, if it has any, and ours."""
        digits = [_DIGITS.get(self.table.measure, self._digits(n)) for n in range(len(self.table.columns))]
        lines = []
        for row in self.rows:
            line = [row["row"]]
            for paper, ours, count in zip(row["paper"], row["ours"], digits, strict=True):
                line += [_text(paper, count)] if self.compares else []
                half = f" ±{_text((ours['high'] - ours['low']) / 2, count)}" if "low" in ours else ""
                line.append(ours.get("told") or _text(ours["value"], count) + half)
            lines.append(line)
        return lines

    def _digits(self, column: int) -> int:
        known = [abs(row["paper"][column]) for row in self.rows if row["paper"][column] is not None]
        return 2 if not known or max(known) >= 1 else 3

    def heads(self, joint: str) -> list[str]:
        """Return the heads of the columns of :meth:`lines`, but for the first."""
        if not self.compares:
            return self.table.columns
        return [name for column in self.table.columns for name in (f"{column}{joint}paper", f"{joint}ours")]

    def remarks(self) -> list[str]:
        """Return the lines under the table."""
        own = [f"{row['row']}: {row['note']}" for row in self.rows if row["note"]]
        return [*(f"{name}: {fact}" for name, fact in self.facts.items()), *own, *self.notes]

    def render(self) -> Group:
        grid = Grid(padding=(0, 0, 0, 1))
        grid.title, grid.title_justify = f"{self.table.id}: {self.table.paper}", "left"
        wide = self.compares and len(self.table.columns) > _FEW
        grid.add_column("")
        for head in self.table.columns if wide else self.heads("\n"):
            grid.add_column(head.replace(" ", "\n"), justify="right", no_wrap=True)
        for name, *cells in self.lines():
            if wide:  # two lines a row
                ours = cells[1::2] if len(cells) <= 4 * _FEW else [cell.partition(" ±")[0] for cell in cells[1::2]]
                grid.add_row(name, *cells[::2])
                grid.add_row("  ours", *ours)
            else:
                grid.add_row(name, *cells)
        return Group(f"\n{self.table.about}", grid, *self.remarks())

    def page(self) -> str:
        """Return the table as one HTML file."""
        head = ["", *(name.strip(" ,") for name in self.heads(", "))]
        plot = f'<p><img src="{escape(self.plot)}" alt="{escape(self.table.about)}"></p>' if self.plot else ""
        figures = table(head, self.lines(), numbers=True)
        remarks = map(note, self.remarks())
        body = section(self.table.id, self.table.paper, note(self.table.about), plot, figures, *remarks)
        return document(self.table.id, "", [body])


def _text(value: float | None, digits: int) -> str:
    if value is None:
        return ""
    return f"{value:.{digits}f}" if isinstance(value, float) else str(value)


@dataclass(frozen=True)
class Reproduction(Shown):
    """The tables that were asked for, and the folder they are in."""

    out: str
    seconds: float
    tables: list[Filled]

    def to_dict(self) -> dict[str, Any]:
        tables = {one.table.id: one.to_dict() for one in self.tables}
        return {"out": self.out, "seconds": round(self.seconds, 1), "tables": tables}

    def to_pandas(self) -> "DataFrame":
        """Return a line a figure: ``table``, ``row``, ``column``, ``paper``, ``ours``, ``low``, ``high``."""
        import pandas as pd

        lines = [
            (one.table.id, row["row"], column, paper, *(ours.get(key) for key in ("value", "low", "high")))
            for one in self.tables
            for row in one.rows
            for column, paper, ours in zip(one.table.columns, row["paper"], row["ours"], strict=True)
        ]
        return pd.DataFrame(lines, columns=["table", "row", "column", "paper", "ours", "low", "high"])

    def render(self) -> Group:
        names = ", ".join(one.table.id for one in self.tables)
        return Group(*(one.render() for one in self.tables), f"\n{self.out}/tables: {names}; {span(self.seconds)}")


@dataclass(frozen=True)
class ListedFigures(Shown):
    """The output of `raysum reproduce --list`."""

    tables: list[PaperTable]

    def to_dict(self) -> dict[str, Any]:
        listed = {}
        for one in self.tables:
            seconds = expected([one], _DEFAULT)
            listed[one.id] = {"paper": one.paper, "about": one.about, "rows": len(one.rows), "seconds": seconds}
        return {"tables": listed}

    def render(self) -> Group:
        grid = Grid(padding=(0, 1, 0, 0))
        for name in ("table", "paper", "rows", "about", "what"):
            grid.add_column(name, no_wrap=name != "what")
        for one in self.tables:
            grid.add_row(one.id, one.paper, str(len(one.rows)), span(expected([one], _DEFAULT)), one.about)
        papers = (f"{name}: {title}" for name, title in PAPERS.items())
        whole = span(expected(self.tables, _DEFAULT))
        return Group(grid, *papers, f"all: about {whole} with minutes=0.5 on two cores, as tables share their systems")
