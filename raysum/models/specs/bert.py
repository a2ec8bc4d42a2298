"""The specification of BERT as a labeller of sentences."""

from collections.abc import Iterable, Mapping
from typing import Any, ClassVar, Literal

from pydantic import Field, model_validator

from raysum.errors import UserError
from raysum.systems import Layers, Size, Spec

SIZES = {  # ours, and what a published config.json calls them
    "vocabulary": "vocab_size",
    "layers": "num_hidden_layers",
    "width": "hidden_size",
    "ffn": "intermediate_size",
    "heads": "num_attention_heads",
    "positions": "max_position_embeddings",
}
_ONLY = {"hidden_act": "gelu", "layer_norm_eps": 1e-12, "position_embedding_type": "absolute", "type_vocab_size": 2}
_FORMER = {"LayerNorm.gamma": "LayerNorm.weight", "LayerNorm.beta": "LayerNorm.bias"}  # in the first published files


class BertSpec(Spec):
    """BERT (Devlin et al. 2019) that labels the sentences to take: the baseline of Zhang et al. 2019, section 4.4.

    It begins with published weights (``train.start=FOLDER``) and reads rows in the word pieces of these.
    """

    MODEL: ClassVar = "raysum.models.systems.bert:Bert"
    OBJECTIVE: ClassVar = "raysum.models.systems.hibert:Labelling"
    KIND: ClassVar = "raysum.stream.collators.sentences:Blocks"
    PIECES: ClassVar = "WordPiece"
    extracts: ClassVar = True

    system: Literal["bert"] = "bert"
    vocabulary: int = Field(30522, gt=0, le=100_000_000, description="word pieces, those of the dataset at least")
    layers: Layers = 12
    width: Size = Field(768, description="D")
    ffn: Size = Field(3072, description="hidden width of the feed-forward networks")
    heads: Size = 12
    positions: Size = Field(512, description="tokens that can be read together")
    window: Size = Field(10, description="sentences of a block, which are read together")
    cls: int = Field(101, ge=0, description="id of [CLS], which opens a sentence; that of the dataset's vocabulary")
    sep: int = Field(102, ge=0, description="id of [SEP], which closes it; likewise")
    dropout: float = Field(0.1, ge=0, lt=1)
    attention_dropout: float = Field(0.1, ge=0, lt=1, description="dropout on attention weights")

    @model_validator(mode="after")
    def _check_sizes(self) -> "BertSpec":
        if self.width % self.heads:
            raise ValueError(f"width {self.width} is not a multiple of heads {self.heads}")
        return self

    def fitted(self, tokenizer: Any) -> "BertSpec":
        """A model may have more pieces than its tokenizer."""
        self.check_pieces(tokenizer)
        (cls,), (sep,) = tokenizer.marks.prefix, tokenizer.marks.suffix
        return self.model_copy(update={"vocabulary": max(self.vocabulary, len(tokenizer)), "cls": cls, "sep": sep})

    def published(self, config: Mapping[str, Any], names: Iterable[str]) -> dict[str | None, str]:
        if config.get("model_type") != "bert":
            raise UserError(f"holds a model of type {config.get('model_type')!r}; this one begins with a bert alone")
        other = [f"{name} {config[name]!r}" for name, value in _ONLY.items() if config.get(name, value) != value]
        if other:
            raise UserError(f"holds a bert with {other[0]}, which this one has not")
        sizes = {own: config.get(name) for own, name in SIZES.items()}
        wrong = [f"model.{name}={size}" for name, size in sizes.items() if size != getattr(self, name)]
        if wrong:
            raise UserError(f"holds a model of other sizes; give {' '.join(wrong)}")
        return {_own_name(name): name for name in names}


def _own_name(name: str) -> str:
    for former, now in _FORMER.items():
        name = name.replace(former, now)
    return f"bert.{name.removeprefix('bert.')}"
