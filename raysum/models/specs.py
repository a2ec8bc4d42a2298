"""Hyper-parameters of every model, as strict pydantic models: no torch here."""

from typing import Annotated, Any, Literal, get_args

from pydantic import BaseModel, ConfigDict, Discriminator, Field, Tag, model_validator

ENCODER_LETTERS = "SLG"
DECODER_LETTERS = "FPV"
PREFIX_LETTERS = "LM"


class Spec(BaseModel):
    """Base of all specs: unknown keys are errors, values do not change after construction."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class TransformerSpec(Spec):
    """What all summarizing models have."""

    vocabulary: int = Field(32000, gt=8, description="number of pieces")
    width: int = Field(256, gt=0, description="D")
    ffn: int = Field(1024, gt=0, description="hidden width of the feed-forward networks")
    heads: int = Field(8, gt=0, description="H of self- and cross-attention")
    norm: Literal["pre", "post"] = "pre"
    sinusoid: Literal["interleaved", "halves"] = Field(
        "interleaved", description="sin and cos in turn (eq. 7-8), or all sines then all cosines (PHT's code)"
    )
    tied_output: bool = Field(True, description="the output layer shares the embedding")
    embedding_start: Literal["normal", "xavier"] = Field(
        "normal", description="of deviation D^-0.5, which learns faster; or Xavier-uniform, as HT's code starts"
    )
    dropout: float = Field(0.1, ge=0, lt=1)
    attention_dropout: float = Field(0.1, ge=0, lt=1, description="dropout on attention weights")
    ffn_dropout: float = Field(0.0, ge=0, lt=1, description="dropout on hidden units of feed-forward networks")

    @property
    def needs_graph(self) -> bool:
        """Whether a source must come with a graph between its paragraphs."""
        return False

    @model_validator(mode="after")
    def _check_width(self) -> "TransformerSpec":
        if self.width % self.heads:
            raise ValueError(f"width {self.width} is not a multiple of heads {self.heads}")
        if self.width % 4:
            raise ValueError(f"width {self.width} must be a multiple of 4 (two sinusoids side by side)")
        return self


class Seq2SeqSpec(TransformerSpec):
    """An encoder-decoder given by its layer mix (HT, PHT, VHT, the flat Transformer, and every mixture of them).

    Encoder letters: S flat self-attention, L local (HT eq. 11-12), G global (HT eq. 13-24).
    Decoder letters: F flat cross-attention, P parallel (PHT eq. 7-10), V vertical (VHT eq. 11-13).
    """

    system: Literal["seq2seq"] = "seq2seq"
    encoder: str = Field("LLL", description="one letter a layer: S, L or G")
    decoder: str = Field("PPP", description="one letter a layer: F, P or V")
    pooling_heads: int = Field(8, gt=0, description="heads of the multi-head pooling in G layers and of Phi")
    graph_heads: int = Field(0, ge=0, description="heads of each G layer replaced by a given graph (HT eq. 24)")
    positions: Literal["flat", "paragraph", "2d"] = Field(
        "2d", description="position in the whole source, within the paragraph, or within it and its rank (HT eq. 9)"
    )
    form: Literal["code", "paper"] = Field(
        "code", description="where a paper and its published code differ (fusion of G and P layers): which one"
    )

    @property
    def needs_graph(self) -> bool:
        return self.graph_heads > 0

    @model_validator(mode="after")
    def _check(self) -> "Seq2SeqSpec":
        _check_letters("encoder", self.encoder, ENCODER_LETTERS)
        _check_letters("decoder", self.decoder, DECODER_LETTERS)
        if self.width % self.pooling_heads:
            raise ValueError(f"width {self.width} is not a multiple of pooling_heads {self.pooling_heads}")
        if self.positions == "flat" and set(self.encoder) != {"S"}:
            raise ValueError(f"positions 'flat' need an encoder of S layers only, not {self.encoder!r}")
        if self.graph_heads and ("G" not in self.encoder or self.graph_heads > self.pooling_heads):
            raise ValueError(f"graph_heads {self.graph_heads} need G layers with at least as many pooling_heads")
        return self


def _check_letters(name: str, mix: str, letters: str) -> None:
    if not mix or set(mix) - set(letters):
        raise ValueError(f"{name} {mix!r} must be one or more of the letters {', '.join(letters)}")


class TdmcaSpec(TransformerSpec):
    """T-DMCA (Liu et al. 2018, section 4.2.4): a decoder over source and target as one sequence.

    Letters: L attention inside blocks, M attention to keys and values compressed by a strided convolution.
    """

    system: Literal["tdmca"] = "tdmca"
    layers: str = Field("LMLML", description="one letter a layer: L or M")
    block: int = Field(256, gt=0, description="tokens of a block of an L layer")
    compression: int = Field(3, gt=1, description="width and stride of the convolution of M layers")
    source_loss: float = Field(
        0.0, ge=0, description="weight of predicting a source token, beside 1 of a target token, in the training loss"
    )

    @model_validator(mode="after")
    def _check(self) -> "TdmcaSpec":
        _check_letters("layers", self.layers, PREFIX_LETTERS)
        return self


class TxlSpec(TransformerSpec):
    """Transformer-XL (Dai et al. 2019): a decoder that reads source and target segment by segment."""

    system: Literal["txl"] = "txl"
    layers: int = Field(3, gt=0)
    segment: int = Field(512, gt=0, description="tokens that are read at a time")
    memory: int = Field(512, gt=0, description="states before a segment that it attends to")
    source_loss: float = Field(
        0.0, ge=0, description="weight of predicting a source token, beside 1 of a target token, in the training loss"
    )


class GraphSumSpec(TransformerSpec):
    """GraphSum (Li et al. 2020): attention between paragraphs, and from the target to them, near a given graph."""

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


class PredictorSpec(Spec):
    """The attention predictor (PHT paper, section 4.2.1): Transformer layers over paragraph embeddings, softmax."""

    system: Literal["predictor"] = "predictor"
    layers: int = Field(2, gt=0)
    width: int = Field(256, gt=0)
    ffn: int = Field(1024, gt=0)
    heads: int = Field(4, gt=0)
    dropout: float = Field(0.5, ge=0, lt=1)

    @model_validator(mode="after")
    def _check(self) -> "PredictorSpec":
        if self.width % self.heads:
            raise ValueError(f"width {self.width} is not a multiple of heads {self.heads}")
        return self


class RankerSpec(Spec):
    """The paragraph ranker (HT eq. 1-6): two LSTMs, max pooling, tanh, sigmoid."""

    system: Literal["ranker"] = "ranker"
    vocabulary: int = Field(32000, gt=8, description="number of pieces")
    width: int = Field(256, gt=0, description="of the word embeddings")
    hidden: int = Field(256, gt=0, description="of both LSTMs and of the matching features")
    dropout: float = Field(0.2, ge=0, lt=1, description="before all linear layers")


def _system(value: Any) -> str:
    return value.get("system", "seq2seq") if isinstance(value, dict) else value.system


ModelSpec = Annotated[
    Annotated[Seq2SeqSpec, Tag("seq2seq")]
    | Annotated[TdmcaSpec, Tag("tdmca")]
    | Annotated[TxlSpec, Tag("txl")]
    | Annotated[GraphSumSpec, Tag("graphsum")]
    | Annotated[RankerSpec, Tag("ranker")]
    | Annotated[PredictorSpec, Tag("predictor")],
    Discriminator(_system),
]

# The specs by the name that ``system`` has in a config.
SYSTEMS: dict[str, type[Spec]] = {
    part.__metadata__[0].tag: part.__origin__ for part in get_args(get_args(ModelSpec)[0])
}
