"""The specification of T-DMCA."""

from typing import ClassVar, Literal

from pydantic import Field, model_validator

from raysum.models.specs.family import TransformerSpec, check_letters
from raysum.systems import Size, Weight


class TdmcaSpec(TransformerSpec):
    """T-DMCA (Liu et al. 2018, section 4.2.4): a decoder over source and target as one sequence.

    Letters: L attention inside blocks, M attention to keys and values compressed by a strided convolution.
    """

    MODEL: ClassVar = "raysum.models.systems.tdmca:Tdmca"

    system: Literal["tdmca"] = "tdmca"
    layers: str = Field("LMLML", max_length=1000, description="one letter a layer: L or M")
    block: Size = Field(256, description="tokens of a block of an L layer")
    compression: int = Field(3, gt=1, le=1_000_000, description="width and stride of the convolution of M layers")
    source_loss: Weight = Field(
        0.0, description="weight of predicting a source token, beside 1 of a target token, in the training loss"
    )

    @property
    def attending_layers(self) -> int:
        return len(self.layers)

    @model_validator(mode="after")
    def _check(self) -> "TdmcaSpec":
        check_letters("layers", self.layers, "LM")
        return self
