"""Load configs from presets and YAML files, and apply `key=value` overrides."""

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
_RUN_KEYS = ("data", "mixed", "data_weights", "out", "run")  # not copied from a run to a new training
_MAX_BYTES = 64 << 20  # of a text file
_MAX_VALUES, _MAX_DEPTH = 100_000, 30  # values in a YAML text, with every use of an alias, and levels of nesting


def presets() -> list[str]:
    """Return the names of the presets in the package, sorted."""
    return yaml_names(_PRESETS)


def yaml_names(folder: Path) -> list[str]:
    """Return the names of the YAML files in ``folder``, sorted."""
    return sorted(file.stem for file in folder.glob("*.yaml"))


def load_config(name: str | None, overrides: Iterable[str] = (), values: dict[str, Any] | None = None) -> Config:
    """Return the config of a preset or YAML file, changed by ``values`` and then by dotted ``key=value`` overrides.

    Raises UserError that lists every problem with its file, line and the nearest valid key.
    """
    base, locations = read_values(name) if name is not None else ({}, {})
    locations |= {pair.partition("=")[0]: "an argument" for pair in pairs(values or {})}
    return section_of(Config, merge(base, values or {}), overrides, locations)


def section_of(
    root: type[AnySection],
    values: dict[str, Any],
    overrides: Iterable[str] = (),
    locations: dict[str, str] | None = None,
) -> AnySection:
    """Return ``values``, changed by ``key=value`` overrides, as a ``root`` section. Raises UserError for wrong ones.

    The arguments stay as they are.
    """
    changed, locations = merge({}, values), dict(locations or {})
    for override in overrides:
        apply_override(changed, locations, override)
    return validate(changed, locations, root)


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
    command = f"`raysum import huggingface {name} --out RUN`"
    return f"{name} is a published model, not a run; import it with {command}, and name RUN"


def read_text(path: Path) -> str:
    """Return the text of a file. Raises UserError if it cannot be read, is not UTF-8 or has over 64 MiB."""
    try:
        with path.open("rb") as file:
            content = file.read(_MAX_BYTES + 1)
        if len(content) > _MAX_BYTES:
            raise UserError(
                f"{path} is larger than {_MAX_BYTES >> 20} MiB, which no hand-written text is; name another"
            )
        return content.decode("utf-8-sig")  # keeps line ends: citations count characters
    except UnicodeDecodeError as error:
        raise UserError(f"{path} is not UTF-8 text (byte {error.start}); {converted(content, path)}") from None
    except OSError as error:
        raise UserError(f"cannot read {path}: {error.strerror}") from None


def parse_yaml(text: str, label: str) -> tuple[dict[str, Any], dict[str, str]]:
    """Return a YAML mapping, and ``"label, line n"`` for each dotted key. Raises UserError if the YAML is not valid."""
    try:
        node, values = _parse(text)
    except Exception as error:  # PyYAML has no exception class for a value that does not fit its tag
        reason = "nested too deep" if isinstance(error, RecursionError) else " ".join(str(error).split())
        raise UserError(f"{label} is not valid YAML: {reason}") from None
    if values is None:
        return {}, {}
    if not isinstance(values, dict):
        raise UserError(f"{label} must be a mapping of sections to values")
    return values, dict(_locations(node, "", label))


def _parse(text: str) -> tuple[yaml.Node | None, Any]:
    """Return the root node of a YAML text and its value. Raises ValueError for repeated keys and endless aliases."""
    loader = yaml.SafeLoader(text)
    root = loader.get_single_node()
    for number, node in enumerate(_walk(root)):
        if number == _MAX_VALUES:
            raise ValueError(f"more than {_MAX_VALUES:,} values, with every use of an alias")
        names = [str(key.value) for key, _ in node.value] if isinstance(node, yaml.MappingNode) else []
        repeated = [name for name, times in Counter(names).items() if times > 1]
        if repeated:
            raise ValueError(f"the key {repeated[0]!r} is repeated, line {node.start_mark.line + 1} and below")
    return root, loader.construct_document(root) if root else None


def _walk(node: yaml.Node | None, depth: int = 0) -> Iterator[yaml.Node]:
    """Yield ``node`` and all nodes in it, those of an alias at every use."""
    if depth > _MAX_DEPTH:
        raise ValueError(f"nested more than {_MAX_DEPTH} deep")
    if node is not None:
        yield node
    if isinstance(node, yaml.CollectionNode):
        children = chain.from_iterable(node.value) if isinstance(node, yaml.MappingNode) else node.value
        for child in children:
            yield from _walk(child, depth + 1)


def _locations(node: yaml.Node | None, prefix: str, label: str) -> Iterator[tuple[str, str]]:
    if isinstance(node, yaml.MappingNode):
        for key, value in node.value:
            dotted = f"{prefix}{key.value}"
            yield dotted, f"{label}, line {key.start_mark.line + 1}"
            yield from _locations(value, f"{dotted}.", label)


def merge(base: dict[str, Any], changes: dict[str, Any]) -> dict[str, Any]:
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
        value = _parse(text)[1] if text else ""
    except Exception:  # see parse_yaml
        value = text
    assign(values, locations, dotted, value, "on the command line")


def assign(values: dict[str, Any], locations: dict[str, str], dotted: str, value: Any, location: str) -> None:
    """Set a dotted key of ``values``; messages name the ``location`` where ``value`` was written."""
    target = values
    *parents, last = dotted.split(".")
    if len(parents) > _MAX_DEPTH:
        raise UserError(f"{dotted!r} {location}: no key is nested so deep")
    for parent in parents:
        target = target.setdefault(parent, {})
        if not isinstance(target, dict):
            raise UserError(f"{dotted!r} {location}: {parent!r} is a value, not a section")
    target[last] = value
    for replaced in [key for key in locations if key.startswith(f"{dotted}.")]:
        del locations[replaced]
    locations[dotted] = location


def pairs(values: dict[str, Any], prefix: str = "") -> Iterator[str]:
    """Yield nested ``values`` as dotted ``key=value`` overrides."""
    for key, value in values.items():
        if isinstance(value, dict) and value:
            yield from pairs(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}={json.dumps(value, default=str, ensure_ascii=False)}"
