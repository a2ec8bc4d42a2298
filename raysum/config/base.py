"""The base class of all config sections: strict, frozen pydantic models. This module does not import torch."""

import re
from collections.abc import Mapping
from typing import Annotated, Any, ClassVar

from pydantic import Field, field_validator, model_validator

from raysum import systems
from raysum.runtime.progress import say

Most = Annotated[int, Field(ge=0, le=10**6)]  # a systems.Size, or 0 for none
Count = Annotated[int, Field(gt=0, le=10**9)]  # of steps and examples
Share = Annotated[float, Field(ge=0, lt=1)]
Minutes = Annotated[float, Field(gt=0, le=10**6)]

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
            raise ValueError("is empty; set a value, or leave it out")
        if isinstance(value, str) and re.search("[\0\ud800-\udfff]", value):
            raise ValueError("contains characters that are not valid text")
        return value
