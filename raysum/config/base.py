"""What all sections of a configuration are: strict, frozen pydantic models. No torch."""

import re
from typing import Annotated, Any

from pydantic import Field, field_validator

from raysum import systems

Most = Annotated[int, Field(ge=0, le=10**6)]  # as systems.Size, or 0: none
Count = Annotated[int, Field(gt=0, le=10**9)]  # of steps and examples
Share = Annotated[float, Field(ge=0, lt=1)]


class Section(systems.Checked):
    """Base of all sections."""

    @field_validator("*")
    @classmethod
    def _check_text(cls, value: Any, info: Any) -> Any:
        if value == "" != cls.model_fields[info.field_name].default:
            raise ValueError("is empty; give a value, or leave it out")
        if isinstance(value, str) and re.search("[\0\ud800-\udfff]", value):
            raise ValueError("holds what is not text")
        return value
