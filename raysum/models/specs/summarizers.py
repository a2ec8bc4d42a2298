"""The specifications of the summarizing systems outside the family."""

from typing import ClassVar, Literal

from pydantic import Field, model_validator

from raysum.models.specs.family import TransformerSpec, check_letters
from raysum.systems import Layers, Size, Weight


class GraphSumSpec(TransformerSpec):
    """GraphSum (Li et al. 2020): a graph guides the attention between paragraphs and from the target to them."""

    MODEL: ClassVar = "raysum.models.systems.graphsum:GraphSum"
    attends_to_tokens: ClassVar = True

    system: Literal["graphsum"] = "graphsum"
    local_layers: Layers = Field(6, description="self-attention inside paragraphs")
    graph_layers: Layers = Field(2, description="graph-informed self-attention between paragraphs")
    decoder_layers: Layers = 8
    sigma: float = Field(
        2.0, ge=1e-6, le=1e6, description="width of the Gaussian bias that keeps attention near the graph"
    )
    form: Literal["code", "paper"] = Field(
        "code", description="the bias for similarity g: -(1 - g)^2 / (2 (sigma / 2)^2), or -(1 - g^2) / (2 sigma^2)"
    )

    @property
    def needs_graph(self) -> bool:
        return True

    @property
    def attending_layers(self) -> int:
        return self.decoder_layers


class TdmcaSpec(TransformerSpec):
    """T-DMCA (Liu et al. 2018, section 4.2.4): a decoder over source and target as one sequence.

    Letters: L attention inside blocks, M attention to keys and values that a strided convolution compresses.
    """

    MODEL: ClassVar = "raysum.models.systems.tdmca:Tdmca"

    system: Literal["tdmca"] = "tdmca"
    layers: str = Field("LMLML", max_length=1000, description="one letter per layer: L or M")
    block: Size = Field(256, description="tokens of a block of an L layer")
    compression: int = Field(3, gt=1, le=1_000_000, description="width and stride of the convolution of M layers")
    source_loss: Weight = Field(
        0.0, description="weight of a source token in the training loss; a target token has weight 1"
    )

    @property
    def attending_layers(self) -> int:
        return len(self.layers)

    @model_validator(mode="after")
    def _check(self) -> "TdmcaSpec":
        check_letters("layers", self.layers, "LM")
        return self


class TxlSpec(TransformerSpec):
    """Transformer-XL (Dai et al. 2019): a decoder that reads source and target segment by segment."""

    MODEL: ClassVar = "raysum.models.systems.txl:TransformerXL"

    recomputes: ClassVar = False  # its layers remember earlier segments

    system: Literal["txl"] = "txl"
    layers: Layers = 3
    segment: Size = Field(512, description="tokens of a segment")
    memory: Size = Field(512, description="states before a segment to which it attends")
    source_loss: Weight = Field(
        0.0, description="weight of a source token in the training loss; a target token has weight 1"
    )

    @property
    def target_segment(self) -> int:
        return self.segment

    @property
    def attending_layers(self) -> int:
        return self.layers
