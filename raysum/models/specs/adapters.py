"""The settings of low-rank adapters. No torch."""

from typing import Literal

from pydantic import Field

from raysum.systems import Checked


class Adapters(Checked):
    """Low-rank adapters (Hu et al. 2021): each matrix W of the weights that a training starts from becomes
    W + alpha / rank * B A, and only A and B are trained; so is, whole, what the start has not.

    Checkpoints hold the sums under the names of W: what reads a run sees a model without adapters.
    """

    rank: int = Field(0, ge=0, le=10**4, description="rows of A; 0 = no adapters: all parameters are trained")
    alpha: float = Field(16.0, gt=0, le=10**6, description="B A counts alpha / rank times")
    dropout: float = Field(0.0, ge=0, lt=1, description="dropout on what A reads")
    matrices: Literal["all", "attention", "ffn"] = Field(
        "all",
        description="which get one: all linear layers but the output's, those of attention, or of feed-forward nets",
    )
    embeddings: bool = Field(False, description="whether embeddings and output layer are trained whole, too")
