"""Configuration: presets and YAML files, `key=value` overrides, errors that name the nearest key."""

from collections.abc import Iterator
from difflib import get_close_matches
from importlib import resources
from pathlib import Path
from typing import Any, get_args

import yaml
from pydantic import BaseModel, ValidationError

from raysum.config.sections import Config, Section
from raysum.errors import UserError
from raysum.models.specs import SYSTEMS, Seq2SeqSpec


def presets() -> list[str]:
    """Names of the presets in the package, sorted."""
    folder = resources.files("raysum") / "presets"
    return sorted(item.name.removesuffix(".yaml") for item in folder.iterdir() if item.name.endswith(".yaml"))


def load_config(name: str | None, overrides: list[str] | None = None) -> Config:
    """The config of a preset or YAML file, changed by dotted ``key=value`` overrides.

    Raises UserError that lists every problem with its file, line and the nearest valid key.
    """
    values, places = read_values(name) if name else ({}, {})
    for override in overrides or []:
        apply_override(values, places, override)
    return validate(values, places)


def validate(values: dict[str, Any], places: dict[str, str] | None = None, root: type[Section] = Config) -> Any:
    """``values`` as a ``root`` section; ``places`` says where each dotted key was written, for the messages."""
    try:
        return root.model_validate(values)
    except ValidationError as error:
        problems = [_explain(problem, places or {}, root) for problem in error.errors()]
        raise UserError("\n".join(problems)) from None


def dump(config: Section) -> str:
    """The fully resolved config as YAML."""
    return yaml.safe_dump(config.model_dump(mode="json"), sort_keys=False)


def keys(section: type[BaseModel] = Config, prefix: str = "") -> Iterator[str]:
    """Every valid dotted key."""
    for name, field in section.model_fields.items():
        parts = _sections(field.annotation)
        yield prefix + name
        for part in parts:
            yield from keys(part, f"{prefix}{name}.")


def _sections(annotation: Any) -> list[type[BaseModel]]:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return [annotation]
    return [part for argument in get_args(annotation) for part in _sections(argument)]


def read_values(name: str) -> tuple[dict[str, Any], dict[str, str]]:
    """Values of a preset or file, with what it extends below it, and the place of each dotted key."""
    if name in presets():
        label, text = f"preset {name}", (resources.files("raysum") / "presets" / f"{name}.yaml").read_text()
    elif Path(name).is_file():
        label, text = name, _decode(Path(name))
    else:
        near = get_close_matches(name, presets(), 1)
        hint = f"did you mean {near[0]!r}? " if near else ""
        raise UserError(f"no preset or file {name!r}; {hint}the presets are {', '.join(presets())}")
    values, places = parse_yaml(text, label)
    base = values.pop("extends", None)
    if base is None:
        return values, places
    base_values, base_places = read_values(base)
    if "system" in (values.get("model") or {}):
        del base_values["model"]  # another system has other keys
    return merge(base_values, values), base_places | places


def _decode(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise UserError(f"{path} is not UTF-8 text (byte {error.start}); save it as UTF-8") from None
    except OSError as error:
        raise UserError(f"cannot read {path}: {error.strerror}") from None


def parse_yaml(text: str, label: str) -> tuple[dict[str, Any], dict[str, str]]:
    """A YAML mapping and, for each dotted key, ``"label, line n"``. Raises UserError where the YAML is broken."""
    try:
        node = yaml.compose(text, Loader=yaml.SafeLoader)
        values = yaml.safe_load(text)
    except yaml.YAMLError as error:
        raise UserError(f"{label} is not valid YAML: {' '.join(str(error).split())}") from None
    if values is None:
        return {}, {}
    if not isinstance(values, dict):
        raise UserError(f"{label} must be a mapping of sections to values")
    return values, dict(_places(node, "", label))


def _places(node: yaml.Node | None, prefix: str, label: str) -> Iterator[tuple[str, str]]:
    if isinstance(node, yaml.MappingNode):
        for key, value in node.value:
            dotted = f"{prefix}{key.value}"
            yield dotted, f"{label}, line {key.start_mark.line + 1}"
            yield from _places(value, f"{dotted}.", label)


def merge(base: dict[str, Any], changes: dict[str, Any]) -> dict[str, Any]:
    """``base`` with ``changes`` over it, mapping by mapping."""
    merged = dict(base)
    for key, value in changes.items():
        both = isinstance(value, dict) and isinstance(merged.get(key), dict)
        merged[key] = merge(merged[key], value) if both else value
    return merged


def apply_override(values: dict[str, Any], places: dict[str, str], override: str) -> None:
    """Change ``values`` by one ``key=value`` of the command line. Raises UserError where it is no such pair."""
    dotted, equals, text = override.partition("=")
    if not equals or not dotted:
        raise UserError(f"{override!r} is not key=value; write for example train.steps=2000")
    try:
        value = yaml.safe_load(text) if text else ""
    except yaml.YAMLError:
        value = text
    assign(values, places, dotted, value, "on the command line")


def assign(values: dict[str, Any], places: dict[str, str], dotted: str, value: Any, place: str) -> None:
    """Put ``value`` at a dotted key of ``values``; ``place`` says in messages where it was written."""
    target = values
    *parents, last = dotted.split(".")
    for parent in parents:
        target = target.setdefault(parent, {})
        if not isinstance(target, dict):
            raise UserError(f"{dotted!r} {place}: {parent!r} is a value, not a section")
    target[last] = value
    places[dotted] = place


def _explain(problem: Any, places: dict[str, str], root: type[Section]) -> str:
    """One line for one problem that pydantic found."""
    dotted = ".".join(str(part) for part in problem["loc"] if part not in SYSTEMS)
    place = next((places[key] for key in _ancestors(dotted) if key in places), "")
    where = f" ({place})" if place else ""
    if problem["type"] == "extra_forbidden":
        spec = next((SYSTEMS[part] for part in problem["loc"] if part in SYSTEMS), Seq2SeqSpec)
        other = {f"model.{name}" for one in SYSTEMS.values() for name in set(one.model_fields) - set(spec.model_fields)}
        near = _nearest(dotted, [key for key in keys(root) if key not in other])
        return f"unknown key {dotted!r}{where}" + (f"; did you mean {near!r}?" if near else "")
    message = problem["msg"].removeprefix("Value error, ")
    given = "" if isinstance(problem["input"], dict | BaseModel) else f" (got {problem['input']!r})"
    subject = f"{dotted}: " if dotted else ""
    return f"{subject}{message}{given}{where}"


def _ancestors(dotted: str) -> Iterator[str]:
    while dotted:
        yield dotted
        dotted = dotted.rpartition(".")[0]


def _nearest(dotted: str, valid: list[str]) -> str | None:
    """The valid key most like ``dotted``: the same last word in another section first, then close spellings."""
    last = dotted.rpartition(".")[2]
    same = [key for key in valid if key.rpartition(".")[2] == last]
    if same:
        return same[0]
    close = get_close_matches(dotted, valid, 1, cutoff=0.75)
    if close:
        return close[0]
    words = get_close_matches(last, [key.rpartition(".")[2] for key in valid], 1, cutoff=0.6)
    return next((key for key in valid if key.rpartition(".")[2] == words[0]), None) if words else None
