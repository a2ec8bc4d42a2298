"""The specification of Transformer-XL."""

from typing import ClassVar, Literal

from pydantic import Field

from raysum.models.specs.family import TransformerSpec
from raysum.systems import Layers, Size, Weight


class TxlSpec(TransformerSpec):
    """Transformer-XL (Dai et al. 2019): a decoder that reads source and target segment by segment."""

    MODEL: ClassVar = "raysum.models.systems.txl:TransformerXL"

    recomputes: ClassVar = False  # they remember what they have read

    system: Literal["txl"] = "txl"
    layers: Layers = 3
    segment: Size = Field(512, description="tokens that are read at a time")
    memory: Size = Field(512, description="states before a segment that it attends to")
    source_loss: Weight = Field(
        0.0, description="weight of predicting a source token, beside 1 of a target token, in the training loss"
    )

    @property
    def attending_layers(self) -> int:
        return self.layers
