"""Configuration from presets and YAML files, changed by `key=value` overrides."""

import json
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import yaml

from raysum.config.problems import AnySection, did_you_mean, validate
from raysum.config.sections import Config, Section
from raysum.errors import UserError

_PRESETS = Path(__file__).parents[1] / "presets"


def presets() -> list[str]:
    """Names of the presets in the package, sorted."""
    return yaml_names(_PRESETS)


def yaml_names(folder: Path) -> list[str]:
    """Names of the YAML files in ``folder``, sorted."""
    return sorted(file.stem for file in folder.glob("*.yaml"))


def load_config(name: str | None, overrides: Iterable[str] = (), values: dict[str, Any] | None = None) -> Config:
    """The config of a preset or YAML file, changed by ``values`` and then by dotted ``key=value`` overrides.

    Raises UserError that lists every problem with its file, line and the nearest valid key.
    """
    base, places = read_values(name) if name else ({}, {})
    return section_of(Config, merge(base, values or {}), overrides, places)


def section_of(
    root: type[AnySection],
    values: dict[str, Any],
    overrides: Iterable[str] = (),
    places: dict[str, str] | None = None,
) -> AnySection:
    """``values`` changed by ``key=value`` overrides as a ``root`` section. Raises UserError as :func:`load_config`."""
    changed, places = dict(values), places or {}
    for override in overrides:
        apply_override(changed, places, override)
    return validate(changed, places, root)


def dump(config: Section) -> str:
    """The fully resolved config as YAML."""
    return yaml.safe_dump(config.model_dump(mode="json"), sort_keys=False)


def read_values(name: str, within: tuple[str, ...] = ()) -> tuple[dict[str, Any], dict[str, str]]:
    """Values of a preset or file, with what it extends below it, and the place of each dotted key."""
    values, places = read_yaml(name, _PRESETS, "preset")
    base = values.pop("extends", None)
    if base is None:
        return values, places
    if not isinstance(base, str) or base in (name, *within):
        raise UserError(f"{name}: extends: {base} must name a preset or a file that does not extend this one")
    base_values, base_places = read_values(base, (name, *within))
    if "system" in (values.get("model") or {}):
        del base_values["model"]  # another system has other keys
    return merge(base_values, values), base_places | places


def read_yaml(name: str, folder: Path, noun: str) -> tuple[dict[str, Any], dict[str, str]]:
    """Values and places, as of :func:`parse_yaml`, of what is called ``name`` in ``folder``, or of that file.

    Raises UserError with the names there are; ``noun`` says what they name.
    """
    names = yaml_names(folder)
    if name in names:
        return parse_yaml(read_text(folder / f"{name}.yaml"), f"{noun} {name}")
    if Path(name).is_file():
        return parse_yaml(read_text(Path(name)), name)
    raise UserError(f"no {noun} or file {name!r}; {did_you_mean(name, names)}the {noun}s are {', '.join(names)}")


def read_text(path: Path) -> str:
    """Raises UserError where a file that the user named is not there, or not in UTF-8."""
    try:
        return path.read_text(encoding="utf-8-sig")
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
        own = merged.get(key)
        merged[key] = merge(own if isinstance(own, dict) else {}, value) if isinstance(value, dict) else value
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


def pairs(values: dict[str, Any], prefix: str = "") -> Iterator[str]:
    """Nested ``values`` as dotted ``key=value`` overrides."""
    for key, value in values.items():
        if isinstance(value, dict) and value:
            yield from pairs(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}={json.dumps(value, default=str, ensure_ascii=False)}"
