"""The specification of GraphSum."""

from typing import ClassVar, Literal

from pydantic import Field

from raysum.models.specs.family import TransformerSpec
from raysum.systems import Layers


class GraphSumSpec(TransformerSpec):
    """GraphSum (Li et al. 2020): attention between paragraphs, and from the target to them, near a given graph."""

    MODEL: ClassVar = "raysum.models.systems.graphsum:GraphSum"
    attends_to_tokens: ClassVar = True

    system: Literal["graphsum"] = "graphsum"
    local_layers: Layers = Field(6, description="self-attention inside paragraphs")
    graph_layers: Layers = Field(2, description="graph-informed self-attention between paragraphs")
    decoder_layers: Layers = 8
    sigma: float = Field(
        2.0, ge=1e-6, le=1e6, description="how far from the graph attention may go: width of the Gaussian bias"
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
