"""A report as one HTML file, with its style and script inside: light and dark, wide and narrow, on screen and paper."""

import os
import platform
from collections.abc import Sequence
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Any

from raysum import __version__
from raysum.evaluate.scorers import FIGURES
from raysum.evaluate.table import cell
from raysum.pages import parts
from raysum.report import results, training
from raysum.report.examples import examples
from raysum.report.gather import Gathered, gather
from raysum.report.learned import learned_features
from raysum.report.verdict import verdict
from raysum.runtime.rendering import Shown
from raysum.runtime.storage import write_page

_LIBRARIES = ("torch", "ray", "deepspeed", "sentencepiece", "rouge-score", "pandas", "numpy")
_TILES = 6


@dataclass(frozen=True)
class Report(Shown):
    """A page that was written, and its content."""

    path: Path
    content: Gathered

    def to_dict(self) -> dict[str, Any]:
        """Return ``report`` (the path), and the names of its ``runs``, ``searches`` and ``evaluations``."""
        kinds = ("runs", "searches", "evaluations")
        return {"report": str(self.path)} | {kind: [one.name for one in getattr(self.content, kind)] for kind in kinds}

    def render(self) -> str:
        return f"report: {self.path}"


def report(paths: str | os.PathLike[str] | Sequence[str | os.PathLike[str]], out: str | os.PathLike[str]) -> Report:
    """Write one HTML page of runs, searches and evaluations (folders) into the file ``out``. It needs no network.

    A run includes its evaluations, a search its best run. Raises UserError if a folder is none of these, a file is
    damaged, or ``out`` cannot be written.

    >>> raysum.report(["runs/pht", "runs/beta"], out="report.html")
    """
    content = gather([paths] if isinstance(paths, str | os.PathLike) else paths)
    file = Path(out).expanduser().absolute()
    write_page(file, report_page(content), "--out")
    return Report(file, content)


def report_page(content: Gathered, every: float | None = None) -> str:
    """Return the page. With ``every``, it reloads after that number of seconds."""
    runs, searches, evaluations = content.runs, content.searches, content.evaluations
    sections = [
        training.curves(runs),
        training.costs(runs),
        learned_features(runs),
        results.evaluations(evaluations, runs),
        results.lengths(evaluations),
        results.searches(searches, runs),
        examples(evaluations),
        training.configs(runs),
        _environment(),
    ]
    names = [*(run.name for run in runs), *(search.name for search in searches)]
    title = ", ".join(names or [evaluated.name for evaluated in evaluations])
    top = parts.conclusion(verdict(content)) + parts.tiles(_tiles(content)[:_TILES])
    return parts.document(title, top, sections, every)


def _tiles(content: Gathered) -> list[tuple[str, str]]:
    """Return the most important figures with their labels."""
    tiles: list[tuple[str, str]] = []
    for evaluated in content.evaluations:
        name, figures = next(iter(evaluated.table.systems.items()), ("", {}))
        for key in [key for key in ("rouge2", "rouge1") if key in figures][:1]:
            label = f"{FIGURES[key].label} of {name}, {evaluated.folder.name}"
            tiles.append((cell(figures, key, FIGURES[key]), label))
    for run in content.runs:
        if run.best in run.validations:
            tiles.append((f"{run.validations[run.best]:.4f}", f"validation loss of {run.name}"))
        if run.parameters:
            tiles.append((f"{run.parameters:,}", f"parameters of {run.name}"))
        if run.state.get("seconds"):
            tiles.append((parts.duration(run.state["seconds"]), f"training of {run.name}"))
    return tiles + [(f"{len(search.trials)}", f"trials of {search.name}") for search in content.searches]


def _environment() -> str:
    lines = [
        ["raysum", __version__],
        ["Python", platform.python_version()],
        ["system", platform.platform()],
        ["processor", f"{platform.machine()}, {os.cpu_count()} cores"],
        *([name, metadata.version(name)] for name in _LIBRARIES),
    ]
    note = "The machine that wrote this page; section Runs has those of the trainings."
    return parts.section("environment", "Environment", parts.note(note), parts.table(["", "version"], lines))
