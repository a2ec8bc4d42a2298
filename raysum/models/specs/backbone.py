"""Pretrained encoder-decoders: how their layers are built, and the low-rank adapters that train them. No torch."""

from typing import Literal

from pydantic import Field, model_validator

from raysum.systems import Checked, Size


class Backbone(Checked):
    """How the layers of published pretrained models differ from the papers' layers, which are the defaults."""

    norm: Literal["layer", "rms"] = Field("layer", description="LayerNorm, or T5's RMSNorm: no mean, no bias")
    eps: float = Field(1e-6, gt=0, le=1)
    bias: bool = Field(True, description="whether linear layers have a bias")
    activation: Literal["relu", "gelu", "gelu-tanh", "silu"] = "relu"
    gated: bool = Field(False, description="the activation multiplies a second linear layer")
    head_width: Size | None = Field(None, description="dh; None = width / heads")
    scaled_scores: bool = Field(True, description="whether products of queries and keys are divided by dh^0.5")
    places: Literal["sinusoid", "learned", "relative"] = Field(
        "sinusoid", description="positions by sinusoids, by learned tables, or by a bias of the scores (T5)"
    )
    source_places: int = Field(0, ge=0, le=10**6, description="rows of the encoder's table of positions")
    target_places: int = Field(0, ge=0, le=10**6, description="rows of the decoder's table of positions")
    place_offset: int = Field(0, ge=0, le=10**6, description="row of the first position")
    places_trained: bool = True
    layer_distances: bool = Field(False, description="each layer has its own bias by distance (UMT5)")
    buckets: int = Field(
        32, ge=4, le=10**6, description="buckets of distances; half of the encoder's are for later tokens"
    )
    farthest: Size = Field(128, description="distance from which all tokens share a bucket")
    window: int = Field(0, ge=0, le=10**6, multiple_of=2, description="tokens of the window of a W layer")
    global_ids: tuple[int, ...] = Field((), description="tokens that are global besides the first (W layers)")
    source_embedding: bool = Field(False, description="source and target have separate embeddings")
    embedding_norm: bool = Field(False, description="a norm after adding embedding and position")
    embedding_scaled: bool = Field(True, description="whether embeddings are multiplied by D^0.5")
    padding_trained: bool = Field(
        True, description="whether the embedding of padding is trained: PEGASUS begins targets with it"
    )
    output_bias: Literal["trained", "fixed", "none"] = "trained"
    output_scaled: bool = Field(False, description="whether the last states are divided by D^0.5 (T5 v1.0)")
    final_dropout: bool = Field(False, description="dropout after the last norms")
    model_type: Literal["mt5"] | None = Field(
        None, description="transformers' model type, if layers do not determine it"
    )

    @model_validator(mode="after")
    def _check(self) -> "Backbone":
        if self.farthest <= self.buckets // 2:
            raise ValueError(f"farthest {self.farthest} must be above half of the {self.buckets} buckets of distances")
        return self


PLAIN = Backbone()


class Adapters(Checked):
    """Low-rank adapters (Hu et al. 2021): each matrix W of the initial weights becomes W + alpha / rank * B A.

    Only A and B are trained, and parameters that the initial weights lack. Checkpoints contain the sums under the
    names of W, so every reader of a run sees a model without adapters.
    """

    rank: int = Field(0, ge=0, le=10**4, description="rank of each adapter; 0 = train all parameters")
    alpha: float = Field(16.0, gt=0, le=10**6, description="the scale of B A is alpha / rank")
    dropout: float = Field(0.0, ge=0, lt=1, description="dropout on the input of A")
    matrices: Literal["all", "attention", "ffn"] = Field(
        "all",
        description="layers with an adapter: all linear ones except the output, attention, or feed-forward",
    )
    embeddings: bool = Field(False, description="whether embeddings and output layer are trained entirely")
