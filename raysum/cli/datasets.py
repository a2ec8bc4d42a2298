"""`raysum data`: what is in datasets, and whether it is whole."""

from typing import Annotated, Any

import typer

from raysum.cli.options import verb
from raysum.runtime.progress import say

data_app = typer.Typer(help="Look into datasets.", no_args_is_help=True)


@verb(data_app, name="show")
def data_show(
    data: Annotated[str, typer.Argument(help="Dataset folder.")],
    plot: Annotated[str | None, typer.Option(help="Draw the lengths into this file, a PNG or SVG.")] = None,
) -> Any:
    """What a dataset holds: rows, lengths, languages, what was cut or rejected, the recipe, an example."""
    from raysum.data.inspection import Card

    card = Card.of(data)
    if plot:
        from raysum.data.inspection import plot_lengths

        plot_lengths(data, plot)
        say(f"the lengths are drawn in {plot}")
    return card


@verb(data_app, name="check")
def data_check(data: Annotated[str, typer.Argument(help="Dataset folder.")]) -> Any:
    """Read every byte of a dataset, and compare it with what was written."""
    from raysum.data.inspection import check_dataset

    return check_dataset(data)
