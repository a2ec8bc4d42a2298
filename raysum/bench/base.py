"""Benchmarks: settings, rows of figures, each measured in its own process, and the result as a table and as JSON."""

import multiprocessing
import os
import sys
import tempfile
import threading
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any, ClassVar

from pydantic import Field
from rich.console import Group

from raysum.bench.machine import Machine, measure
from raysum.config.base import Section
from raysum.config.loading import load_config
from raysum.config.sections import Config
from raysum.errors import UserError
from raysum.runtime.processes import keep_freed_memory, peak_rss_mb
from raysum.runtime.progress import bar, is_interactive, say
from raysum.runtime.rendering import Grid, Shown, print_safely
from raysum.stream.random_rows import has_random_rows

Row = dict[str, Any]
Number = Annotated[int, Field(gt=0)]
Threads = Annotated[int, Field(gt=0, le=4096)]
_COLUMNS = 5


class Bench(Section):
    """The settings of a benchmark, which measures a row for each of its cases."""

    NAME: ClassVar[str]

    def cases(self, scratch: Path) -> Iterable[tuple[Any, ...]]:
        """Return the arguments of ``row``, for each row. Raises UserError for settings that cannot be measured."""
        raise NotImplementedError

    def machine(self) -> Machine:
        """Measure the limits that are stated beside the rows."""
        return measure(getattr(self, "threads", 1), getattr(self, "dtypes", ["fp32"]))

    def row(self, *case: Any, **more: Any) -> Row:
        """Return the figures of a case from the machine and the case's arguments, measured in this process."""
        raise NotImplementedError

    def measured(self, *case: Any, **more: Any) -> Row:
        """Return the ``row`` of a case, measured in its own process."""
        return alone(self.row, *case)

    def run(self) -> "BenchResult":
        """Measure all rows; a mistake in a later one is the ``problem`` of the result.

        Raises UserError for an unknown preset, or sizes that do not fit in memory.
        """
        with tempfile.TemporaryDirectory() as scratch:
            cases = [*self.cases(Path(scratch))]
            machine = self.machine()
            result = BenchResult(self.NAME, machine, [])
            try:
                for number, case in enumerate(bar(cases, label=f"bench {self.NAME}", unit="row"), 1):
                    if not is_interactive():
                        say(f"bench {self.NAME}: row {number} of {len(cases)}")
                    result.rows.append(self.measured(machine, *case))
                    self.keep(result)
            except UserError as error:
                if not result.rows:
                    raise
                return replace(result, problem=str(error))
            except BaseException:
                if result.rows:
                    print_safely(result.render(), file=sys.stderr)
                raise
        return result

    def keep(self, result: "BenchResult") -> None:
        """Save a result that gets more rows."""


class PresetBench(Bench):
    """A benchmark of the models of presets."""

    presets: list[str] = Field(min_length=1)
    config: list[str] = Field([], description="key=value overrides of every preset")

    def configs(self, are_decoded: bool = False) -> list[tuple[str, Config]]:
        """Return the presets with their configs.

        Raises UserError for an unknown preset, and for one without random rows, or that cannot be decoded if needed.
        """
        configs = [(preset, load_config(preset, self.config)) for preset in self.presets]
        for preset, config in configs:
            if not has_random_rows(config.model):
                raise UserError(f"there are no random rows for the system {config.model.system}: choose another preset")
            if are_decoded and not config.model.summarizes:
                raise UserError(f"the preset {preset} generates no summaries: choose one that does, such as pht")
        return configs


def alone(work: Callable[..., Row], *arguments: Any) -> Row:
    """Return the row of ``work(*arguments)``, run in a fresh process, with its ``peak_rss_mb`` if the row lacks one.

    Peak memory and caches are then those of this measurement only. Raises UserError if the process is killed
    (usually: out of memory).
    """
    with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as pool, ending_processes():
        try:
            return pool.submit(_measured, work, arguments).result()
        except BrokenProcessPool:
            message = f"a benchmark process was killed, usually for lack of memory: {arguments}; use smaller sizes"
            raise UserError(message) from None


@contextmanager
def ending_processes() -> Iterator[None]:
    """Kill the processes of :func:`alone` if the block is interrupted: leaving a pool waits for them."""
    try:
        yield
    except BaseException:
        for process in multiprocessing.active_children():
            process.kill()
        raise


def _measured(work: Callable[..., Row], arguments: tuple[Any, ...]) -> Row:
    threading.Thread(target=_end_with_parent, daemon=True).start()
    keep_freed_memory()
    row = work(*arguments)
    return {**row, "peak_rss_mb": round(row.get("peak_rss_mb", peak_rss_mb()), 1)}


def _end_with_parent() -> None:
    """End this process when the benchmark is killed."""
    parent = multiprocessing.parent_process()
    assert parent, "this is a child process"
    parent.join()
    os._exit(1)


@dataclass(frozen=True)
class BenchResult(Shown):
    """The machine and flat ``rows``. A figure that a row lacks is empty in its table.

    ``problem``: why there are no more rows.
    """

    bench: str
    machine: Machine
    rows: list[Row]
    problem: str | None = None

    def render(self) -> Group:
        """Return tables with a line per figure and a column per row; at most ``_COLUMNS`` rows fit side by side."""
        first, *names = dict.fromkeys(name for row in self.rows for name in row)
        tables = []
        for start in range(0, len(self.rows), _COLUMNS):
            rows = self.rows[start : start + _COLUMNS]
            table = Grid()
            table.add_column(first.replace("_", " "), no_wrap=True)
            for row in rows:
                table.add_column(as_cell(row.get(first)), justify="right")
            for name in (name for name in names if any(name in row for row in rows)):
                table.add_row(name.replace("_", " "), *(as_cell(row.get(name)) for row in rows))
            tables.append(table)
        return Group(*tables, str(self.machine))


def as_cell(value: Any) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"
    if isinstance(value, int):
        return f"{value / 1e6:.1f} M" if value >= 1e6 else f"{value:,}"
    return str(value or "")
