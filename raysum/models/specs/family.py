"""The Transformers' specification: what all summarizing ones share, and the family's, given by its layer mix."""

from typing import ClassVar, Literal

from pydantic import Field, model_validator

from raysum.models.specs.backbone import Backbone
from raysum.systems import Size, Spec
from raysum.tokenizers.special_tokens import PUBLISHED, SpecialTokens


class TransformerSpec(Spec):
    """What all summarizing Transformers have."""

    OBJECTIVE: ClassVar = "raysum.models.generator:LanguageModelling"
    KIND: ClassVar = "raysum.stream.collators.summarization:Summarization"
    summarizes: ClassVar = True
    attends_to_paragraphs: ClassVar = True

    vocabulary: int = Field(32000, gt=8, le=100_000_000, description="number of pieces")
    marks: SpecialTokens = Field(
        PUBLISHED, description="ids that tell where texts begin and end: those of the vocabulary"
    )
    width: Size = Field(256, description="D")
    ffn: Size = Field(1024, description="hidden width of the feed-forward networks")
    heads: Size = Field(8, description="H of self- and cross-attention")
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

    @model_validator(mode="after")
    def _check_width(self) -> "TransformerSpec":
        made = getattr(self, "backbone", None)
        if self.width % self.heads and not (made and made.head_width):
            raise ValueError(f"width {self.width} is not a multiple of heads {self.heads}")
        if self.width % 4:
            raise ValueError(f"width {self.width} must be a multiple of 4 (two sinusoids side by side)")
        return self


class FamilySpec(TransformerSpec):
    """An encoder-decoder given by its layer mix (HT, PHT, VHT, the flat Transformer, and every mixture of them).

    Encoder letters: S flat self-attention, L local (HT eq. 11-12), G global (HT eq. 13-24), W windows (LED).
    Decoder letters: F flat cross-attention, P parallel (PHT eq. 7-10), V vertical (VHT eq. 11-13).
    """

    MODEL: ClassVar = "raysum.models.family.model:Family"
    OBJECTIVE: ClassVar = "raysum.models.copying:Writing"
    attends_to_tokens: ClassVar = True

    system: Literal["family"] = "family"
    encoder: str = Field("LLL", max_length=1000, description="one letter a layer: S, L, G or W")
    decoder: str = Field("PPP", max_length=1000, description="one letter a layer: F, P or V")
    pooling_heads: Size = Field(8, description="heads of the multi-head pooling in G layers and of Phi")
    graph_heads: int = Field(0, ge=0, description="heads of each G layer replaced by a given graph (HT eq. 24)")
    copy_heads: int = Field(
        0,
        ge=0,
        description="heads of the last decoder layer by which source tokens are copied; 0 = no copying",
    )
    positions: Literal["flat", "paragraph", "2d"] = Field(
        "2d", description="position in the whole source, within the paragraph, or within it and its rank (HT eq. 9)"
    )
    form: Literal["code", "paper"] = Field(
        "code", description="where a paper and its published code differ (fusion of G and P layers): which one"
    )
    backbone: Backbone | None = Field(None, description="how layers of pretrained weights are made; None = the papers'")

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
    def places(self) -> int | None:
        made = self.backbone
        return made.source_places - made.place_offset if made and made.places == "learned" else None

    def serves(self, name: str, other: Spec) -> str | None:
        """Between pretrained layers others may be inserted: each kind is counted by itself."""
        side, _, rest = name.partition(".")
        number, _, within = rest.partition(".")
        if side != "encoder" or not (self.backbone and getattr(other, "backbone", None)):
            return name
        own, theirs = ([letter == "G" for letter in mix] for mix in (self.encoder, getattr(other, "encoder", "")))
        is_new = own[int(number)]
        places = [place for place, new in enumerate(theirs) if new == is_new]
        turn = own[: int(number)].count(is_new)
        return f"encoder.{places[turn]}.{within}" if turn < len(places) else None

    @model_validator(mode="after")
    def _check(self) -> "FamilySpec":
        check_letters("encoder", self.encoder, "SLGW" if self.backbone and self.backbone.window else "SLG")
        check_letters("decoder", self.decoder, "FPV")
        if self.width % self.pooling_heads:
            raise ValueError(f"width {self.width} is not a multiple of pooling_heads {self.pooling_heads}")
        if self.positions == "flat" and set(self.encoder) - {"S", "W"}:
            raise ValueError(f"positions 'flat' need an encoder of S or W layers only, not {self.encoder!r}")
        if self.positions != "flat" and "W" in self.encoder:
            raise ValueError(f"W layers need positions 'flat' and no other letter but S, not {self.encoder!r}")
        if self.graph_heads and ("G" not in self.encoder or self.graph_heads > self.pooling_heads):
            raise ValueError(f"graph_heads {self.graph_heads} need G layers with at least as many pooling_heads")
        if self.copy_heads > self.heads:
            raise ValueError(f"copy_heads {self.copy_heads} are more than heads {self.heads}")
        return self


def check_letters(name: str, mix: str, letters: str) -> None:
    """Raises ValueError where ``mix`` is empty or has other ``letters``."""
    if not mix or set(mix) - set(letters):
        raise ValueError(f"{name} {mix!r} must be one or more of the letters {', '.join(letters)}")
