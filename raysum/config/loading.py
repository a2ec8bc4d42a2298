"""Load configs from presets and YAML files, and apply `key=value` overrides."""

import json
import os
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

import yaml

from raysum.config.base import Section
from raysum.config.problems import AnySection, did_you_mean, validate
from raysum.config.sections import Config
from raysum.errors import UserError
from raysum.runtime.storage import converted

_PRESETS = Path(__file__).parents[1] / "presets"
_RUN_KEYS = ("data", "mixed", "data_weights", "out", "run")  # not copied from a run to a new training
_MAX_BYTES = 64 << 20  # of a text file
_MAX_VALUES, _MAX_DEPTH = 100_000, 30  # values in a YAML text, with every use of an alias, and levels of nesting
_NONE: Mapping[str, Any] = MappingProxyType({})


def presets() -> list[str]:
    """Return the names of the presets in the package, sorted."""
    return yaml_names(_PRESETS)


def yaml_names(folder: Path) -> list[str]:
    """Return the names of the YAML files in ``folder``, sorted."""
    return sorted(file.stem for file in folder.glob("*.yaml"))


def load_config(name: str | None, overrides: Iterable[str] = (), values: Mapping[str, Any] = _NONE) -> Config:
    """Return the config of a preset or YAML file, changed by ``values`` and then by dotted ``key=value`` overrides.

    Raises UserError that lists every problem with its file, line and the nearest valid key.
    """
    base, locations = read_values(name) if name is not None else ({}, {})
    locations |= {pair.partition("=")[0]: "an argument" for pair in pairs(values)}
    return section_of(Config, merge(base, values), overrides, locations)


def section_of(
    root: type[AnySection],
    values: Mapping[str, Any],
    overrides: Iterable[str] = (),
    locations: Mapping[str, str] = _NONE,
) -> AnySection:
    """Return ``values``, changed by ``key=value`` overrides, as a ``root`` section. The arguments stay as they are."""
    changed, places = merge({}, values), dict(locations)
    for override in overrides:
        apply_override(changed, places, override)
    return validate(changed, places, root)


def dump(config: Section) -> str:
    """Return the fully resolved config as YAML."""
    return yaml.safe_dump(config.model_dump(mode="json"), sort_keys=False)


def read_values(name: str, within: tuple[str, ...] = ()) -> tuple[dict[str, Any], dict[str, str]]:
    """Return the values of a preset, file or run, and the file and line of each dotted key.

    A preset or file includes the values that it extends. The values of a run are for a training that starts from it.
    """
    config = os.path.join(name, "config.yaml")
    if name not in presets() and os.path.isfile(config):
        values, locations = parse_yaml(read_text(Path(config)), config)
        own = {key: value for key, value in Config.with_current_names(values).items() if key not in _RUN_KEYS}
        return merge(own, {"train": {"init_from": os.path.abspath(name)}}), locations
    values, locations = read_yaml(name, _PRESETS, "preset")
    extended = values.pop("extends", None)
    if extended is None:
        return values, locations
    base = beside(extended, name, presets()) if extended and isinstance(extended, str) else name
    within = (*within, name if name in presets() else os.path.abspath(name))
    if base in (name, *within):
        raise UserError(f"{name}: extends: {extended} must name a preset or a file that does not extend this one")
    base_values, base_locations = read_values(base, within)
    if isinstance(model := values.get("model"), dict) and "system" in model:
        base_values.pop("model", None)  # another system has other keys
    return merge(base_values, values), base_locations | locations


def beside(reference: str, file: str, names: list[str]) -> str:
    """Return a ``reference`` of a YAML ``file`` if it is in ``names``, or its absolute path from the file's folder."""
    return reference if reference in names else os.path.abspath(os.path.join(os.path.dirname(file), reference))


def read_yaml(name: str, folder: Path, noun: str) -> tuple[dict[str, Any], dict[str, str]]:
    """Return values and locations, as :func:`parse_yaml` does, of the file ``name`` or ``folder/name.yaml``.

    Raises UserError with the names in ``folder``; ``noun`` is their kind, such as preset.
    """
    names = yaml_names(folder)
    if name in names:
        return parse_yaml(read_text(folder / f"{name}.yaml"), f"{noun} {name}")
    if os.path.isfile(name):
        return parse_yaml(read_text(Path(name)), name)
    message = f"no {noun} or file {name!r}; {did_you_mean(name, names)}the {noun}s are {', '.join(names)}"
    raise UserError(published_message(name) or message)


def published_message(name: str | os.PathLike[str]) -> str | None:
    """Return the message for a published model in place of a run, or None if ``name`` is not the folder of one."""
    if not os.path.isfile(os.path.join(name, "config.json")):
        return None
    return f"{name} is a published model, not a run; import it with `raysum import huggingface {name} --out RUN`"


