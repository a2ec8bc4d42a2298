"""Verbs by which people judge summaries."""

from pathlib import Path
from typing import Annotated, Any

import typer

from raysum.cli.options import verb
from raysum.research.human.config import SheetsConfig

human_app = typer.Typer(help="Let people judge summaries, and analyze what they found.", no_args_is_help=True)


@verb(human_app, SheetsConfig, name="sheets")
def human_sheets(
    evaluations: Annotated[
        list[str], typer.Argument(metavar="EVALUATION...", help="Folders that raysum evaluate wrote: its --out.")
    ],
    settings: SheetsConfig,
) -> Any:
    """Blinded sheets for judges, as CSV and as pages that work offline."""
    from raysum.research.human.sheets import human_sheets as run

    return run(evaluations, **settings.model_dump())


@verb(human_app, name="analyze")
def human_analyze(
    folder: Annotated[Path, typer.Argument(help="Folder of `human sheets`, with sheets filled in.")],
) -> Any:
    """Scores, tests and agreement of the sheets that judges filled in."""
    from raysum.research.human.analysis import human_analyze as run

    return run(folder)
