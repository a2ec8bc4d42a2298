"""Validate values as config sections. Messages name the location and the nearest valid key."""

import re
from collections.abc import Iterable, Iterator
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
        spec = _spec_of(values)
        problems = [_explain(problem, locations or {}, root, spec) for problem in error.errors()]
        raise UserError("\n".join(problems)) from None


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


def _spec_of(values: dict[str, Any]) -> type[systems.Spec] | None:
    """Return the spec class of the system in the section ``model`` of ``values``, or None if it is unknown."""
    model = values.get("model", {})
    if isinstance(model, systems.Spec):
        return type(model)
    try:
        return systems.spec_class(model.get("system", systems.DEFAULT)) if isinstance(model, dict) else None
    except ValueError:
        return None


def _explain(problem: Any, locations: dict[str, str], root: type[Section], spec: type[systems.Spec] | None) -> str:
    """Return the message for one problem of pydantic."""
    dotted = ".".join(map(str, problem["loc"]))
    where = f" ({location})" if (location := _location(problem, dotted, locations)) else ""
    if problem["type"] == "extra_forbidden":
        near = nearest(dotted, list(keys(root, spec)))
        return f"unknown key {dotted!r}{where}" + (f"; did you mean {near!r}?" if near else "")
    if problem["type"] == "missing":
        field = root.model_fields.get(dotted)
        return f"--{dotted} is missing: {field.description}" if field else f"{dotted} is missing{where}"
    section = problem["type"] in ("model_type", "dict_type")
    message = "must be a section of keys and values" if section else problem["msg"].removeprefix("Value error, ")
    value = "" if isinstance(problem["input"], dict | BaseModel) else f" (got {repr(problem['input'])[:_SHOWN]})"
    subject = f"{dotted}: " if dotted else ""
    return f"{subject}{message}{value}{where}"


def _location(problem: Any, dotted: str, locations: dict[str, str]) -> str:
    """Return where ``dotted``, its section or its first inner key was written.

    If the problem is in a section, return where the keys in its message were written.
    """
    if isinstance(problem["input"], dict):
        inner = {key: locations.get(f"{dotted}.{key}" if dotted else key) for key in problem["input"]}
        mentioned = [
            f"{key}: {location}"
            for key, location in inner.items()
            if location and re.search(rf"\b{key}\b", problem["msg"])
        ]
        if mentioned:
            return "; ".join(mentioned)
    above = accumulate(dotted.split("."), "{}.{}".format)
    written = [locations[key] for key in above if key in locations]
    below = (locations[key] for key in locations if key.startswith(f"{dotted}."))
    return next(reversed(written), "") or next(below, "")


def nearest(dotted: str, valid: list[str]) -> str | None:
    """Return the most similar valid key: one with the same last word first, then one with a close spelling."""
    last, words = dotted.rpartition(".")[2], {key.rpartition(".")[2]: key for key in reversed(valid)}
    if last in words:
        return words[last]
    close = get_close_matches(dotted, valid, 1, cutoff=0.75)
    return next(iter(close or [words[word] for word in get_close_matches(last, words, 1)]), None)