def read_text(path: Path) -> str:
    """Return the text of a file. Raises UserError if it cannot be read, is not UTF-8 or has over 64 MiB."""
    try:
        with path.open("rb") as file:
            content = file.read(_MAX_BYTES + 1)
        if len(content) > _MAX_BYTES:
            raise UserError(f"{path} is larger than {_MAX_BYTES >> 20} MiB; name another file")
        return content.decode("utf-8-sig")  # keeps line ends: citations count characters
    except UnicodeDecodeError as error:
        raise UserError(f"{path} is not UTF-8 text (byte {error.start}); {converted(content, path)}") from None
    except OSError as error:
        raise UserError(f"cannot read {path}: {error.strerror}") from None


def parse_yaml(text: str, label: str) -> tuple[dict[str, Any], dict[str, str]]:
    """Return a YAML mapping, and ``"label, line n"`` for each dotted key. Raises UserError if the YAML is not valid."""
    try:
        values, lines = _parse(text)
    except Exception as error:  # PyYAML has no exception class for a value that does not fit its tag
        reason = "nested too deep" if isinstance(error, RecursionError) else " ".join(str(error).split())
        raise UserError(f"{label} is not valid YAML: {reason}") from None
    if values is None:
        raise UserError(f"{label} is empty: it must be a mapping of sections to values; put back a copy, or remove it")
    if not isinstance(values, dict):
        raise UserError(f"{label} must be a mapping of sections to values")
    return values, {key: f"{label}, line {line}" for key, line in lines.items()}


def _parse(text: str) -> tuple[Any, dict[str, int]]:
    """Return the value of a YAML text and the line of each dotted key. Raises ValueError if it is too large."""
    loader, lines = yaml.SafeLoader(text), dict[str, int]()
    root = loader.get_single_node()
    for number, (key, line) in enumerate(_keys(root)):
        if number == _MAX_VALUES:
            raise ValueError(f"more than {_MAX_VALUES:,} values, with every use of an alias")
        lines[key] = line
    return loader.construct_document(root) if root else None, lines


def _keys(node: yaml.Node | None, prefix: str = "", depth: int = 0) -> Iterator[tuple[str, int]]:
    """Yield the dotted key and the line of each value in ``node``, those of an alias at every use."""
    if depth > _MAX_DEPTH:
        raise ValueError(f"nested more than {_MAX_DEPTH} deep")
    inside: list[tuple[Any, yaml.Node, yaml.Node]] = []
    if isinstance(node, yaml.MappingNode):
        inside = [(key.value, key, value) for key, value in node.value]
    elif isinstance(node, yaml.SequenceNode):
        inside = [(number, item, item) for number, item in enumerate(node.value)]
    seen = set[str]()
    for name, place, value in inside:
        key, line = f"{prefix}{name}", place.start_mark.line + 1
        if key in seen:
            raise ValueError(f"the key {name!r} is repeated, line {line}")
        seen.add(key)
        yield key, line
        yield from _keys(value, f"{key}.", depth + 1)


def merge(base: Mapping[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    """Return ``base`` with ``changes`` applied, mapping by mapping."""
    merged = dict(base)
    for key, value in changes.items():
        own = merged.get(key)
        merged[key] = merge(own if isinstance(own, dict) else {}, value) if isinstance(value, dict) else value
    return merged


def apply_override(values: dict[str, Any], locations: dict[str, str], override: str) -> None:
    """Change ``values`` by one ``key=value`` of the command line. Raises UserError if it is no such pair."""
    dotted, equals, text = override.partition("=")
    if not equals or not dotted:
        raise UserError(f"{override!r} is not key=value; put the key and = before the value")
    try:
        value = _parse(text)[0] if text else ""
    except Exception:  # see parse_yaml
        value = text
    assign(values, locations, dotted, value, "on the command line")


def assign(values: dict[str, Any], locations: dict[str, str], dotted: str, value: Any, location: str) -> None:
    """Set a dotted key of ``values``; messages name the ``location`` where ``value`` was written."""
    *parents, last = dotted.split(".")
    if len(parents) > _MAX_DEPTH:
        raise UserError(f"{dotted!r} {location}: no key is nested so deep")
    for parent in parents:
        values = values.setdefault(parent, {})
        if not isinstance(values, dict):
            raise UserError(f"{dotted!r} {location}: {parent!r} is a value, not a section")
    values[last] = value
    for replaced in [key for key in locations if key.startswith(f"{dotted}.")]:
        del locations[replaced]
    locations[dotted] = location


def pairs(values: Mapping[str, Any]) -> Iterator[str]:
    """Yield nested ``values`` as dotted ``key=value`` overrides."""
    for key, value in leaves(values):
        yield f"{key}={json.dumps(value, default=str, ensure_ascii=False)}"


def leaves(values: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Yield nested ``values`` by dotted keys."""
    for key, value in values.items():
        if isinstance(value, dict) and value:
            yield from leaves(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value
