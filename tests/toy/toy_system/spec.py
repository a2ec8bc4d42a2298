"""What the toy is made of, and what it can do."""

from typing import ClassVar, Literal

from pydantic import Field

from raysum.systems import Spec


class ToySpec(Spec):
    MODEL: ClassVar = "toy_system.model:Toy"
    OBJECTIVE: ClassVar = "raysum.models.generator:LanguageModelling"
    KIND: ClassVar = "summarization"
    summarizes: ClassVar = True
    attends_to_paragraphs: ClassVar = True

    system: Literal["toy"] = "toy"
    vocabulary: int = Field(100, gt=8)
    width: int = Field(16, gt=0)
