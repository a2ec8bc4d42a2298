"""A report as one HTML file, with its style and script inside: light and dark, wide and narrow, on screen and paper."""

import os
import platform
from collections.abc import Sequence
from datetime import datetime
from html import escape
from importlib import metadata, resources

from raysum import __version__
from raysum.evaluate.scorers import FIGURES
from raysum.evaluate.table import cell
from raysum.report import parts, results, training
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


def page(found: Gathered) -> str:
    """The whole page."""
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
    links = [
        f'<a href="#{key}">{name}</a>' for key, name in _NAMES.items() if any(f'id="{key}"' in one for one in shown)
    ]
    names = [*(run.name for run in found.runs), *(search.name for search in found.searches)]
    named = escape(", ".join(names or [one.name for one in found.evaluations]))
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f'<link rel="icon" href="data:,"><title>raysum: {named}</title><style>{_file("page.css")}</style></head>'
        f"<body><header><h1>{named}</h1>{_tiles(found)}</header><nav><div>{''.join(links)}</div></nav>"
        f"<main>{''.join(shown)}</main><footer>raysum {__version__}, {datetime.now():%Y-%m-%d %H:%M}</footer>"
        f"<script>{_file('page.js')}</script></body></html>\n"
    )


def _file(name: str) -> str:
    return resources.files(__package__).joinpath(name).read_text(encoding="utf-8")


def _tiles(found: Gathered) -> str:
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
    html = (f"<div><b>{escape(value)}</b><span>{escape(told)}</span></div>" for value, told in tiles[:_TILES])
    return f'<div class="tiles">{"".join(html)}</div>'


def _environment() -> str:
    lines: Sequence[Sequence[str]] = [
        ["raysum", __version__],
        ["Python", platform.python_version()],
        ["system", platform.platform()],
        ["processor", f"{platform.machine()}, {os.cpu_count()} cores"],
        *([name, metadata.version(name)] for name in _LIBRARIES),
    ]
    told = "Where this page was written; what a run was trained with stands under Runs."
    return parts.section("environment", "Environment", parts.note(told), parts.table(["", "version"], lines))
