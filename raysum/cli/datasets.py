"""`raysum data`: what is in datasets, and whether it is whole."""

from typing import Annotated, Any

import typer

from raysum.cli.options import verb

data_app = typer.Typer(help="Look into datasets.", no_args_is_help=True)


@verb(data_app, name="show")
def data_show(data: Annotated[str, typer.Argument(help="Dataset folder.")]) -> Any:
    """What a dataset holds: rows, lengths, what was cut or rejected, the recipe."""
    from raysum.data.card import Card

    return Card.of(data)


@verb(data_app, name="check")
def data_check(data: Annotated[str, typer.Argument(help="Dataset folder.")]) -> Any:
    """Read every byte of a dataset, and compare it with what was written."""
    from raysum.data.checking import check

    return check(data)
