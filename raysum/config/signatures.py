"""Signatures and docstrings of functions that accept the fields of config sections as settings."""

import inspect
from collections.abc import Callable, Collection
from textwrap import fill
from typing import Any, TypeVar, get_type_hints

from pydantic import BaseModel
from pydantic.fields import FieldInfo

from raysum.config.base import Section

_Function = TypeVar("_Function", bound=Callable[..., Any])
_WIDTH = 110  # characters of a line in a docstring


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
