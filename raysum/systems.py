"""The systems by name. What a system is made of and can do is told by its specification; no torch here.

A system of another package joins by an entry point of the group ``raysum.systems``: ``toy = toy.spec:ToySpec``.
"""

from collections.abc import Iterable, Iterator, Mapping
from functools import cache
from importlib import import_module
from importlib.metadata import entry_points
from typing import Annotated, Any, ClassVar, get_args

from pydantic import BaseModel, Field, field_validator

from raysum.errors import UserError

_SPECS = {
    "family": "raysum.models.specs.family:FamilySpec",
    "tdmca": "raysum.models.specs.summarizers:TdmcaSpec",
    "txl": "raysum.models.specs.summarizers:TxlSpec",
    "graphsum": "raysum.models.specs.summarizers:GraphSumSpec",
    "hibert": "raysum.models.specs.scorers:HibertSpec",
    "bert": "raysum.models.specs.scorers:BertSpec",
    "ranker": "raysum.models.specs.scorers:RankerSpec",
    "extractor": "raysum.models.specs.scorers:ExtractorSpec",
    "predictor": "raysum.models.specs.scorers:PredictorSpec",
}
# Systems of which nothing is trained: what they are is told by ``raysum.extract.systems.Extractive``.
_EXTRACTIVE = {
    "lead": "raysum.extract.systems:Lead",
    "lead3": "raysum.extract.systems:Lead3",
    "lexrank": "raysum.extract.systems:LexRank",
    "mmr": "raysum.extract.systems:Mmr",
    "oracle": "raysum.extract.systems:Oracle",
}
PAPER = "-paper"  # ends the name of a system that is evaluated as in the papers: word-cut at the reference's length
DEFAULT = "family"
_FORMER = {"seq2seq": "family"}  # names in configs written before


# Upper bounds are far above what any machine takes.
Size = Annotated[int, Field(gt=0, le=10**6)]  # of what is held at one time: a width, tokens, paragraphs, beams
Layers = Annotated[int, Field(gt=0, le=1000)]
Weight = Annotated[float, Field(ge=0, le=10**6)]


class Checked(BaseModel, extra="forbid", frozen=True, allow_inf_nan=False):
    """Unknown keys are errors, and so is yes or no for a number, which would count as 1 or 0."""

    @field_validator("*", mode="before")
    @classmethod
    def _check_number(cls, value: Any, info: Any) -> Any:
        takes = list(_plain_types(cls.model_fields[info.field_name].annotation))
        given = value if isinstance(value, list | tuple) else [value]
        if any(isinstance(one, bool) for one in given) and {int, float} & {*takes} and not {bool, Any} & {*takes}:
            raise ValueError("must be a number, not true or false")
        return value


def _plain_types(annotation: Any) -> Iterator[Any]:
    """The types in ``annotation`` that have no parts."""
    for part in get_args(annotation):
        yield from _plain_types(part)
    if not get_args(annotation) and (isinstance(annotation, type) or annotation is Any):
        yield annotation


