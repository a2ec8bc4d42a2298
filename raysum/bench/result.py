"""What a benchmark found: the machine and rows of figures, as a table and as JSON."""

from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from raysum.bench.isolate import Row
from raysum.bench.machine import Machine
from raysum.runtime.rendering import Shown

if TYPE_CHECKING:
    from rich.console import Group

_BESIDE = 5


@dataclass(frozen=True)
class BenchResult(Shown):
    """``rows`` are flat; a column that a row lacks is empty in the table."""

    bench: str
    machine: Machine
    rows: list[Row]

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)

    def render(self) -> "Group":
        """A line a figure, a column a row; a few columns beside each other, so that they fit a terminal."""
        from rich.console import Group

        from raysum.runtime.grid import Grid

        names = list(dict.fromkeys(name for row in self.rows for name in row))
        tables = []
        for start in range(0, len(self.rows), _BESIDE):
            shown = self.rows[start : start + _BESIDE]
            table = Grid()
            table.add_column(names[0].replace("_", " "), no_wrap=True)
            for row in shown:
                table.add_column(_cell(row.get(names[0])), justify="right")
            for name in names[1:]:
                table.add_row(name.replace("_", " "), *(_cell(row.get(name)) for row in shown))
            tables.append(table)
        return Group(*tables, str(self.machine))


def _cell(value: Any) -> str:
    if value is None:
        return ""
    if isinstance(value, float):
        return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"
    if isinstance(value, int):
        return f"{value / 1e6:.1f} M" if value >= 1e6 else f"{value:,}"
    return str(value)
