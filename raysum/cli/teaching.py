"""`raysum teach`."""

from typing import Annotated, Any

import typer

from raysum.cli.options import verb
from raysum.teach.config import TeachConfig


def add_teach(app: typer.Typer) -> None:
    verb(app, TeachConfig)(teach)


def teach(
    clusters: Annotated[list[str], typer.Argument(metavar="CLUSTERS...", help="As of `raysum prepare`.")],
    settings: TeachConfig,
) -> Any:
    """Let a language model write the summaries that clusters lack: JSON lines for `raysum prepare`.

    The same command goes on where a killed one was. The exit status is 3 where the budget was spent before the end,
    and 2 where too many answers are of no use."""
    from raysum.teach.job import teach as run

    return run(clusters, **settings.model_dump())
