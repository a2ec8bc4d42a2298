"""The schemas of requests and answers. Unknown fields and wrong types in requests are errors."""

from collections.abc import Iterator, Sequence
from typing import Annotated, Any, Literal

from pydantic import BaseModel, Discriminator, FailFast, Field, Tag, create_model, model_validator

from raysum.config.base import Section
from raysum.config.decoding import DECODE_ALIASES, DecodeConfig, ExtractConfig
from raysum.config.problems import did_you_mean
from raysum.decode.summary import Summary
from raysum.extract.parts import Part

_MOST_FIELDS = 10  # of an object with fewer known fields; avoids a long list of unknown fields
_LONGEST_NAME = 1000  # characters of a title or a document name
_LONGEST_FIELD = 40  # characters of an unknown field for which a suggestion is searched


class Strict(BaseModel, extra="forbid", strict=True):
    """Base class of request objects."""

    @model_validator(mode="before")
    @classmethod
    def _few(cls, values: Any) -> Any:
        if isinstance(values, dict) and len(values) > max(_MOST_FIELDS, len(cls.model_fields)):
            raise ValueError(f"{len(values)} fields, most of them unknown")
        return values


class Document(Strict):
    """A source text with its name, or a file."""

    source: str | None = Field(None, max_length=_LONGEST_NAME, description="name of the document, if it has one")
    text: str | None = None
    data: str | None = Field(
        None, description="instead of text: a file of any supported kind in base64, also as a data URL"
    )

    @model_validator(mode="after")
    def _complete(self) -> "Document":
        if (self.text is None) == (self.data is None):
            raise ValueError("needs either text or data")
        return self


def _form(document: Any) -> str:
    return "Document" if isinstance(document, dict | Document) else "str"


# A discriminator selects the type first, so that an error is reported once and for that type.
TextOrDocument = Annotated[Annotated[str, Tag("str")] | Annotated[Document, Tag("Document")], Discriminator(_form)]


# Decoding settings that requests cannot change: the server has loaded the ranker and allocated memory for them.
FIXED = ("ranker", "batch_examples", "source_paragraphs", "source_tokens")
_MOST = {"num_beams": 16, "max_length": 1000, "no_repeat_ngram_size": 20}  # upper limits for a request


def _options(section: type[Section]) -> Iterator[tuple[str, Any]]:
    """Yield the fields of ``section`` for a request: limited, with None for the server's setting."""
    for name, field in section.model_fields.items():
        if name not in FIXED:
            bounds = (field.annotation, *field.metadata, Field(le=_MOST.get(name)))
            bounded: Any = Annotated.__class_getitem__(bounds)  # type: ignore[attr-defined]
            yield name, (bounded | None, Field(None, description=field.description))


class _Renamed(Strict):
    @model_validator(mode="before")
    @classmethod
    def _rename(cls, values: Any) -> Any:
        """Accept names of other toolkits, as the command line does."""
        if not isinstance(values, dict):
            return values
        return {DECODE_ALIASES.get(name, name): value for name, value in values.items()}


Options = create_model(
    "Options",
    __base__=_Renamed,
    __doc__="Decoding settings of a request: those of trained runs, then those of systems that extract sentences.",
    **dict([*_options(DecodeConfig), *_options(ExtractConfig)]),
)


class SummarizeRequest(Strict):
    """A cluster of documents about one subject."""

    title: str = Field("", max_length=_LONGEST_NAME, description="the subject, if known; paragraphs are ranked by it")
    # Only the first error is reported: thousands would block the event loop for 0.4 s.
    documents: Annotated[list[TextOrDocument], FailFast()] = Field(
        min_length=1, description="texts, optionally with the names of their sources"
    )
    id: str | None = Field(None, max_length=200, description="repeated in the answer")
    model: str | None = Field(None, max_length=1000, description="one of /v1/models; null = the first one")
    outline: list[Part] | None = Field(None, description="parts beside the text, with citations, see `raysum.outline`")
    options: Options = Field(default_factory=Options)


