"""What a benchmark found: the machine and rows of figures, as a table and as JSON."""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from raysum.bench.isolate import Row
from raysum.bench.machine import Machine

if TYPE_CHECKING:
    from rich.table import Table


@dataclass(frozen=True)
class BenchResult:
    """``rows`` are flat; a column that a row lacks is empty in the table."""

    bench: str
    machine: Machine
    rows: list[Row]

    def to_dict(self) -> dict[str, Any]:
        return {"bench": self.bench, "machine": self.machine.to_dict(), "rows": self.rows}

    def table(self) -> "Table":
        from rich import box
        from rich.table import Table

        table = Table(caption=str(self.machine), caption_justify="left", box=box.SIMPLE_HEAD, show_edge=False)
        columns = list(dict.fromkeys(name for row in self.rows for name in row))
        for name in columns:
            numeric = all(isinstance(row.get(name, 0), int | float) for row in self.rows)
            table.add_column(name.replace("_", " "), justify="right" if numeric else "left")
        for row in self.rows:
            table.add_row(*(_cell(row.get(name)) for name in columns))
        return table


def _cell(value: Any) -> str:
    if value is None:
        return ""
    if isinstance(value, float):
        return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"
    return f"{value:,}" if isinstance(value, int) else str(value)
