"""Make command-line options from the fields of config sections, with their names, defaults and descriptions.

Each setting also works as ``key=value``, and decoding settings as ``--set key=value``.
"""

import inspect
import json
import os
import re
import sys
from collections.abc import Callable
from inspect import Parameter
from types import UnionType
from typing import Annotated, Any, TypeVar, get_args

import typer
from pydantic.fields import FieldInfo
from typer.models import ArgumentInfo, OptionInfo, ParameterInfo

from raysum.config.base import Section
from raysum.config.decoding import DECODE_ALIASES, DecodeConfig, ExtractConfig
from raysum.config.loading import section_of
from raysum.config.problems import nearest
from raysum.errors import UserError
from raysum.runtime.remote import is_url
from raysum.systems import extractive_names

_Function = TypeVar("_Function", bound=Callable[..., Any])
_Json = Annotated[bool, typer.Option("--json", help="Print the result as a JSON object in the last line of stdout.")]
_Pairs = Annotated[list[str] | None, typer.Argument(metavar="[KEY=VALUE]...", help="Settings, like the options below.")]
_Set = Annotated[
    list[str] | None, typer.Option("--set", metavar="KEY=VALUE", help="A decoding setting, such as beta=0.4.")
]
_NAMED = "[NAME=]"  # begins the metavar of an argument whose items may have names that the user invents
_WIDE = 100_000  # characters of a line in a pipe or file, which has no width limit
_PAIR = re.compile(r"[A-Za-z_][\w.]*=")
_DECODE = {*DecodeConfig.model_fields, *DECODE_ALIASES, *ExtractConfig.model_fields}


def verb(app: typer.Typer, name: str | None = None, panel: str | None = None) -> Callable[[_Function], _Function]:
    """Register a function as a command of ``app``, with its own name or ``name``, and print its result.

    If a parameter is a config section, the command has an option for each of its fields that is no argument, and
    accepts ``key=value`` arguments, which may also be items of a list argument.
    """

    def register(function: _Function) -> _Function:
        own = list(inspect.signature(function).parameters.values())
        sections = [each for each in own if isinstance(each.annotation, type) and issubclass(each.annotation, Section)]
        section, options = None, {"as_json": _Json}
        if sections:
            own.remove(sections[0])
            section = sections[0].annotation
            options = _options(section, own) | options
        parameters = [parameter.replace(kind=Parameter.KEYWORD_ONLY) for parameter in own]
        for key, annotation in options.items():
            default = False if key == "as_json" else None
            parameters.append(Parameter(key, Parameter.KEYWORD_ONLY, default=default, annotation=annotation))

        def command(*, as_json: bool, **values: Any) -> None:
            _check_filled(parameters, values, ArgumentInfo)
            _check_filled(own, values, OptionInfo)  # section_of checks those of sections
            result = function(**(values if section is None else _arguments(section, own, values)))
            print_result(result, as_json)
            if code := getattr(result, "exit_code", 0):
                raise typer.Exit(code)

        command.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
        command.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
        command.__name__, command.__doc__ = function.__name__, function.__doc__
        app.command(name or function.__name__, rich_help_panel=panel)(command)
        return function

    return register


def _options(section: type[Section], own: list[Parameter]) -> dict[str, Any]:
    """Return the annotation of each option of ``section`` for a command that has its ``own`` parameters."""
    fields = {key: field for key, field in section.model_fields.items() if key not in {each.name for each in own}}
    options = {} if any("list[" in str(each.annotation) for each in own) else {"pairs": _Pairs}
    options |= {key: _option(key, field) for key, field in fields.items() if key != "decode"}
    for old, new in section.ALIASES.items():
        options[old] = _option(old, section.model_fields[new], hidden=True)
    return options | ({"set_": _Set} if "decode" in fields else {})


