"""Verbs that look into configurations."""

import json
from typing import Annotated, Any

import typer

from raysum.cli.options import Overrides, verb

config_app = typer.Typer(help="Look into configurations.", no_args_is_help=True)


@verb(config_app, name="show")
def config_show(preset: Annotated[str, typer.Argument(metavar="PRESET|FILE")], overrides: Overrides = None) -> Any:
    """The fully resolved config of a preset or file, and its number of parameters."""
    from raysum.config.loading import load_config
    from raysum.config.sizes import SizedConfig
    from raysum.train.optim import check_engine_config

    config = load_config(preset, overrides or [])
    check_engine_config(config)
    return SizedConfig(preset, config)


@config_app.command("list")
def config_list() -> None:
    """Names of the presets."""
    from raysum.config.loading import presets

    print("\n".join(presets()))


@config_app.command("schema")
def config_schema() -> None:
    """JSON schema of the config, for editors."""
    from raysum.config.sections import Config

    print(json.dumps(Config.model_json_schema(), indent=2))
