"""What the verbs of the command line share: options, settings and printing."""

import json
from typing import Annotated, Any

import typer

from raysum.errors import UserError

Json = Annotated[bool, typer.Option("--json", help="Print the result as one JSON object, the last line of stdout.")]
Overrides = Annotated[
    list[str] | None, typer.Argument(metavar="[KEY=VALUE]...", help="Config keys, such as train.steps=2000.")
]
Decode = Annotated[list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="A decode key, such as beta=0.4.")]
Checkpoint = Annotated[str, typer.Option(help="best, latest, or a step.")]
Dtype = Annotated[str, typer.Option(help="What matrices are multiplied in: fp32, bf16, or int8 (on CPUs).")]


def settings_of(pairs: list[str] | None) -> dict[str, Any]:
    """`--set key=value` pairs as decode settings."""
    import yaml

    settings = {}
    for pair in pairs or []:
        key, equals, text = pair.partition("=")
        if not equals:
            raise UserError(f"{pair!r} is not KEY=VALUE; write for example --set num_beams=8")
        settings[key.removeprefix("decode.")] = yaml.safe_load(text)
    return settings


def print_result(result: Any, as_json: bool) -> None:
    """A result on stdout: one line of JSON, or for people."""
    if as_json:
        print(json.dumps(result, ensure_ascii=False))
        return
    from rich.console import Console

    console = Console(soft_wrap=True)
    if isinstance(result, dict):
        for key, value in result.items():
            console.print(f"{key}: {value}", markup=False, highlight=False)
    else:
        console.print(result, markup=False, highlight=False)
