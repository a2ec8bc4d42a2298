"""How the layers of published pretrained encoder-decoders are made, where they differ from the papers'."""

from typing import Literal

from pydantic import Field, model_validator

from raysum.systems import Checked, Size


class Backbone(Checked):
    """The defaults are the papers' layers."""

    norm: Literal["layer", "rms"] = Field("layer", description="LayerNorm, or T5's: no mean, no bias")
    eps: float = Field(1e-6, gt=0, le=1)
    bias: bool = Field(True, description="whether linear layers have one")
    activation: Literal["relu", "gelu", "gelu-tanh", "silu"] = "relu"
    gated: bool = Field(False, description="the activation multiplies a second linear layer")
    head_width: Size | None = Field(None, description="dh; None = width / heads")
    scaled_scores: bool = Field(True, description="whether products of queries and keys are divided by dh^0.5")
    places: Literal["sinusoid", "learned", "relative"] = Field(
        "sinusoid", description="positions by waves, by tables, or by a bias of the scores (T5)"
    )
    source_places: int = Field(0, ge=0, le=10**6, description="rows of the encoder's table of positions")
    target_places: int = Field(0, ge=0, le=10**6, description="rows of the decoder's")
    place_offset: int = Field(0, ge=0, le=10**6, description="row of the first position")
    places_trained: bool = True
    layer_distances: bool = Field(False, description="each layer has a bias by distance of its own (UMT5)")
    buckets: int = Field(32, ge=4, le=10**6, description="of relative distances; half of the encoder's look ahead")
    farthest: Size = Field(128, description="distance from which on all share a bucket")
    window: int = Field(0, ge=0, le=10**6, multiple_of=2, description="tokens that one of W layers sees around it")
    global_ids: tuple[int, ...] = Field((), description="tokens that all see, beside the first (W)")
    source_embedding: bool = Field(False, description="source and target have an embedding each")
    embedding_norm: bool = Field(False, description="a norm over embedding and position")
    embedding_scaled: bool = Field(True, description="whether embeddings are multiplied by D^0.5")
    padding_trained: bool = Field(
        True, description="whether the embedding of padding learns where it is read: PEGASUS begins targets with it"
    )
    output_bias: Literal["trained", "fixed", "none"] = "trained"
    output_scaled: bool = Field(False, description="whether the last states are divided by D^0.5 (T5 v1.0)")
    final_dropout: bool = Field(False, description="dropout behind the last norms")
    model_type: Literal["mt5"] | None = Field(None, description="what transformers calls it, if not by its layers")

    @model_validator(mode="after")
    def _check(self) -> "Backbone":
        if self.farthest <= self.buckets // 2:
            raise ValueError(f"farthest {self.farthest} is not above half of the {self.buckets} buckets of distances")
        return self


PLAIN = Backbone()


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
