"""Configuration from presets and YAML files, changed by `key=value` overrides."""

import json
import os
from collections import Counter
from collections.abc import Iterable, Iterator
from itertools import chain
from pathlib import Path
from typing import Any

import yaml

from raysum.config.base import Section
from raysum.config.problems import AnySection, did_you_mean, validate
from raysum.config.sections import Config
from raysum.errors import UserError
from raysum.runtime.storage import converted

_PRESETS = Path(__file__).parents[1] / "presets"
_OF_A_RUN = ("data", "mixed", "data_weights", "out", "run")  # what another training will be told anew
_LARGEST = 64 << 20  # bytes of a text
_MOST, _DEEPEST = 100_000, 30  # values in a YAML text, an alias counted each time, and how deep they are nested


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
    base, places = read_values(name) if name is not None else ({}, {})
    places |= {pair.partition("=")[0]: "an argument" for pair in pairs(values or {})}
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
    """Values of a preset or file, with what it extends below it, and the place of each dotted key; those of a run are
    for a training that begins with its weights."""
    config = os.path.join(name, "config.yaml")
    if name not in presets() and os.path.isfile(config):
        values, places = parse_yaml(read_text(Path(config)), config)
        own = {key: value for key, value in values.items() if key not in _OF_A_RUN}
        return merge(own, {"train": {"start": os.path.abspath(name)}}), places
    values, places = read_yaml(name, _PRESETS, "preset")
    given = values.pop("extends", None)
    if given is None:
        return values, places
    base = beside(given, name, presets()) if given and isinstance(given, str) else name
    within = (*within, name if name in presets() else os.path.abspath(name))
    if base in (name, *within):
        raise UserError(f"{name}: extends: {given} must name a preset or a file that does not extend this one")
    base_values, base_places = read_values(base, within)
    if isinstance(model := values.get("model"), dict) and "system" in model:
        base_values.pop("model", None)  # another system has other keys
    return merge(base_values, values), base_places | places


def beside(given: str, file: str, names: list[str]) -> str:
    """What a YAML ``file`` calls ``given``: one of ``names``, or a file, whose path is told from the folder of it."""
    return given if given in names else os.path.abspath(os.path.join(os.path.dirname(file), given))


def read_yaml(name: str, folder: Path, noun: str) -> tuple[dict[str, Any], dict[str, str]]:
    """Values and places, as of :func:`parse_yaml`, of what is called ``name`` in ``folder``, or of that file.

    Raises UserError with the names there are; ``noun`` says what they name.
    """
    names = yaml_names(folder)
    if name in names:
        return parse_yaml(read_text(folder / f"{name}.yaml"), f"{noun} {name}")
    if os.path.isfile(name):
        return parse_yaml(read_text(Path(name)), name)
    told = f"no {noun} or file {name!r}; {did_you_mean(name, names)}the {noun}s are {', '.join(names)}"
    raise UserError(of_published(name) or told)


def of_published(name: str | os.PathLike[str]) -> str | None:
    """What to tell where a run is wanted and ``name`` is the folder of a published model."""
    if not os.path.isfile(os.path.join(name, "config.json")):
        return None
    command = f"`raysum import huggingface {name} --out RUN`"
    return f"{name} is a published model, no run; make it one by {command}, and name RUN"


def read_text(path: Path) -> str:
    """Raises UserError where a file that the user named is not there, or not in UTF-8."""
    try:
        with path.open("rb") as file:
            content = file.read(_LARGEST + 1)
        if len(content) > _LARGEST:
            raise UserError(
                f"{path} is larger than {_LARGEST >> 20} MiB, and no text that a person wrote; name another"
            )
        return content.decode("utf-8-sig")  # line ends as they are: citations count characters
    except UnicodeDecodeError as error:
        raise UserError(f"{path} is not UTF-8 text (byte {error.start}); {converted(content, path)}") from None
    except OSError as error:
        raise UserError(f"cannot read {path}: {error.strerror}") from None


def parse_yaml(text: str, label: str) -> tuple[dict[str, Any], dict[str, str]]:
    """A YAML mapping and, for each dotted key, ``"label, line n"``. Raises UserError where the YAML is broken."""
    try:
        node, values = _parse(text)
    except Exception as error:  # PyYAML has no class of its own for a value that does not fit its tag
        reason = "nested too deep" if isinstance(error, RecursionError) else " ".join(str(error).split())
        raise UserError(f"{label} is not valid YAML: {reason}") from None
    if values is None:
        return {}, {}
    if not isinstance(values, dict):
        raise UserError(f"{label} must be a mapping of sections to values")
    return values, dict(_places(node, "", label))


def _parse(text: str) -> tuple[yaml.Node | None, Any]:
    """The root of a YAML text and its value. Raises ValueError where aliases make it endless, or a key stands twice."""
    loader = yaml.SafeLoader(text)
    root = loader.get_single_node()
    for number, node in enumerate(_below(root)):
        if number == _MOST:
            raise ValueError(f"more than {_MOST:,} values, aliases counted each time")
        names = [str(key.value) for key, _ in node.value] if isinstance(node, yaml.MappingNode) else []
        twice = [name for name, times in Counter(names).items() if times > 1]
        if twice:
            raise ValueError(f"the key {twice[0]!r} stands twice, line {node.start_mark.line + 1} and below")
    return root, loader.construct_document(root) if root else None


def _below(node: yaml.Node | None, depth: int = 0) -> Iterator[yaml.Node]:
    """``node`` and all that is in it; what an alias names comes each time."""
    if depth > _DEEPEST:
        raise ValueError(f"nested more than {_DEEPEST} deep")
    if node is not None:
        yield node
    if isinstance(node, yaml.CollectionNode):
        inside = chain.from_iterable(node.value) if isinstance(node, yaml.MappingNode) else node.value
        for child in inside:
            yield from _below(child, depth + 1)


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
        raise UserError(f"{override!r} is not key=value; put the key and = before the value")
    try:
        value = _parse(text)[1] if text else ""
    except Exception:  # see parse_yaml
        value = text
    assign(values, places, dotted, value, "on the command line")


def assign(values: dict[str, Any], places: dict[str, str], dotted: str, value: Any, place: str) -> None:
    """Put ``value`` at a dotted key of ``values``; ``place`` says in messages where it was written."""
    target = values
    *parents, last = dotted.split(".")
    if len(parents) > _DEEPEST:
        raise UserError(f"{dotted!r} {place}: no key is nested so deep")
    for parent in parents:
        target = target.setdefault(parent, {})
        if not isinstance(target, dict):
            raise UserError(f"{dotted!r} {place}: {parent!r} is a value, not a section")
    target[last] = value
    for replaced in [key for key in places if key.startswith(f"{dotted}.")]:
        del places[replaced]
    places[dotted] = place


def pairs(values: dict[str, Any], prefix: str = "") -> Iterator[str]:
    """Nested ``values`` as dotted ``key=value`` overrides."""
    for key, value in values.items():
        if isinstance(value, dict) and value:
            yield from pairs(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}={json.dumps(value, default=str, ensure_ascii=False)}"