def unknown(location: Sequence[str | int], asked: type[Strict] = SummarizeRequest) -> str:
    """Return the message for an unknown field at ``location`` (such as ``options``, its name) of ``asked``."""
    *above, name = map(str, location)
    if above == ["options"] and name in FIXED:
        return f"is a setting of the server: start it with --set {name}=..."
    part: Any = None if above else asked
    if above == ["options"]:
        part = Options
    elif above[:1] == ["documents"]:
        part = Document
    valid = [*part.model_fields, *(DECODE_ALIASES if part is Options else ())] if part else []
    if part is asked and name in {*Options.model_fields, *DECODE_ALIASES}:
        return f"unknown field, did you mean 'options.{name}'?"
    near = did_you_mean(name, valid) if len(name) <= _LONGEST_FIELD else ""
    return f"unknown field, {near}".rstrip(", ")


class Usage(BaseModel):
    source_tokens: int = Field(description="tokens of the sources that the model read")
    summary_tokens: int = Field(description="tokens of the summary")
    is_truncated: bool = Field(False, description="whether the summary was ended by the maximum length")


class ServedModel(BaseModel):
    run: str | None = Field(None, description="name of the run")
    step: int | str | None = Field(None, description="training step of its checkpoint, or the average of several")
    system: str | None = Field(None, description="the system, if it is not trained")


class SummaryAnswer(Summary):
    """A summary with citations, support and warnings."""

    model: ServedModel = Field(description="what wrote the summary")
    usage: Usage | None = Field(None, description="the tokens of the request; only trained models count them")


class Health(BaseModel):
    status: str
    run: str | None = Field(None, description="name of the served run")
    step: int | None = Field(
        None, description="training step of its checkpoint when the server started; GET /v1/model has the current one"
    )
    system: str | None = Field(None, description="the served system, if it is not trained")
    models: list[str] | None = Field(None, description="names of all models, the default one first, if several")

    def __str__(self) -> str:
        if self.models:
            return f"the models {', '.join(self.models)}"
        return self.system or f"the run {self.run}, step {self.step}"


class Readiness(BaseModel):
    status: Literal["ready"] = "ready"


class LayerMix(BaseModel):
    """The layers of a model, a letter each."""

    encoder: str
    decoder: str


class RejectedCheckpoint(BaseModel):
    """A better checkpoint that could not be loaded."""

    run: str
    step: int
    reason: str


class ModelCard(ServedModel):
    """The model that a replica has loaded."""

    mix: LayerMix | None = Field(None, description="its layers")
    beta: float | None = Field(None, description="weight of attention alignment")
    validation: dict[str, float] = Field({}, description="metrics of the validation at this step")
    loaded: float = Field(description="when the replica had loaded it, in seconds since 1970")
    load_seconds: float = Field(description="seconds that this took")
    rejected: RejectedCheckpoint | None = None


class ModelEntry(BaseModel):
    """A model in OpenAI's form."""

    id: str
    object: Literal["model"] = "model"
    created: int = Field(description="start of the service, in seconds since 1970")
    owned_by: Literal["raysum"] = "raysum"


class ModelList(BaseModel):
    """Models in OpenAI's form."""

    object: Literal["list"] = "list"
    data: list[ModelEntry]


class Problem(BaseModel):
    """The body of every answer with a status other than 200."""

    error: str


class OpenAIError(BaseModel):
    message: str
    type: str
    param: str | None
    code: str | None


class AnthropicError(BaseModel):
    type: str
    message: str


class AnthropicProblem(BaseModel):
    """An error as Anthropic's clients read it."""

    type: Literal["error"] = "error"
    error: AnthropicError


class OpenAIProblem(BaseModel):
    """An error as OpenAI's clients read it."""

    error: OpenAIError
