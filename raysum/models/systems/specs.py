"""The specifications of the systems outside the family. No torch here."""

from collections.abc import Iterable, Mapping
from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field, model_validator

from raysum.errors import UserError
from raysum.models.family.spec import TransformerSpec, check_letters
from raysum.systems import Layers, Size, Spec, Weight
from raysum.tokenizers.special_tokens import PUBLISHED, SpecialTokens

SIZES = {  # our names, and those of config.json
    "vocabulary": "vocab_size",
    "layers": "num_hidden_layers",
    "width": "hidden_size",
    "ffn": "intermediate_size",
    "heads": "num_attention_heads",
    "positions": "max_position_embeddings",
}
_ONLY = {"hidden_act": "gelu", "layer_norm_eps": 1e-12, "position_embedding_type": "absolute", "type_vocab_size": 2}
_RENAMED = {"LayerNorm.gamma": "LayerNorm.weight", "LayerNorm.beta": "LayerNorm.bias"}  # since the first files


class GraphSumSpec(TransformerSpec):
    """GraphSum (Li et al. 2020): a graph guides the attention between paragraphs and from the target to them."""

    MODEL: ClassVar = "raysum.models.systems.graphsum:GraphSum"
    attends_to_tokens: ClassVar = True
    needs_graph: ClassVar = True

    system: Literal["graphsum"] = "graphsum"
    local_layers: Layers = Field(6, description="self-attention inside paragraphs")
    graph_layers: Layers = Field(2, description="graph-informed self-attention between paragraphs")
    decoder_layers: Layers = 8
    sigma: float = Field(
        2.0, ge=1e-6, le=1e6, description="width of the Gaussian bias that keeps attention near the graph"
    )
    form: Literal["code", "paper"] = Field(
        "code", description="the bias for similarity g: -(1 - g)^2 / (2 (sigma / 2)^2), or -(1 - g^2) / (2 sigma^2)"
    )

    @property
    def attending_layers(self) -> int:
        return self.decoder_layers


class TdmcaSpec(TransformerSpec):
    """T-DMCA (Liu et al. 2018, section 4.2.4): a decoder over source and target as one sequence.

    Letters: L attention inside blocks, M attention to keys and values that a strided convolution compresses.
    """

    MODEL: ClassVar = "raysum.models.systems.tdmca:Tdmca"

    compiles: ClassVar = False

    system: Literal["tdmca"] = "tdmca"
    layers: str = Field("LMLML", max_length=1000, description="one letter per layer: L or M")
    block: Size = Field(256, description="tokens of a block of an L layer")
    compression: int = Field(3, gt=1, le=1_000_000, description="width and stride of the convolution of M layers")
    source_loss: Weight = Field(0.0, description="weight of a source token in the training loss; a target token has 1")

    @property
    def attending_layers(self) -> int:
        return len(self.layers)

    @model_validator(mode="after")
    def _check(self) -> "TdmcaSpec":
        check_letters("layers", self.layers, "LM")
        return self


class TxlSpec(TransformerSpec):
    """Transformer-XL (Dai et al. 2019): a decoder that reads source and target segment by segment."""

    MODEL: ClassVar = "raysum.models.systems.txl:TransformerXL"

    recomputes: ClassVar = False  # its layers remember earlier segments
    compiles: ClassVar = False

    system: Literal["txl"] = "txl"
    layers: Layers = 3
    segment: Size = Field(512, description="tokens of a segment")
    memory: Size = Field(512, description="states before a segment to which it attends")
    source_loss: Weight = Field(0.0, description="weight of a source token in the training loss; a target token has 1")

    @property
    def target_segment(self) -> int:
        return self.segment

    @property
    def attending_layers(self) -> int:
        return self.layers


class RankerSpec(Spec):
    """The paragraph ranker (HT eq. 1-6): two LSTMs, max pooling, tanh, sigmoid."""

    MODEL: ClassVar = "raysum.models.systems.paragraph_scorers:Ranker"
    OBJECTIVE: ClassVar = "raysum.models.systems.paragraph_scorers:ParagraphRanking"
    KIND: ClassVar = "ranking"
    SCORER: ClassVar = "ranker"
    ranks: ClassVar = True
    extracts: ClassVar = True

    system: Literal["ranker"] = "ranker"
    vocabulary: int = Field(32000, gt=8, le=100_000_000, description="vocabulary size")
    marks: SpecialTokens = Field(PUBLISHED, description="ids of the vocabulary's special tokens")
    width: Size = Field(256, description="width of the word embeddings")
    hidden: Size = Field(256, description="width of both LSTMs and of the matching features")
    dropout: float = Field(0.2, ge=0, lt=1, description="before all linear layers")


class PredictorSpec(Spec):
    """The attention predictor (PHT paper, section 4.2.1): Transformer layers over paragraph embeddings, softmax."""

    MODEL: ClassVar = "raysum.models.systems.paragraph_scorers:AttentionPredictor"
    OBJECTIVE: ClassVar = "raysum.models.systems.paragraph_scorers:AttentionPrediction"
    KIND: ClassVar = "alignment"
    predicts_attention: ClassVar = True
    norm: ClassVar = "post"
    attention_dropout: ClassVar = 0.0  # the published code applies dropout to sub-layer outputs only
    ffn_dropout: ClassVar = 0.0

    system: Literal["predictor"] = "predictor"
    layers: Layers = 2
    width: Size = 256
    ffn: Size = 1024
    heads: Size = 4
    dropout: float = Field(0.5, ge=0, lt=1)


Target = Literal["rouge2", "rougeL", "support"]


