"""The tables that were made, for people: in a terminal, as JSON and as a page."""

from dataclasses import dataclass, field
from html import escape
from itertools import chain
from typing import TYPE_CHECKING, Any

from raysum.pages.parts import document, note, section, table
from raysum.research.reproduce.systems import expected
from raysum.research.reproduce.tables import PAPERS, PaperTable
from raysum.runtime.progress import span
from raysum.runtime.rendering import Grid, Shown

if TYPE_CHECKING:
    from pandas import DataFrame
    from rich.console import Group

_USUAL = 30.0  # seconds of training of each system, by default
_FEW = 3  # columns that fit beside each other with ours
_DIGITS = {"attention": 4, "ranks": 4}  # behind the point, where it is not two, or three of what is below one


@dataclass(frozen=True)
class Filled(Shown):
    """A table with our figures beside the paper's. ``rows``: name, ``paper`` and ``ours`` by column, ``note``."""

    table: PaperTable
    rows: list[dict[str, Any]]
    told: dict[str, str]  # what holds of all rows: protocol, data, training, size
    notes: list[str] = field(default_factory=list)
    plot: str | None = None  # a file beside the page

    def to_dict(self) -> dict[str, Any]:
        own = {name: getattr(self.table, name) for name in ("id", "paper", "about", "columns")}
        return own | {"rows": self.rows, **self.told, "notes": self.notes, "plot": self.plot}

    @property
    def compares(self) -> bool:
        """Whether the paper has any figure of it."""
        return any(value is not None for row in self.rows for value in row["paper"])

    def lines(self) -> list[list[str]]:
        """A line a row: its name, then of each column the paper's figure, if it has any, and ours."""
        first, lines = 0 if self.compares else 1, []
        for row in self.rows:
            pairs = (self._texts(column, row)[first:] for column in range(len(self.table.columns)))
            lines.append([row["row"], *chain.from_iterable(pairs)])
        return lines

    def heads(self, joint: str) -> list[str]:
        """Of the columns of :meth:`lines`, but for the first."""
        if not self.compares:
            return self.table.columns
        return [name for column in self.table.columns for name in (f"{column}{joint}paper", f"{joint}ours")]

    def _texts(self, column: int, row: dict[str, Any]) -> tuple[str, str]:
        """The paper's figure, and ours with half of its 95 % interval, or why there is none."""
        paper, ours = row["paper"][column], row["ours"][column]
        known = [abs(one["paper"][column]) for one in self.rows if one["paper"][column] is not None]
        digits = _DIGITS.get(self.table.measure, 2 if not known or max(known) >= 1 else 3)

        def text(value: float) -> str:
            return f"{value:.{digits}f}" if isinstance(value, float) else str(value)

        half = f" ±{text((ours['high'] - ours['low']) / 2)}" if "low" in ours else ""
        return "" if paper is None else text(paper), ours.get("told") or f"{text(ours['value'])}{half}"

    def remarks(self) -> list[str]:
        """What stands under the table."""
        own = [f"{row['row']}: {row['note']}" for row in self.rows if row["note"]]
        return [*(f"{name}: {told}" for name, told in self.told.items()), *own, *self.notes]

    def render(self) -> "Group":
        from rich.console import Group

        grid = Grid(padding=(0, 0, 0, 1))
        grid.title, grid.title_justify = f"{self.table.id}: {self.table.paper}", "left"
        wide = self.compares and len(self.table.columns) > _FEW
        heads = [name.replace(" ", "\n") for name in (self.table.columns if wide else self.heads("\n"))]
        for head in ["", *heads]:
            grid.add_column(head, justify="right" if head else "left", no_wrap=bool(head))
        for name, *cells in self.lines():
            if wide:  # two lines a row
                ours = cells[1::2] if len(cells) <= 4 * _FEW else [cell.partition(" ±")[0] for cell in cells[1::2]]
                grid.add_row(name, *cells[::2])
                grid.add_row("  ours", *ours)
            else:
                grid.add_row(name, *cells)
        return Group(f"\n{self.table.about}", grid, *self.remarks())

    def page(self) -> str:
        """As one HTML file."""
        head = ["", *(name.strip(" ,") for name in self.heads(", "))]
        plot = f'<p><img src="{escape(self.plot)}" alt="{escape(self.table.about)}"></p>' if self.plot else ""
        body = section(
            self.table.id,
            self.table.paper,
            note(self.table.about),
            plot,
            table(head, self.lines(), numbers=True),
            *map(note, self.remarks()),
        )
        return document(self.table.id, "", [body], {})


@dataclass(frozen=True)
class Reproduction(Shown):
    """The tables that were asked for, and the folder they are in."""

    out: str
    seconds: float
    tables: list[Filled]

    def to_dict(self) -> dict[str, Any]:
        return {
            "out": self.out,
            "seconds": round(self.seconds, 1),
            "tables": {t.table.id: t.to_dict() for t in self.tables},
        }

    def to_pandas(self) -> "DataFrame":
        """A line a figure: ``table``, ``row``, ``column``, ``paper``, ``ours``, ``low``, ``high``."""
        import pandas as pd

        lines = [
            {"table": one.table.id, "row": row["row"], "column": column, "paper": row["paper"][n]}
            | {
                "ours": row["ours"][n].get("value"),
                "low": row["ours"][n].get("low"),
                "high": row["ours"][n].get("high"),
            }
            for one in self.tables
            for row in one.rows
            for n, column in enumerate(one.table.columns)
        ]
        return pd.DataFrame(lines)

    def render(self) -> "Group":
        from rich.console import Group

        tables = [one.render() for one in self.tables]
        return Group(
            *tables, f"\n{self.out}/tables: {', '.join(one.table.id for one in self.tables)}; {span(self.seconds)}"
        )


@dataclass(frozen=True)
class ListedFigures(Shown):
    """What `raysum reproduce --list` prints."""

    tables: list[PaperTable]

    def to_dict(self) -> dict[str, Any]:
        return {"tables": {one.id: self._told(one) for one in self.tables}}

    def render(self) -> "Group":
        from rich.console import Group

        grid = Grid(padding=(0, 1, 0, 0))
        for name in ("table", "paper", "rows", "about", "what"):
            grid.add_column(name, no_wrap=name != "what")
        for one in self.tables:
            told = self._told(one)
            grid.add_row(one.id, told["paper"], str(told["rows"]), span(told["seconds"]), one.about)
        whole = expected(self.tables, _USUAL)
        papers = (f"{name}: {title}" for name, title in PAPERS.items())
        usual = f"all: about {span(whole)} with minutes=0.5 on two cores, as tables share their systems"
        return Group(grid, *papers, usual)

    @staticmethod
    def _told(one: PaperTable) -> dict[str, Any]:
        return {"paper": one.paper, "about": one.about, "rows": len(one.rows), "seconds": expected([one], _USUAL)}
