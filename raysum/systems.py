"""The registry of systems. A system's specification names its parts and abilities; no torch here.

raysum and other packages register by entry points, those of raysum are in setup.cfg:

* ``raysum.systems``: the ``Spec`` class of a trained system (``toy = toy.spec:ToySpec``),
* ``raysum.extractive``: the class of a system without training (see ``raysum.extract.systems.Extractive``),
* ``raysum.kinds``, ``raysum.sentence_scorers`` and ``raysum.trainers``: parts that a ``Spec`` names.
"""

from collections.abc import Iterable, Mapping
from functools import cache
from importlib import import_module
from importlib.metadata import entry_points
from typing import Annotated, Any, ClassVar

from pydantic import BaseModel, Field, field_validator, model_validator

from raysum.errors import UserError

PAPER = "-paper"  # suffix of a system that is evaluated as in the papers: cut to the number of words of the reference
DEFAULT = "family"
_FORMER = {"seq2seq": "family"}  # names in older configs


# Upper bounds are far above what any machine takes.
Size = Annotated[int, Field(gt=0, le=10**6)]  # of a width, tokens, paragraphs, beams
Layers = Annotated[int, Field(gt=0, le=1000)]
Weight = Annotated[float, Field(ge=0, le=10**6)]


class Checked(BaseModel, extra="forbid", frozen=True, allow_inf_nan=False):
    """A strict section: unknown keys are errors, and so is true or false for a number, which would count as 1 or 0."""

    @field_validator("*", mode="wrap")
    @classmethod
    def _check_number(cls, value: Any, validate: Any) -> Any:
        result = validate(value)
        pairs = zip(value, result, strict=False) if isinstance(value, list | tuple) else [(value, result)]
        if any(isinstance(given, bool) and type(read) in (int, float) for given, read in pairs):
            raise ValueError("must be a number, not true or false")
        return result


class Spec(Checked):
    """The options of a model, as fields (unknown keys are errors), and the abilities of all models of its system.

    ``MODEL``, ``OBJECTIVE`` and ``KIND`` name its parts as ``module:name`` or, except for the first two, by the name
    of an entry point. They are imported on demand: the torch module, built from a spec; the module around it
    (``.model``) that turns a batch into a summed loss, built from the model and the label smoothing; the kind of rows
    that it trains on (see ``raysum.stream.collators``).
    """

    MODEL: ClassVar[str]
    OBJECTIVE: ClassVar[str]
    KIND: ClassVar[str]

    PIECES: ClassVar[str | None] = None  # the only pieces that it reads; no other system reads a bert's

    # Instead of these three, for a system trained in one call from texts: the function that trains it with a config.
    TRAINER: ClassVar[str | None] = None
    # For one that extracts: a class with ``row(cluster)`` and ``scores(row)``, built from run, LoadConfig and device.
    SCORER: ClassVar[str] = "sentences"

    # Abilities. One that summarizes has the interface of ``raysum.models.generator.Generator``.
    summarizes: ClassVar[bool] = False
    ranks: ClassVar[bool] = False  # scores paragraphs by their share of a summary
    predicts_attention: ClassVar[bool] = False  # a summarizing model's attention to each paragraph
    attends_to_paragraphs: ClassVar[bool] = False  # it can report its attention to paragraphs
    attends_to_tokens: ClassVar[bool] = False  # every layer can report its attention to every source token
    recomputes: ClassVar[bool] = True  # its layers can be computed twice (``train.recompute``)
    compiles: ClassVar[bool] = True  # layers use no sizes or lengths as numbers (``train.compile``, CUDA graphs)

    system: str
    width: int

    @model_validator(mode="after")
    def _check_heads(self) -> "Spec":
        sizes, backbone = vars(self), getattr(self, "backbone", None)
        has_own_width = backbone is not None and backbone.head_width is not None
        for name in ("pooling_heads",) if has_own_width else ("heads", "pooling_heads"):
            if self.width % sizes.get(name, 1):
                raise ValueError(f"width {self.width} is not a multiple of {name} {sizes[name]}")
        return self

    @property
    def needs_graph(self) -> bool:
        """Whether a source must have a graph between its paragraphs."""
        return False

    @property
    def extracts(self) -> bool:
        """Whether it scores sentences and the best ones are the summary.

        It trains on rows of kind ``extraction``, and its model has ``sentence_scores(batch)``, which returns [P] for
        all sentences of a batch, row after row.
        """
        return False

    @property
    def attending_layers(self) -> int:
        """The number of layers that can report their attention to paragraphs separately."""
        return 0

    @property
    def joins_paragraphs(self) -> bool:
        """Whether it reads its paragraphs as one sequence, joined by special tokens."""
        return False

    @property
    def global_ids(self) -> tuple[int, ...]:
        """The tokens of a source to which all tokens attend, besides the first one, in W layers."""
        return ()

    @property
    def target_segment(self) -> int | None:
        """The tokens of a target that one pass of the layers reads; None = all of them."""
        return None

    @property
    def max_positions(self) -> int | None:
        """The most tokens, with special tokens, of a sequence; None = unlimited."""
        return None

    def name_in(self, name: str, other: "Spec") -> str | None:
        """Return the name of the parameter ``name`` in the model of ``other``, which it may initialize, or None."""
        return name

    def with_tokenizer(self, tokenizer: Any) -> "Spec":
        """Return this spec with the vocabulary size and special tokens of a dataset's ``tokenizer``.

        Raises UserError if the model does not read its kind of pieces.
        """
        self.check_pieces(tokenizer)
        values = {"vocabulary": len(tokenizer), "marks": tokenizer.marks}
        return self.model_copy(update={name: values[name] for name in values.keys() & type(self).model_fields.keys()})

    def check_pieces(self, tokenizer: Any) -> None:
        """Raise UserError if the model does not read the pieces of ``tokenizer``."""
        problem = f"the dataset is in {tokenizer.pieces} pieces, but a {self.system} needs"
        if self.PIECES and tokenizer.pieces != self.PIECES:
            raise UserError(f"{problem} {self.PIECES} pieces: prepare it with --vocab FOLDER (its weights)")
        if not self.PIECES and tokenizer.pieces == "WordPiece":
            raise UserError(f"{problem} SentencePiece or a summarizer's pieces: prepare it with another --vocab")

    def published(self, config: Mapping[str, Any], names: Iterable[str]) -> dict[str | None, str]:
        """Return each parameter's published name, from the ``names`` of published weights and their config.json.

        Raises UserError, whose message starts after the folder, if the weights are of another model.
        """
        raise UserError(f"is not a run: a {self.system} can only start from the weights of a run")


