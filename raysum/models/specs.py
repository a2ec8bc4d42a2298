"""Hyper-parameters of every model, as strict pydantic models: no torch here."""

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Discriminator, Field, Tag, model_validator

ENCODER_LETTERS = "SLG"
DECODER_LETTERS = "FPV"


class Spec(BaseModel):
    """Base of all specs: unknown keys are errors, values do not change after construction."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class Seq2SeqSpec(Spec):
    """An encoder-decoder given by its layer mix (HT, PHT, VHT, the flat Transformer, and every mixture of them).

    Encoder letters: S flat self-attention, L local (HT eq. 11-12), G global (HT eq. 13-24).
    Decoder letters: F flat cross-attention, P parallel (PHT eq. 7-10), V vertical (VHT eq. 11-13).
    """

    system: Literal["seq2seq"] = "seq2seq"
    encoder: str = Field("LLL", description="one letter a layer: S, L or G")
    decoder: str = Field("PPP", description="one letter a layer: F, P or V")
    vocabulary: int = Field(32000, gt=8, description="number of pieces")
    width: int = Field(256, gt=0, description="D")
    ffn: int = Field(1024, gt=0, description="hidden width of the feed-forward networks")
    heads: int = Field(8, gt=0, description="H of self- and cross-attention")
    pooling_heads: int = Field(8, gt=0, description="heads of the multi-head pooling in G layers and of Phi")
    graph_heads: int = Field(0, ge=0, description="heads of each G layer replaced by a given graph (HT eq. 24)")
    norm: Literal["pre", "post"] = "pre"
    positions: Literal["flat", "paragraph", "2d"] = Field(
        "2d", description="position in the whole source, within the paragraph, or within it and its rank (HT eq. 9)"
    )
    sinusoid: Literal["interleaved", "halves"] = Field(
        "interleaved", description="sin and cos in turn (eq. 7-8), or all sines then all cosines (PHT's code)"
    )
    form: Literal["code", "paper"] = Field(
        "code", description="where a paper and its published code differ (fusion of G and P layers): which one"
    )
    tied_output: bool = Field(True, description="the output layer shares the embedding")
    dropout: float = Field(0.1, ge=0, lt=1)
    attention_dropout: float = Field(0.1, ge=0, lt=1, description="dropout on attention weights")
    ffn_dropout: float = Field(0.0, ge=0, lt=1, description="dropout on hidden units of feed-forward networks")

    @property
    def needs_graph(self) -> bool:
        """Whether a source must come with a graph between its paragraphs."""
        return self.graph_heads > 0

    @model_validator(mode="after")
    def _check(self) -> "Seq2SeqSpec":
        for name, mix, letters in (
            ("encoder", self.encoder, ENCODER_LETTERS),
            ("decoder", self.decoder, DECODER_LETTERS),
        ):
            if not mix or set(mix) - set(letters):
                raise ValueError(f"{name} {mix!r} must be one or more of the letters {', '.join(letters)}")
        for name in ("heads", "pooling_heads"):
            if self.width % getattr(self, name):
                raise ValueError(f"width {self.width} is not a multiple of {name} {getattr(self, name)}")
        if self.width % 4:
            raise ValueError(f"width {self.width} must be a multiple of 4 (two sinusoids side by side)")
        if self.positions == "flat" and set(self.encoder) != {"S"}:
            raise ValueError(f"positions 'flat' need an encoder of S layers only, not {self.encoder!r}")
        if self.graph_heads and ("G" not in self.encoder or self.graph_heads > self.pooling_heads):
            raise ValueError(f"graph_heads {self.graph_heads} need G layers with at least as many pooling_heads")
        return self


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


def _system(value: Any) -> str:
    return value.get("system", "seq2seq") if isinstance(value, dict) else value.system


ModelSpec = Annotated[
    Annotated[Seq2SeqSpec, Tag("seq2seq")] | Annotated[PredictorSpec, Tag("predictor")], Discriminator(_system)
]
