"""The specification of HIBERT."""

from typing import ClassVar, Literal

from pydantic import Field

from raysum.models.specs.family import TransformerSpec
from raysum.systems import Layers, Size, Spec


class HibertSpec(TransformerSpec):
    """HIBERT (Zhang et al. 2019): a Transformer over the words of each sentence, another over the sentences.

    It learns to predict masked sentences, then, from those weights (``train.start``), to label the sentences to take.
    """

    MODEL: ClassVar = "raysum.models.systems.hibert:Hibert"
    OBJECTIVE: ClassVar = "raysum.models.systems.hibert:objective"
    KIND: ClassVar = "raysum.stream.collators.sentences:Sentences"
    summarizes: ClassVar = False
    attends_to_paragraphs: ClassVar = False

    system: Literal["hibert"] = "hibert"
    task: Literal["extraction", "pretraining"] = Field(
        "extraction", description="label the sentences to take (eq. 8), or predict masked sentences (eq. 3-7)"
    )
    layers: Layers = Field(6, description="of the sentence and of the document Transformer, and of the decoder")
    window: Size = Field(30, description="sentences that the document Transformer reads together")
    norm: Literal["pre", "post"] = "post"

    @property
    def extracts(self) -> bool:
        return self.task == "extraction"

    def serves(self, name: str, other: Spec) -> str | None:
        """The layers over words begin the local layers of an encoder, in their order, where these compute the same."""
        if other.system == self.system:
            return name
        part, _, rest = name.partition(".")
        if part != "sentence":
            return name if part == "embedding" else None
        number, _, inside = rest.partition(".")
        local = [place for place, letter in enumerate(getattr(other, "encoder", "")) if letter == "L"]
        alike = all(getattr(self, key) == getattr(other, key, None) for key in ("norm", "heads"))
        return f"encoder.{local[int(number)]}.block.{inside}" if alike and int(number) < len(local) else None
