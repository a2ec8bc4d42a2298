"""The specification of summarizing Transformers, and of the family, which its layer mix defines. No torch here."""

from typing import ClassVar, Literal

from pydantic import Field, model_validator

from raysum.systems import Checked, Size, Spec
from raysum.tokenizers.special_tokens import PUBLISHED, SpecialTokens


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
    buckets: int = Field(32, ge=4, le=10**6, description="buckets of distances; in encoders half are for later tokens")
    farthest: Size = Field(128, description="distance from which all tokens share a bucket")
    window: int = Field(0, ge=0, le=10**6, multiple_of=2, description="tokens of the window of a W layer")
    global_ids: tuple[int, ...] = Field((), description="tokens that are global besides the first (W layers)")
    source_embedding: bool = Field(False, description="source and target have separate embeddings")
    embedding_norm: bool = Field(False, description="a norm after adding embedding and position")
    embedding_scaled: bool = Field(True, description="whether embeddings are multiplied by D^0.5")
    padding_trained: bool = Field(
        True, description="whether padding's embedding is trained: PEGASUS begins targets with it"
    )
    output_bias: Literal["trained", "fixed", "none"] = "trained"
    output_scaled: bool = Field(False, description="whether the last states are divided by D^0.5 (T5 v1.0)")
    final_dropout: bool = Field(False, description="dropout after the last norms")
    model_type: Literal["mt5"] | None = Field(None, description="transformers' type, if layers do not determine it")

    @property
    def max_target(self) -> int | None:
        """The most tokens of a target for which the decoder has positions."""
        return self.target_places - self.place_offset if self.places == "learned" else None

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
        "all", description="layers with an adapter: all linear ones except the output, attention, or feed-forward"
    )
    embeddings: bool = Field(False, description="whether embeddings and output layer are trained entirely")


class TransformerSpec(Spec):
    """The options of all summarizing Transformers."""

    OBJECTIVE: ClassVar = "raysum.models.generator:LanguageModelling"
    KIND: ClassVar = "summarization"
    summarizes: ClassVar = True
    attends_to_paragraphs: ClassVar = True

    vocabulary: int = Field(32000, gt=8, le=100_000_000, description="vocabulary size")
    marks: SpecialTokens = Field(PUBLISHED, description="ids of the vocabulary's special tokens")
    width: Size = Field(256, description="D")
    ffn: Size = Field(1024, description="hidden width of the feed-forward networks")
    heads: Size = Field(8, description="H of self- and cross-attention")
    norm: Literal["pre", "post"] = "pre"
    sinusoid: Literal["interleaved", "halves"] = Field(
        "interleaved", description="sines and cosines alternate (HT eq. 7-8), or all sines come first (PHT's code)"
    )
    tied_output: bool = Field(True, description="the output layer shares the embedding")
    embedding_start: Literal["normal", "xavier"] = Field(
        "normal", description="initialization: of deviation D^-0.5, which learns faster, or Xavier-uniform (HT's code)"
    )
    dropout: float = Field(0.1, ge=0, lt=1)
    attention_dropout: float = Field(0.1, ge=0, lt=1, description="dropout on attention weights")
    ffn_dropout: float = Field(0.0, ge=0, lt=1, description="dropout on hidden units of feed-forward networks")

    @model_validator(mode="after")
    def _check_width(self) -> "TransformerSpec":
        if self.width % 4:
            raise ValueError(f"width {self.width} must be a multiple of 4 (two sinusoids side by side)")
        return self


class FamilySpec(TransformerSpec):
    """An encoder-decoder defined by its layer mix (HT, PHT, VHT, the flat Transformer, and every mixture of them).

    Encoder letters: S flat self-attention, L local (HT eq. 11-12), G global (HT eq. 13-24), W windows (LED). Decoder
    letters: F flat cross-attention, P parallel (PHT eq. 7-10), V vertical (VHT eq. 11-13).
    """

    MODEL: ClassVar = "raysum.models.family.model:Family"
    attends_to_tokens: ClassVar = True

    system: Literal["family"] = "family"
    encoder: str = Field("LLL", max_length=1000, description="one letter per layer: S, L, G or W")
    decoder: str = Field("PPP", max_length=1000, description="one letter per layer: F, P or V")
    pooling_heads: Size = Field(8, description="heads of the multi-head pooling in G layers and of Phi")
    graph_heads: int = Field(0, ge=0, description="heads of each G layer that use a given graph (HT eq. 24)")
    copy_heads: int = Field(0, ge=0, description="heads of the last layer that copy source tokens; 0 = no copying")
    positions: Literal["flat", "paragraph", "2d"] = Field(
        "2d", description="position in the whole source, in the paragraph, or in the paragraph plus its rank (HT eq. 9)"
    )
    form: Literal["code", "paper"] = Field(
        "code", description="which to follow if a paper and its code differ (fusion of G and P layers)"
    )
    backbone: Backbone | None = Field(None, description="how pretrained layers are built; None = as in the papers")

    @property
    def needs_graph(self) -> bool:
        return self.graph_heads > 0

    @property
    def attending_layers(self) -> int:
        return len(self.decoder)

    @property
    def joins_paragraphs(self) -> bool:
        return self.positions == "flat"

    @property
    def global_ids(self) -> tuple[int, ...]:
        return self.backbone.global_ids if self.backbone else ()

    @property
    def max_positions(self) -> int | None:
        backbone = self.backbone or PLAIN
        return backbone.source_places - backbone.place_offset if backbone.places == "learned" else None

    def name_in(self, name: str, other: Spec) -> str | None:
        """Return the other model's name of a parameter. Pretrained and inserted (G) layers are counted separately."""
        side, _, rest = name.partition(".")
        number, _, within = rest.partition(".")
        if side != "encoder" or not (self.backbone and getattr(other, "backbone", None)):
            return name
        kind = self.encoder[int(number)] == "G"
        numbers = [n for n, letter in enumerate(getattr(other, "encoder", "")) if (letter == "G") == kind]
        rank = sum((letter == "G") == kind for letter in self.encoder[: int(number)])
        return f"encoder.{numbers[rank]}.{within}" if rank < len(numbers) else None

    @model_validator(mode="after")
    def _check(self) -> "FamilySpec":
        check_letters("encoder", self.encoder, "SLGW" if (self.backbone or PLAIN).window else "SLG")
        check_letters("decoder", self.decoder, "FPV")
        if self.positions == "flat" and set(self.encoder) - {"S", "W"}:
            raise ValueError(f"positions 'flat' need an encoder of S or W layers, not {self.encoder!r}")
        if self.positions != "flat" and "W" in self.encoder:
            raise ValueError(f"W layers need positions 'flat' and an encoder of S or W layers, not {self.encoder!r}")
        if self.graph_heads and ("G" not in self.encoder or self.graph_heads > self.pooling_heads):
            raise ValueError(f"graph_heads {self.graph_heads} need a G layer and at least as many pooling_heads")
        if self.copy_heads > self.heads:
            raise ValueError(f"copy_heads {self.copy_heads} must not exceed heads {self.heads}")
        return self


def check_letters(name: str, mix: str, letters: str) -> None:
    """Raise ValueError if ``mix`` is empty or has other ``letters``."""
    if not mix or set(mix) - set(letters):
        raise ValueError(f"{name} {mix!r} must consist of the letters {', '.join(letters)}")
