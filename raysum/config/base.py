"""The base class of all config sections, and functions that accept their fields. This module does not import torch."""

import inspect
import re
from collections.abc import Callable, Collection, Mapping
from textwrap import fill
from typing import Annotated, Any, ClassVar, TypeVar, get_type_hints

from pydantic import BaseModel, Field, field_validator, model_validator
from pydantic.fields import FieldInfo

from raysum import systems
from raysum.runtime.progress import say

Most = Annotated[int, Field(ge=0, le=10**6)]  # a systems.Size, or 0 for none
Count = Annotated[int, Field(gt=0, le=10**9)]  # of steps and examples
Share = Annotated[float, Field(ge=0, lt=1)]
Minutes = Annotated[float, Field(gt=0, le=10**6)]

_Function = TypeVar("_Function", bound=Callable[..., Any])
_WIDTH = 110  # characters of a line in a docstring
_reported = set[str]()  # old names that a message has named


class Section(systems.Checked):
    """Base of all sections. Old names of fields (``ALIASES``, with one message each) and names of other toolkits
    (``SYNONYMS``) are accepted in files, flags and keyword arguments."""

    ALIASES: ClassVar[dict[str, str]] = {}
    SYNONYMS: ClassVar[dict[str, str]] = {}

    @model_validator(mode="before")
    @classmethod
    def _rename(cls, values: Any) -> Any:
        """Return ``values`` with the current names; if a field has several, the last one counts."""
        if not isinstance(values, dict):
            return values
        for name in values.keys() & cls.ALIASES.keys() - _reported:
            say(f"{name} is the old name of {cls.ALIASES[name]}; use the new name")
            _reported.add(name)
        names = cls.ALIASES | cls.SYNONYMS
        return {names.get(name, name): value for name, value in values.items()}

    @classmethod
    def with_current_names(cls, values: dict[str, Any]) -> dict[str, Any]:
        """Return ``values`` of a folder of a former version with the current names of fields, in all sections."""
        current = {cls.ALIASES.get(name, name): value for name, value in values.items()}
        for name, field in cls.model_fields.items():
            section, value = field.annotation, current.get(name)
            if isinstance(section, type) and issubclass(section, Section) and isinstance(value, dict):
                current[name] = section.with_current_names(value)
        return current

    def changed(self, changes: Mapping[str, Any]) -> dict[str, Any]:
        """Return the values with ``changes``, not validated."""
        return self.model_dump() | dict(changes)

    @field_validator("*")
    @classmethod
    def _check_text(cls, value: Any, info: Any) -> Any:
        if value == "" != cls.model_fields[info.field_name].default:
            raise ValueError("is empty; set a value, or leave it out if it is optional")
        if isinstance(value, str) and re.search("[\0\ud800-\udfff]", value):
            raise ValueError("contains characters that are not valid text")
        return value


def with_settings(*sections: type[Section], without: Collection[str] = ()) -> Callable[[_Function], _Function]:
    """Return a decorator that replaces ``**settings`` in signature and docstring by the fields of ``sections``.

    Fields in ``without``, and those that are already parameters of the function, are not added.
    """

    def describe(function: _Function) -> _Function:
        signature = inspect.signature(function)
        own = [each for each in signature.parameters.values() if each.kind is not inspect.Parameter.VAR_KEYWORD]
        skipped = {*without, *(parameter.name for parameter in own)}
        settings, lines = dict[str, inspect.Parameter](), list[str]()
        for section in sections:
            hints = get_type_hints(section)
            for name, field in section.model_fields.items():
                if name in skipped or name in settings:
                    continue
                default = {} if field.default_factory else field.default
                default = inspect.Parameter.empty if field.is_required() else default
                kind = dict[str, Any] if field.default_factory else hints[name]
                how = inspect.Parameter.KEYWORD_ONLY
                settings[name] = inspect.Parameter(name, how, default=default, annotation=kind)
                lines.append(fill(f"{name}: {_description(hints[name], field)}", _WIDTH, subsequent_indent="    "))
        function.__signature__ = signature.replace(parameters=[*own, *settings.values()])  # type: ignore[attr-defined]
        function.__doc__ = "\n".join((inspect.getdoc(function) or "", "", "Settings:", "", *lines))
        return function

    return describe


def _description(kind: Any, field: FieldInfo) -> str:
    """Return the description of a field, or the keys of a section."""
    if field.description or not (isinstance(kind, type) and issubclass(kind, BaseModel)):
        return field.description or "see `raysum config show`"
    return f"a dict with keys such as {', '.join([*kind.model_fields][:8])}"