class Spec(Checked):
    """Hyper-parameters of a model, as fields (unknown keys are errors), and what holds for all models of its system.

    ``MODEL``, ``OBJECTIVE`` and ``KIND`` name its parts as ``module:name``; they are imported when they are needed:
    the torch module made of a spec; the module around it (``.model``) that turns a batch into a summed loss, made of
    the model and the label smoothing; the kind of rows that it reads (see ``raysum.stream.collators``).
    """

    MODEL: ClassVar[str]
    OBJECTIVE: ClassVar[str]
    KIND: ClassVar[str]

    PIECES: ClassVar[str | None] = None  # the only ones that it reads; those of a bert are read by no other

    # Instead of these three, where a system is trained at one go from texts: the function that does it with a config.
    TRAINER: ClassVar[str | None] = None
    # Of one that extracts: what has ``row(cluster)`` and ``scores(row)``, made of a run, a LoadConfig and a device.
    SCORER: ClassVar[str] = "raysum.decode.sentences:SentenceScorer"

    # What can be done with it. One that summarizes has the face of ``raysum.models.generator.Generator``.
    summarizes: ClassVar[bool] = False
    ranks: ClassVar[bool] = False  # scores paragraphs by what they hold of a summary
    predicts_attention: ClassVar[bool] = False  # of a summarizing model, to each paragraph
    attends_to_paragraphs: ClassVar[bool] = False  # its attention to paragraphs can be asked for
    attends_to_tokens: ClassVar[bool] = False  # likewise, by every layer to every source token
    recomputes: ClassVar[bool] = True  # its layers give the same when they are computed again

    system: str
    width: int

    @property
    def needs_graph(self) -> bool:
        """Whether a source must come with a graph between its paragraphs."""
        return False

    @property
    def extracts(self) -> bool:
        """Whether it scores sentences, of which the best are a summary. It reads rows of kind ``extraction``, and its
        model has ``sentence_scores(batch)``, [P] of all sentences in a batch of its kind, one row after the other."""
        return False

    @property
    def attending_layers(self) -> int:
        """How many layers have an attention to paragraphs that can be asked for by itself."""
        return 0

    @property
    def joins_paragraphs(self) -> bool:
        """Whether it reads its paragraphs as one sequence, joined by marks."""
        return False

    @property
    def places(self) -> int | None:
        """The most tokens, with marks, that are read as one sequence; None where any number is."""
        return None

    def serves(self, name: str, other: "Spec") -> str | None:
        """What the parameter ``name`` of this model is called in the one of ``other``, which may begin with it; None
        where it is of no use there."""
        return name

    def fitted(self, tokenizer: Any) -> "Spec":
        """This spec for a dataset of that ``tokenizer``, whatever it said before of the ids that there are and of
        marks. Raises UserError where it is of other pieces than the model reads."""
        self.check_pieces(tokenizer)
        told = {"vocabulary": len(tokenizer), "marks": tokenizer.marks}
        return self.model_copy(update={name: told[name] for name in told.keys() & type(self).model_fields.keys()})

    def check_pieces(self, tokenizer: Any) -> None:
        told = f"the dataset is in {tokenizer.pieces} pieces, and a {self.system} reads"
        if self.PIECES and tokenizer.pieces != self.PIECES:
            raise UserError(f"{told} {self.PIECES} ones: prepare it with --vocab FOLDER, that of its weights")
        if not self.PIECES and tokenizer.pieces == "WordPiece":
            raise UserError(f"{told} SentencePiece ones, or those of a model that writes: prepare it with others")

    def published(self, config: Mapping[str, Any], names: Iterable[str]) -> dict[str | None, str]:
        """What stands for each parameter of this model among the ``names`` of published weights; ``config`` is what
        their config.json says. Raises UserError, without the folder, where they are of another model."""
        raise UserError(f"is no run, and a {self.system} begins with the weights of a run alone")


def names() -> list[str]:
    """All systems, those of other packages last."""
    return [*_known()]


def current(name: str) -> str:
    """What the system that a config calls ``name`` is called now."""
    return _FORMER.get(str(name), str(name))


def spec_class(name: str) -> type[Spec]:
    """The specification of the system ``name``. Raises ValueError naming the systems there are."""
    name = current(name)
    if name not in _known():
        raise ValueError(f"no system {name!r}; there are {', '.join(_known())}")
    return _load(_known()[name])


def spec_classes() -> Iterator[type[Spec]]:
    yield from map(spec_class, names())


def extractive_names() -> list[str]:
    """The systems that take texts of the source and need no training."""
    return [*_EXTRACTIVE]


def paper_baseline_names() -> list[str]:
    """The baselines of the papers' tables, which are evaluated but not served."""
    return [f"lead{PAPER}", f"lexrank{PAPER}"]


def extractive(name: str) -> Any:
    """The one of them that is called ``name``."""
    return _load(_EXTRACTIVE[name])()


def build(spec: Spec) -> Any:
    """The model of ``spec``, with fresh weights; seed torch before for repeatable ones."""
    return _load(spec.MODEL)(spec)


def objective(spec: Spec, model: Any, smoothing: float) -> Any:
    """What trains ``model``: a module with the model as ``.model`` that turns a batch into a loss sum."""
    return _load(spec.OBJECTIVE)(model, smoothing)


def kind(spec: Spec) -> Any:
    """How rows reach the model of ``spec``: a ``raysum.stream.collators.Kind``."""
    return _load(spec.KIND).of(spec)


def parameters(spec: Spec) -> dict[str, Any]:
    """Names and shapes of what is trained in the model of ``spec``, as tensors for which nothing is allocated; none of
    what is trained at one go."""
    if spec.TRAINER:
        return {}
    import torch

    with torch.device("meta"):
        return dict(build(spec).named_parameters())


def count_parameters(spec: Spec) -> int:
    """Trainable numbers of the model of ``spec``; tied matrices count once."""
    return sum(parameter.numel() for parameter in parameters(spec).values())


@cache
def _known() -> dict[str, str]:
    return _SPECS | {point.name: point.value for point in entry_points(group="raysum.systems")}


@cache
def _load(path: str) -> Any:
    module, _, name = path.partition(":")
    return getattr(import_module(module), name)