def _option(name: str, field: FieldInfo, hidden: bool = False) -> Any:
    """Return the annotation of an option that is None, or an empty list, if it is not set."""
    kinds = get_args(field.annotation) if isinstance(field.annotation, UnionType) else (field.annotation,)
    kind: Any = next((kind for kind in kinds if kind in (bool, int, float, list[str])), str)
    # The backslash keeps rich from reading the bracket as a style.
    default = "" if field.is_required() or not field.default else f" \\[default: {field.default}]"
    flag = f"--{name.replace('_', '-')}"
    option = typer.Option(flag, help=f"{field.description or ''}{default}", show_default=False, hidden=hidden)
    return Annotated[kind | None, option]


def _arguments(section: type[Section], own: list[Parameter], values: dict[str, Any]) -> dict[str, Any]:
    """Return the arguments of a command's function: its ``own`` ones, and ``settings`` of the options and pairs.

    Raises UserError if a setting takes the position of an argument, or if a setting is wrong.
    """
    known = {*section.model_fields, *section.ALIASES}
    arguments, pairs = {each.name: values[each.name] for each in own}, list(values.get("pairs") or [])
    for parameter in own:
        argument, value = parameter.annotation.__metadata__[0], values[parameter.name]
        if isinstance(argument, ArgumentInfo) and isinstance(value, str) and _is_pair(value):
            name = argument.metavar or parameter.name.upper()
            raise UserError(f"{name} is missing: {value} is a setting, and comes after it ({argument.help or name})")
        if isinstance(value, list):
            is_named = str(argument.metavar).startswith(_NAMED)
            own_pairs = [item for item in value if _is_pair(item) and not (is_named and _is_name(item, known))]
            values[parameter.name] = arguments[parameter.name] = [item for item in value if item not in own_pairs]
            pairs += own_pairs
    if "decode" in known:
        pairs = [_with_prefix(pair, known) for pair in pairs]
    for pair in values.get("set_") or []:
        if "=" not in pair:
            raise UserError(f"--set {pair} is not KEY=VALUE; write for example --set words=44")
        pairs.append(f"decode.{pair.removeprefix('decode.')}")
    settings = {key: values[key] for key in known if values.get(key) not in (None, [])}
    return arguments | {"settings": section_of(section, settings, pairs)}


def _check_filled(parameters: list[Parameter], values: dict[str, Any], kind: type[ParameterInfo]) -> None:
    """Raises UserError if a parameter of this ``kind`` is empty, by an unset variable, and would mean this folder."""
    for parameter in parameters:
        info, value = parameter.annotation.__metadata__[0], values.get(parameter.name)
        if isinstance(info, kind) and "" in (value if isinstance(value, list) else [value]):
            flag, leave = f"--{parameter.name.replace('_', '-')}", ", or leave it out"
            name = flag if kind is OptionInfo else info.metavar or parameter.name.upper()
            how = "" if kind is ArgumentInfo or parameter.default is Parameter.empty else leave
            raise UserError(f"{name} is empty; give a value{how} ({info.help or name})")


def _with_prefix(pair: str, known: set[str]) -> str:
    """Return a pair with the prefix ``decode.`` if its key is a decoding setting and is not ``known``.

    Raises UserError with the nearest key if the first word of the key is unknown.
    """
    key = pair.partition("=")[0]
    first = key.partition(".")[0]
    if first not in known | _DECODE and (near := nearest(key, sorted(known | _DECODE))):
        raise UserError(f"unknown key {key!r} (on the command line); did you mean {near!r}?")
    return f"decode.{pair}" if first in _DECODE - known else pair


def _is_name(pair: str, known: set[str]) -> bool:
    """Return whether a pair is a name of the user with a run or system, and no setting, not even a misspelt one."""
    key, _, value = pair.partition("=")
    first = key.partition(".")[0]
    if first in known | _DECODE:
        return False
    is_model = os.path.exists(value) or is_url(value) or value in extractive_names()
    return is_model or not nearest(first, sorted(known | _DECODE))


def _is_pair(item: str) -> bool:
    return bool(_PAIR.match(item)) and not os.path.exists(item)


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
            from raysum.runtime.rendering import print_safely

            print_safely(item.render(), width=None if sys.stdout.isatty() else _WIDE)
    if problem := getattr(result, "problem", None):
        raise UserError(problem)
