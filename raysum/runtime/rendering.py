"""Results as people see them: in notebooks as on the command line, and tables that never truncate cells."""

from collections.abc import Container
from copy import copy
from dataclasses import asdict
from io import StringIO
from typing import TYPE_CHECKING, Any

from rich.box import SIMPLE_HEAD
from rich.console import Console, ConsoleOptions, RenderResult
from rich.measure import measure_renderables
from rich.segment import Segment
from rich.table import Column, Table
from rich.text import Text

from raysum.errors import spelled

if TYPE_CHECKING:
    from pandas import DataFrame

_NOTEBOOK = 120  # characters of a line
_UNBOUNDED = 100_000  # characters of a line
_PART = 3  # a word longer than this part of a line (1/3) may be broken


class Shown:
    """A result, usually a dataclass, that ``render()`` turns into something that rich prints."""

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)  # type: ignore[call-overload]

    def render(self) -> Any:
        raise NotImplementedError

    def _repr_mimebundle_(self, include: Any = None, exclude: Any = None) -> dict[str, str]:
        printed = StringIO()
        print_safely(self.render(), file=printed, width=_NOTEBOOK, force_jupyter=False)
        return {"text/plain": printed.getvalue()}


def print_safely(shown: Any, **how: Any) -> None:
    """Print what ``render()`` returned on a console of rich, without markup and emoji codes in texts.

    Control characters are escaped, because a terminal obeys those in texts of users.
    """
    Console(markup=False, emoji=False, highlight=False, **how).print(_Safe(shown), soft_wrap=True)


class _Safe:
    def __init__(self, shown: Any):
        self._shown = shown

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        for segment in console.render(self._shown, options):
            yield segment if segment.control else Segment(spelled(segment.text), segment.style)


class Grid(Table):
    """A table of texts that wraps cells at words, except in columns with ``no_wrap``.

    Columns that still do not fit follow in a second table, which repeats the first column.
    """

    def __init__(self, *headings: str, **how: Any):
        super().__init__(box=SIMPLE_HEAD, show_edge=False, pad_edge=False, **how)
        for heading in headings:
            self.add_column(heading)

    @classmethod
    def of(cls, frame: "DataFrame", left: Container[str] = (), no_wrap: bool = False, **how: Any) -> "Grid":
        """Return a table of texts: the index, which wraps unless ``no_wrap``, and columns at the right or ``left``."""
        grid = cls(**how)
        grid.add_column(frame.index.name or "", no_wrap=no_wrap)
        for name in frame:
            grid.add_column(name, justify="left" if name in left else "right", no_wrap=True)
        for row in frame.itertuples():
            grid.add_row(*row)
        return grid

    def add_column(self, header: Any = "", *args: Any, **how: Any) -> None:
        super().add_column(_text(header), *args, **how)

    def add_row(self, *cells: Any, **how: Any) -> None:
        super().add_row(*map(_text, cells), **how)

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        unbounded = options.update_width(_UNBOUNDED)
        for column in self.columns:
            words, lines = measure_renderables(console, unbounded, [column.header, *column.cells])
            column.min_width = lines if column.no_wrap else min(words, options.max_width // _PART)
        first, *left = self.columns
        while left:
            count = len(left)
            part = self._of([first, *left])
            while count > 1 and console.measure(part, options=unbounded).minimum > options.max_width:
                count -= 1
                part = self._of([first, *left[:count]])
            part.title = self.title if len(left) == len(self.columns) - 1 else None
            left = left[count:]
            part.caption = None if left else self.caption
            yield from super(Grid, part).__rich_console__(console, options)
            yield from [""] * bool(left)

    def _of(self, columns: list[Column]) -> "Grid":
        part = copy(self)
        part.columns = columns
        return part


def _text(cell: str) -> Text:
    return Text(cell, overflow="fold", no_wrap=False)
