"""The base class of all config sections: strict, frozen pydantic models. This module does not import torch."""

import re
from typing import Annotated, Any

from pydantic import Field, field_validator

from raysum import systems

Most = Annotated[int, Field(ge=0, le=10**6)]  # a systems.Size, or 0 for none
Count = Annotated[int, Field(gt=0, le=10**9)]  # of steps and examples
Share = Annotated[float, Field(ge=0, lt=1)]


class Section(systems.Checked):
    """Base of all sections."""

    @field_validator("*")
    @classmethod
    def _check_text(cls, value: Any, info: Any) -> Any:
        if value == "" != cls.model_fields[info.field_name].default:
            raise ValueError("is empty; set a value, or leave it out")
        if isinstance(value, str) and re.search("[\0\ud800-\udfff]", value):
            raise ValueError("contains characters that are not valid text")
        return value