class ExtractorSpec(Spec):
    """Boosted regression trees over features of a sentence, which predict its share of a summary.

    scikit-learn trains them in one call, not step by step.
    """

    TRAINER: ClassVar = "extractor"
    SCORER: ClassVar = "features"
    extracts: ClassVar = True

    system: Literal["extractor"] = "extractor"
    target: Target = Field(
        "rouge2",
        description="what is predicted of a sentence, per word: its bigrams in a reference, its words in a longest "
        "common subsequence (rougeL), or the reference's names, numbers and words that it has (support)",
    )
    width: Size = Field(1 << 18, description="size of the tables of cue words")
    cue_prior: float = Field(100, ge=0, le=10**6, description="sentences with the mean score that each cue starts with")
    trees: Size = Field(200, description="regression trees")
    leaves: int = Field(31, ge=2, le=1000, description="most leaves of a tree")
    leaf_sentences: Size = Field(50, description="fewest training sentences of a leaf")
    rate: Annotated[float, Field(gt=0, le=1)] = Field(0.07, description="learning rate: the weight of each tree")
    feature_share: Annotated[float, Field(gt=0, le=1)] = Field(0.3, description="share of features of each split")
    examples: Size = Field(2000, description="most training clusters, sampled evenly; more take longer")


class HibertSpec(TransformerSpec):
    """HIBERT (Zhang et al. 2019): a Transformer over the words of each sentence, another over the sentences.

    It first learns to predict masked sentences, then, from those weights (``train.init_from``), to select sentences.
    """

    MODEL: ClassVar = "raysum.models.systems.labellers:Hibert"
    OBJECTIVE: ClassVar = "raysum.models.systems.labellers:hibert_objective"
    KIND: ClassVar = "sentences"
    summarizes: ClassVar = False
    attends_to_paragraphs: ClassVar = False

    system: Literal["hibert"] = "hibert"
    task: Literal["extraction", "pretraining"] = Field(
        "extraction", description="label the sentences to take (eq. 8), or predict masked sentences (eq. 3-7)"
    )
    layers: Layers = Field(6, description="layers of the sentence and document Transformers, and of the decoder")
    window: Size = Field(30, description="sentences that the document Transformer reads together")
    norm: Literal["pre", "post"] = "post"

    @property
    def extracts(self) -> bool:
        return self.task == "extraction"

    def name_in(self, name: str, other: Spec) -> str | None:
        """Return the other model's name of a parameter.

        The layers over words initialize the local layers of an encoder, in order, if they compute the same.
        """
        if other.system == self.system:
            return name
        part, _, rest = name.partition(".")
        if part != "sentence":
            return name if part == "embedding" else None
        number, _, inside = rest.partition(".")
        local = [layer for layer, letter in enumerate(getattr(other, "encoder", "")) if letter == "L"]
        is_equivalent = all(getattr(self, key) == getattr(other, key, None) for key in ("norm", "heads"))
        return f"encoder.{local[int(number)]}.block.{inside}" if is_equivalent and int(number) < len(local) else None


class BertSpec(Spec):
    """BERT (Devlin et al. 2019) that labels the sentences to take: the baseline of Zhang et al. 2019, section 4.4.

    It starts from published weights (``train.init_from=FOLDER``), whose word pieces the dataset must use.
    """

    MODEL: ClassVar = "raysum.models.systems.labellers:Bert"
    OBJECTIVE: ClassVar = "raysum.models.systems.labellers:Labelling"
    KIND: ClassVar = "blocks"
    PIECES: ClassVar = "WordPiece"
    extracts: ClassVar = True

    system: Literal["bert"] = "bert"
    vocabulary: int = Field(30522, gt=0, le=100_000_000, description="vocabulary size, at least the dataset's")
    layers: Layers = 12
    width: Size = Field(768, description="D")
    ffn: Size = Field(3072, description="hidden width of the feed-forward networks")
    heads: Size = 12
    positions: Size = Field(512, description="most tokens of a block")
    window: Size = Field(10, description="sentences of a block, which are read together")
    cls: int = Field(101, ge=0, description="id of [CLS], which begins a sentence, in the dataset's vocabulary")
    sep: int = Field(102, ge=0, description="id of [SEP], which ends a sentence, in the dataset's vocabulary")
    dropout: float = Field(0.1, ge=0, lt=1)
    attention_dropout: float = Field(0.1, ge=0, lt=1, description="dropout on attention weights")

    def with_tokenizer(self, tokenizer: Any) -> "BertSpec":
        """Return this spec for a ``tokenizer``. The model may have a larger vocabulary."""
        self.check_pieces(tokenizer)
        (cls,), (sep,) = tokenizer.marks.prefix, tokenizer.marks.suffix
        return self.model_copy(update={"vocabulary": max(self.vocabulary, len(tokenizer)), "cls": cls, "sep": sep})

    def published(self, config: Mapping[str, Any], names: Iterable[str]) -> dict[str | None, str]:
        if config.get("model_type") != "bert":
            raise UserError(f"contains a model of type {config.get('model_type')!r}: name the folder of a bert")
        other = [f"{name} {config[name]!r}" for name, value in _ONLY.items() if config.get(name, value) != value]
        if other:
            raise UserError(f"contains a bert with {other[0]}, which is not supported: name the folder of another one")
        sizes = {own: config.get(name) for own, name in SIZES.items()}
        wrong = [f"model.{name}={size}" for name, size in sizes.items() if size != getattr(self, name)]
        if wrong:
            raise UserError(f"contains a model of other sizes: set {' '.join(wrong)}")
        return {_own_name(name): name for name in names}


def _own_name(name: str) -> str:
    for old, new in _RENAMED.items():
        name = name.replace(old, new)
    return f"bert.{name.removeprefix('bert.')}"
