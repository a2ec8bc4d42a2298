"""Validate values as config sections. Messages name the location and the nearest valid key."""

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from difflib import get_close_matches
from itertools import accumulate
from os import PathLike, fspath
from typing import Any, TypeVar, get_args

from pydantic import BaseModel, ValidationError

from raysum import systems
from raysum.config.base import Section
from raysum.config.sections import Config
from raysum.errors import UserError

_SHOWN = 200  # characters of a wrong value

AnySection = TypeVar("AnySection", bound=Section)


def validate(values: dict[str, Any], locations: dict[str, str] | None, root: type[AnySection]) -> AnySection:
    """Return ``values`` as a ``root`` section. ``locations`` has the file and line of each dotted key, for messages.

    Raises UserError with a line for each problem.
    """
    values = {key: fspath(value) if isinstance(value, PathLike) else value for key, value in values.items()}
    try:
        return root.model_validate(values)
    except ValidationError as error:
        spec = _spec_of(values.get("model", {}))
        raise UserError("\n".join(_explain(each, locations or {}, root, spec) for each in error.errors())) from None


def changed(section: AnySection, changes: Mapping[str, Any]) -> AnySection:
    """Return ``section`` with ``changes``. Raises UserError with a line for each problem."""
    return validate(section.changed(changes), None, type(section))


def keys(section: type[BaseModel] = Config, spec: type[systems.Spec] | None = None, prefix: str = "") -> Iterator[str]:
    """Yield every valid dotted key; keys of ``model`` are those of ``spec`` (None: of all systems)."""
    for name, field in section.model_fields.items():
        yield prefix + name
        for part in _sections(field.annotation, spec):
            yield from keys(part, spec, f"{prefix}{name}.")


def did_you_mean(word: str, valid: Iterable[str]) -> str:
    """Return ``did you mean 'nearest'? `` for a message, or an empty string if no valid word is near."""
    near = get_close_matches(word, list(valid), 1)
    return f"did you mean {near[0]!r}? " if near else ""


def _sections(annotation: Any, spec: type[systems.Spec] | None) -> list[type[BaseModel]]:
    if annotation is systems.Spec:
        return [spec] if spec else list(systems.spec_classes())
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return [annotation]
    return [part for argument in get_args(annotation) for part in _sections(argument, spec)]


def _spec_of(model: Any) -> type[systems.Spec] | None:
    """Return the spec class of the section ``model``, or None if its system is unknown."""
    try:
        return (
            type(model) if isinstance(model, systems.Spec) else systems.spec_class(model.get("system", systems.DEFAULT))
        )
    except (AttributeError, ValueError):
        return None


def _explain(problem: Any, locations: dict[str, str], root: type[Section], spec: type[systems.Spec] | None) -> str:
    """Return the message for one problem of pydantic."""
    dotted, kind, value = ".".join(map(str, problem["loc"])), problem["type"], problem["input"]
    where = f" ({location})" if (location := _location(problem, dotted, locations)) else ""
    if kind == "extra_forbidden":
        every, section = list(keys(root, spec)), dotted.rpartition(".")[0]
        near = nearest(dotted, every)
        there = (key.rpartition(".")[2] for key in every if key.rpartition(".")[0] == section)
        fix = (
            f"did you mean {near!r}?"
            if near
            else f"the keys{f' of {section}' if section else ''} are {', '.join(there)}"
        )
        return f"unknown key {dotted!r}{where}; {fix}"
    if kind == "missing":
        field, file = root.model_fields.get(dotted), _file(locations)
        if field and field.description:
            return f"{dotted if file else f'--{dotted}'} is missing{file}: {field.description}"
        return f"{dotted} is missing{where}"
    is_section = kind in ("model_type", "dict_type")
    message = "must be a section of keys and values" if is_section else problem["msg"].removeprefix("Value error, ")
    shown = "" if isinstance(value, dict | BaseModel) else f" (got {repr(value)[:_SHOWN]})"
    return f"{dotted}: {message}{shown}{where}".removeprefix(": ")


def _file(locations: dict[str, str]) -> str:
    """Return the file that most keys come from, in parentheses, or an empty string if none comes from a file."""
    files = Counter(place.rpartition(", line ")[0] for place in locations.values() if ", line " in place)
    return f" ({files.most_common(1)[0][0]})" if files else ""


def _location(problem: Any, dotted: str, locations: dict[str, str]) -> str:
    """Return where the keys in the message were written, otherwise ``dotted``, its section or its first inner key."""
    prefix, words = f"{dotted}." if dotted else "", re.findall(r"\w+", problem["msg"])
    inner = problem["input"] if isinstance(problem["input"], dict) else {}
    places = {key: locations[f"{prefix}{key}"] for key in inner if key in words and f"{prefix}{key}" in locations}
    if places:
        return "; ".join(f"{key}: {place}" for key, place in places.items())
    written = [locations[key] for key in accumulate(dotted.split("."), "{}.{}".format) if key in locations]
    below = [place for key, place in locations.items() if key.startswith(f"{dotted}.")]
    return (written[-1:] or below[:1] or [""])[0]


def nearest(dotted: str, valid: list[str]) -> str | None:
    """Return the most similar valid key: one with the same last word first, then one with a close spelling."""
    last, words = dotted.rpartition(".")[2], {key.rpartition(".")[2]: key for key in reversed(valid)}
    if last in words:
        return words[last]
    close = get_close_matches(dotted, valid, 1, cutoff=0.75)
    return next(iter(close or [words[word] for word in get_close_matches(last, words, 1)]), None)
