"""The specification of GraphSum."""

from typing import ClassVar, Literal

from pydantic import Field

from raysum.models.specs.family import TransformerSpec


class GraphSumSpec(TransformerSpec):
    """GraphSum (Li et al. 2020): attention between paragraphs, and from the target to them, near a given graph."""

    MODEL: ClassVar = "raysum.models.systems.graphsum:GraphSum"
    attends_to_tokens: ClassVar = True

    system: Literal["graphsum"] = "graphsum"
    local_layers: int = Field(6, gt=0, description="self-attention inside paragraphs")
    graph_layers: int = Field(2, gt=0, description="graph-informed self-attention between paragraphs")
    decoder_layers: int = Field(8, gt=0)
    sigma: float = Field(2.0, gt=0, description="how far from the graph attention may go: width of the Gaussian bias")
    form: Literal["code", "paper"] = Field(
        "code", description="the bias for similarity g: -(1 - g)^2 / (2 (sigma / 2)^2), or -(1 - g^2) / (2 sigma^2)"
    )

    @property
    def needs_graph(self) -> bool:
        return True
