"""The base class of all config sections: strict, frozen pydantic models. This module does not import torch."""

import re
from typing import Annotated, Any, ClassVar

from pydantic import Field, field_validator, model_validator

from raysum import systems
from raysum.runtime.progress import say

Most = Annotated[int, Field(ge=0, le=10**6)]  # a systems.Size, or 0 for none
Count = Annotated[int, Field(gt=0, le=10**9)]  # of steps and examples
Share = Annotated[float, Field(ge=0, lt=1)]


_reported = set[str]()  # old names that a message has named


class Section(systems.Checked):
    """Base of all sections. ``ALIASES`` maps old names of fields to new ones, in files, flags and keyword arguments."""

    ALIASES: ClassVar[dict[str, str]] = {}

    @model_validator(mode="before")
    @classmethod
    def _rename(cls, values: Any) -> Any:
        """Accept old names, with one message for each name and process. The new name wins if both are given."""
        if not isinstance(values, dict) or not values.keys() & cls.ALIASES.keys():
            return values
        for name in values.keys() & cls.ALIASES.keys() - _reported:
            say(f"{name} is the old name of {cls.ALIASES[name]}, which replaces it; use the new name")
            _reported.add(name)
        renamed = {cls.ALIASES[name]: value for name, value in values.items() if name in cls.ALIASES}
        return renamed | {name: value for name, value in values.items() if name not in cls.ALIASES}

    @field_validator("*")
    @classmethod
    def _check_text(cls, value: Any, info: Any) -> Any:
        if value == "" != cls.model_fields[info.field_name].default:
            raise ValueError("is empty; set a value, or leave it out")
        if isinstance(value, str) and re.search("[\0\ud800-\udfff]", value):
            raise ValueError("contains characters that are not valid text")
        return value
