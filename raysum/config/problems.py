"""Values into sections, with messages that name the place and the nearest valid key."""

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


def validate(values: dict[str, Any], places: dict[str, str] | None, root: type[AnySection]) -> AnySection:
    """``values`` as a ``root`` section; ``places`` says where each dotted key was written, for the messages.

    Raises UserError with a line for each problem.
    """
    values = {key: fspath(value) if isinstance(value, PathLike) else value for key, value in values.items()}
    try:
        return root.model_validate(values)
    except ValidationError as error:
        spec = _spec_of(values)
        problems = [_explain(problem, places or {}, root, spec) for problem in error.errors()]
        raise UserError("\n".join(problems)) from None


def keys(section: type[BaseModel] = Config, spec: type[systems.Spec] | None = None, prefix: str = "") -> Iterator[str]:
    """Every valid dotted key; those of ``model`` are of ``spec``, without it of all systems."""
    for name, field in section.model_fields.items():
        yield prefix + name
        for part in _sections(field.annotation, spec):
            yield from keys(part, spec, f"{prefix}{name}.")


def did_you_mean(word: str, valid: Iterable[str]) -> str:
    """``did you mean 'nearest'? `` to put into a message; nothing where none is near."""
    near = get_close_matches(word, list(valid), 1)
    return f"did you mean {near[0]!r}? " if near else ""


def _sections(annotation: Any, spec: type[systems.Spec] | None) -> list[type[BaseModel]]:
    if annotation is systems.Spec:
        return [spec] if spec else list(systems.spec_classes())
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return [annotation]
    return [part for argument in get_args(annotation) for part in _sections(argument, spec)]


def _spec_of(values: dict[str, Any]) -> type[systems.Spec] | None:
    """The specification of the system that ``values`` name in their section ``model``, as far as there is one."""
    model = values.get("model", {})
    if isinstance(model, systems.Spec):
        return type(model)
    try:
        return systems.spec_class(model.get("system", systems.DEFAULT)) if isinstance(model, dict) else None
    except ValueError:
        return None


def _explain(problem: Any, places: dict[str, str], root: type[Section], spec: type[systems.Spec] | None) -> str:
    """One line for one problem that pydantic found."""
    dotted = ".".join(map(str, problem["loc"]))
    where = f" ({place})" if (place := _place(problem, dotted, places)) else ""
    if problem["type"] == "extra_forbidden":
        near = nearest(dotted, list(keys(root, spec)))
        return f"unknown key {dotted!r}{where}" + (f"; did you mean {near!r}?" if near else "")
    if problem["type"] == "missing":
        field = root.model_fields.get(dotted)
        return f"--{dotted} is missing: {field.description}" if field else f"{dotted} is missing{where}"
    section = problem["type"] in ("model_type", "dict_type")
    message = "must be a section of keys and values" if section else problem["msg"].removeprefix("Value error, ")
    given = "" if isinstance(problem["input"], dict | BaseModel) else f" (got {repr(problem['input'])[:_SHOWN]})"
    subject = f"{dotted}: " if dotted else ""
    return f"{subject}{message}{given}{where}"


def _place(problem: Any, dotted: str, places: dict[str, str]) -> str:
    """Where ``dotted`` was written, what it is in, or what is in it; of a section, the keys that its message names."""
    if isinstance(problem["input"], dict):
        named = {key: places.get(f"{dotted}.{key}" if dotted else key) for key in problem["input"]}
        told = [f"{key}: {place}" for key, place in named.items() if place and re.search(rf"\b{key}\b", problem["msg"])]
        if told:
            return "; ".join(told)
    above = accumulate(dotted.split("."), "{}.{}".format)
    written = [places[key] for key in above if key in places]
    return next(reversed(written), "") or next((places[key] for key in places if key.startswith(f"{dotted}.")), "")


def nearest(dotted: str, valid: list[str]) -> str | None:
    """The valid key most like ``dotted``: the same last word in another section first, then close spellings."""
    last, words = dotted.rpartition(".")[2], {key.rpartition(".")[2]: key for key in reversed(valid)}
    if last in words:
        return words[last]
    close = get_close_matches(dotted, valid, 1, cutoff=0.75)
    return next(iter(close or [words[word] for word in get_close_matches(last, words, 1)]), None)
