"""Make command-line options from the fields of config sections, with their names, defaults and descriptions.

Each setting also works as ``key=value``, and decoding settings as ``--set key=value``.
"""

import inspect
import json
import os
import re
import sys
from collections.abc import Callable
from types import UnionType
from typing import Annotated, Any, get_args

import typer
from pydantic.fields import FieldInfo
from typer.models import ArgumentInfo

from raysum.config.base import Section
from raysum.config.decoding import DECODE_ALIASES, DecodeConfig, ExtractConfig
from raysum.config.loading import section_of
from raysum.config.problems import nearest
from raysum.errors import UserError

_Json = Annotated[bool, typer.Option("--json", help="Print the result as a JSON object in the last line of stdout.")]
Overrides = Annotated[
    list[str] | None, typer.Argument(metavar="[KEY=VALUE]...", help="Config keys, such as train.steps=2000.")
]
_Pairs = Annotated[list[str] | None, typer.Argument(metavar="[KEY=VALUE]...", help="Settings, like the options below.")]
_Set = Annotated[
    list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="A decoding setting, such as beta=0.4.")
]

_WIDE = 100_000  # characters of a line in a pipe or file, which has no width limit
_PAIR = re.compile(r"[A-Za-z_][\w.]*=")
_DECODE = {*DecodeConfig.model_fields, *DECODE_ALIASES, *ExtractConfig.model_fields}


def completed_by(names: Callable[[], list[str]]) -> Callable[[str], list[str]]:
    """Return a completion of an argument for the shell, which completes files where no name fits."""

    def complete(incomplete: str) -> list[str]:
        return [name for name in names() if name.startswith(incomplete)]

    return complete


def verb(
    app: typer.Typer, section: type[Section] | None = None, name: str | None = None
) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Register a function as a command of ``app``, with its own name or ``name``, and print its result.

    With a ``section``, the last parameter ``settings`` becomes an option for each field without an argument, and
    ``key=value`` arguments, which may also be items of a list argument.
    """

    def register(function: Callable[..., Any]) -> Callable[..., Any]:
        parameters = list(inspect.signature(function).parameters.values())[: None if section is None else -1]
        own, keyword = [parameter.name for parameter in parameters], inspect.Parameter.KEYWORD_ONLY
        items = next((parameter.name for parameter in parameters if "list[" in str(parameter.annotation)), None)
        if section is not None:
            known = section.model_fields
            fields = {key: field for key, field in known.items() if key not in own}
            options: dict[str, Any] = {} if items else {"pairs": _Pairs}
            options |= {key: _option(key, field) for key, field in fields.items() if key != "decode"}
            options |= {old: _option(old, known[new], hidden=True) for old, new in section.ALIASES.items()}
            options |= {"set_": _Set} if "decode" in fields else {}
            parameters += [inspect.Parameter(key, keyword, default=None, annotation=options[key]) for key in options]
        parameters.append(inspect.Parameter("as_json", keyword, default=False, annotation=_Json))

        def command(*, as_json: bool, **values: Any) -> None:
            if section is not None:
                _check_arguments(parameters, values)
                pairs = values.get("pairs") or []
                if items is not None:
                    pairs = [item for item in values[items] or [] if _is_pair(item)]
                    values[items] = [item for item in values[items] or [] if not _is_pair(item)]
                if "decode" in known:
                    _check_keys(pairs, {*known, *section.ALIASES, *_DECODE})
                for pair in values.get("set_") or []:
                    if "=" not in pair:
                        raise UserError(f"--set {pair} is not KEY=VALUE; write for example --set words=44")
                    pairs.append(f"decode.{pair.removeprefix('decode.')}")
                decoding = _DECODE.difference(known) if "decode" in known else ()
                pairs = [f"decode.{pair}" if re.split("[.=]", pair)[0] in decoding else pair for pair in pairs]
                settings = {key: values[key] for key in (*known, *section.ALIASES) if values.get(key) not in (None, [])}
                values = {key: values[key] for key in own} | {"settings": section_of(section, settings, pairs)}
            result = function(**values)
            print_result(result, as_json)
            if code := getattr(result, "exit_code", 0):
                raise typer.Exit(code)

        signature = inspect.Signature([parameter.replace(kind=keyword) for parameter in parameters])
        command.__signature__ = signature  # type: ignore[attr-defined]
        command.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
        command.__name__, command.__doc__ = function.__name__, function.__doc__
        app.command(name or function.__name__)(command)
        return function

    return register


def _check_arguments(parameters: list[inspect.Parameter], values: dict[str, Any]) -> None:
    """Raises UserError if a setting takes the position of an argument."""
    for parameter in parameters:
        argument = next(iter(getattr(parameter.annotation, "__metadata__", ())), None)
        value = values.get(parameter.name)
        if isinstance(argument, ArgumentInfo) and isinstance(value, str) and _is_pair(value):
            name = argument.metavar or parameter.name.upper()
            raise UserError(f"{name} is missing: {value} is a setting, and comes after it ({argument.help or name})")


def _check_keys(pairs: list[str], known: set[str]) -> None:
    """Raises UserError with the nearest ``known`` key if the first word of a key is unknown."""
    for key in (pair.partition("=")[0] for pair in pairs):
        if key.partition(".")[0] not in known and (near := nearest(key, sorted(known))):
            raise UserError(f"unknown key {key!r} (on the command line); did you mean {near!r}?")


def print_result(result: Any, as_json: bool) -> None:
    """Print a result on stdout: ``render()``, or with ``as_json`` a line of JSON for each ``to_dict()``.

    Raises UserError if the result has a ``problem``.
    """
    for item in result if isinstance(result, list) and as_json else [result]:
        if item is None or item == []:
            continue
        if as_json:
            print(json.dumps(item.to_dict(), ensure_ascii=not sys.stdout.encoding.lower().startswith("utf")))
        else:
            from rich.console import Console

            width = None if sys.stdout.isatty() else _WIDE
            Console(soft_wrap=True, width=width).print(item.render(), markup=False, highlight=False)
    if problem := getattr(result, "problem", None):
        raise UserError(problem)


def _is_pair(item: str) -> bool:
    return bool(_PAIR.match(item)) and not os.path.exists(item)


def _option(name: str, field: FieldInfo, hidden: bool = False) -> Any:
    """Return the annotation of an option that is None, or an empty list, if it is not set."""
    kinds = get_args(field.annotation) if isinstance(field.annotation, UnionType) else (field.annotation,)
    kind: Any = next((kind for kind in kinds if kind in (bool, int, float, list[str])), str)
    # The backslash keeps rich from reading the bracket as a style.
    default = "" if field.is_required() or not field.default else f" \\[default: {field.default}]"
    flag = f"--{name.replace('_', '-')}"
    option = typer.Option(flag, help=f"{field.description or ''}{default}", show_default=False, hidden=hidden)
    return Annotated[kind | None, option]
