"""A report as one HTML file, with its style and script inside: light and dark, wide and narrow, on screen and paper."""

import os
import platform
from collections.abc import Sequence
from importlib import metadata

from raysum import __version__
from raysum.evaluate.scorers import FIGURES
from raysum.evaluate.table import cell
from raysum.pages import parts
from raysum.pages.parts import document
from raysum.report import results, training
from raysum.report.examples import examples
from raysum.report.gather import Gathered

_LIBRARIES = ("torch", "ray", "deepspeed", "sentencepiece", "rouge-score", "pandas", "numpy")
_TILES = 6
_NAMES = {
    "curves": "Curves",
    "runs": "Runs",
    "evaluation": "Evaluation",
    "lengths": "Lengths",
    "search": "Searches",
    "examples": "Examples",
    "config": "Configuration",
    "environment": "Environment",
}


def report_page(found: Gathered, every: float | None = None) -> str:
    """The whole page; ``every`` so many seconds it looks for a newer one of itself, where given."""
    shown = [
        training.curves(found.runs),
        training.costs(found.runs),
        results.evaluations(found.evaluations, found.runs),
        results.lengths(found.evaluations),
        results.searches(found.searches, found.runs),
        examples(found.evaluations),
        training.configs(found.runs),
        _environment(),
    ]
    names = [*(run.name for run in found.runs), *(search.name for search in found.searches)]
    named = ", ".join(names or [one.name for one in found.evaluations])
    return document(named, parts.tiles(_tiles(found)[:_TILES]), shown, _NAMES, every)


def _tiles(found: Gathered) -> list[tuple[str, str]]:
    """What matters most, in large letters."""
    tiles: list[tuple[str, str]] = []
    for one in found.evaluations:
        name, figures = next(iter(one.table.systems.items()), ("", {}))
        shown = next((key for key in ("rouge2", "rouge1") if key in figures), None)
        if shown:
            tiles.append((cell(figures, shown, FIGURES[shown]), f"{FIGURES[shown].label} of {name}, {one.path.name}"))
    for run in found.runs:
        if run.best in run.validations:
            tiles.append((f"{run.validations[run.best]:.4f}", f"validation loss of {run.name}"))
        if run.parameters:
            tiles.append((f"{run.parameters:,}", f"parameters of {run.name}"))
        if run.state.get("seconds"):
            tiles.append((parts.duration(run.state["seconds"]), f"training of {run.name}"))
    for search in found.searches:
        tiles.append((f"{len(search.trials)}", f"trials of {search.name}"))
    return tiles


def _environment() -> str:
    lines: Sequence[Sequence[str]] = [
        ["raysum", __version__],
        ["Python", platform.python_version()],
        ["system", platform.platform()],
        ["processor", f"{platform.machine()}, {os.cpu_count()} cores"],
        *([name, metadata.version(name)] for name in _LIBRARIES),
    ]
    told = "The machine that wrote this page; section Runs has those of the trainings."
    return parts.section("environment", "Environment", parts.note(told), parts.table(["", "version"], lines))