def names() -> list[str]:
    """Return all systems in the order of the alphabet, the default one first."""
    return sorted(_registered("raysum.systems"), key=lambda name: (name != DEFAULT, name))


def current(name: str) -> str:
    """Return the current name of the system ``name``, which an older config may contain."""
    return _FORMER.get(str(name), str(name))


def spec_class(name: str) -> type[Spec]:
    """Return the specification of the system ``name``. Raises ValueError with the known systems."""
    name = current(name)
    if name not in names():
        raise ValueError(f"no system {name!r}: choose one of {', '.join(names())}")
    return part("raysum.systems", name)


def spec_classes() -> list[type[Spec]]:
    return [spec_class(name) for name in names()]


def extractive_names() -> list[str]:
    """Return the systems that extract texts of the source without training."""
    return [*_registered("raysum.extractive")]


def paper_baseline_names() -> list[str]:
    """Return the baselines of the papers' tables, which are evaluated but not served."""
    return [f"lead{PAPER}", f"lexrank{PAPER}"]


def extractive(name: str) -> Any:
    """Return the extractive system ``name``."""
    return part("raysum.extractive", name)()


def build(spec: Spec) -> Any:
    """Return the model of ``spec`` with fresh weights; seed torch first for repeatable ones."""
    return _load(spec.MODEL)(spec)


def objective(spec: Spec, model: Any, smoothing: float) -> Any:
    """Return the module that trains ``model`` (as ``.model``) and turns a batch into a loss sum."""
    return _load(spec.OBJECTIVE)(model, smoothing)


def kind(spec: Spec) -> Any:
    """Return how rows become batches for the model of ``spec``: a ``raysum.stream.collators.Kind``."""
    return part("raysum.kinds", spec.KIND).of(spec)


def parameters(spec: Spec) -> dict[str, Any]:
    """Return the trained parameters of the model of ``spec`` by name, as tensors on the meta device.

    Empty for systems that are trained in one call.
    """
    if spec.TRAINER:
        return {}
    import torch

    with torch.device("meta"):
        return dict(build(spec).named_parameters())


def count_parameters(spec: Spec) -> int:
    """Return the number of trainable numbers of the model of ``spec``; tied matrices count once."""
    return sum(parameter.numel() for parameter in parameters(spec).values())


def part(group: str, name: str) -> Any:
    """Return what is registered as ``name`` in the entry points of ``group``, or what is at ``module:name``."""
    return _load(name if ":" in name else _registered(group)[name])


@cache
def _registered(group: str) -> dict[str, str]:
    """Return where the entry points of ``group`` are, as ``module:name``, by name.

    Raises UserError if raysum's own are missing, as after an update of its code without an installation.
    """
    registered = {point.name: point.value for point in entry_points(group=group)}
    if not any(path.startswith("raysum.") for path in registered.values()):
        raise UserError(f"raysum's parts of {group} are not installed: install raysum again (pip install -e .)")
    return registered


@cache
def _load(path: str) -> Any:
    """Return what is at ``module:name``. Raises UserError if an installation names a module that has moved."""
    module, _, name = path.partition(":")
    try:
        return getattr(import_module(module), name)
    except ModuleNotFoundError as error:
        if error.name is None or not module.startswith(error.name):
            raise
        raise UserError(f"there is no module {error.name}: install its package again (pip install -e .)") from None
