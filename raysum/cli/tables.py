"""`raysum reproduce --list`."""

import sys

import typer

from raysum.cli.options import print_result


def list_tables(asked: bool) -> None:
    """Print the papers' tables and end, where that is ``asked``: before anything else is looked at."""
    if asked:
        from raysum.research.reproduce.rendering import Listed
        from raysum.research.reproduce.tables import ALL, chosen

        print_result(Listed(chosen(ALL)), "--json" in sys.argv)
        raise typer.Exit
