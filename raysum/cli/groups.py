"""The command groups `raysum config`, `raysum data` and `raysum human`."""

import json
from pathlib import Path
from typing import Annotated, Any

import typer

from raysum.cli.options import Overrides, completed_by, verb
from raysum.config.loading import presets
from raysum.research.human.designs import SheetsConfig
from raysum.runtime.progress import say

config_app = typer.Typer(help="Look into configurations.", no_args_is_help=True)
data_app = typer.Typer(help="Look into datasets.", no_args_is_help=True)
human_app = typer.Typer(help="Let people judge summaries, and analyze their answers.", no_args_is_help=True)


@verb(config_app, name="show")
def config_show(
    preset: Annotated[str, typer.Argument(metavar="PRESET|FILE", autocompletion=completed_by(presets))],
    overrides: Overrides = None,
) -> Any:
    """Print the fully resolved config of a preset or file, and its number of parameters."""
    from raysum.config.loading import load_config
    from raysum.config.sizes import SizedConfig
    from raysum.train.optim import check_engine_config

    config = load_config(preset, overrides or [])
    check_engine_config(config)
    return SizedConfig(preset, config)


@config_app.command("list")
def config_list() -> None:
    """Print the names of the presets."""
    from raysum.config.loading import presets

    print("\n".join(presets()))


@config_app.command("schema")
def config_schema() -> None:
    """Print the JSON schema of the config, for editors."""
    from raysum.config.sections import Config

    print(json.dumps(Config.model_json_schema(), indent=2))


@verb(data_app, name="show")
def data_show(
    data: Annotated[str, typer.Argument(help="Dataset folder.")],
    plot: Annotated[str | None, typer.Option(help="Draw the lengths into this file, a PNG or SVG.")] = None,
) -> Any:
    """Describe a dataset: rows, lengths, languages, truncation, rejected rows, the recipe, an example."""
    from raysum.data.inspection import Card

    card = Card.of(data)
    if plot:
        from raysum.data.inspection import plot_lengths

        plot_lengths(data, plot)
        say(f"the lengths are drawn in {plot}")
    return card


@verb(data_app, name="check")
def data_check(data: Annotated[str, typer.Argument(help="Dataset folder.")]) -> Any:
    """Read every byte of a dataset and compare it with the checksums."""
    from raysum.data.inspection import check_dataset

    return check_dataset(data)


@verb(human_app, SheetsConfig, name="sheets")
def human_sheets(
    evaluations: Annotated[
        list[str], typer.Argument(metavar="EVALUATION...", help="Folders that raysum evaluate wrote: its --out.")
    ],
    settings: SheetsConfig,
) -> Any:
    """Write blinded sheets for judges, as CSV and as pages that work offline."""
    from raysum.research.human.sheets import human_sheets as run

    return run(evaluations, **settings.model_dump())


@verb(human_app, name="analyze")
def human_analyze(
    folder: Annotated[Path, typer.Argument(help="Folder of `human sheets`, with completed sheets.")],
) -> Any:
    """Compute scores, tests and agreement from completed sheets."""
    from raysum.research.human.analysis import human_analyze as run

    return run(folder)
