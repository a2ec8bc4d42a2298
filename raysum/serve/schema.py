"""What the HTTP interface takes, strictly: an unknown or mistyped field is an error. It answers with a ``Summary``."""

from collections.abc import Iterator, Sequence
from typing import Annotated, Any

from pydantic import BaseModel, Discriminator, FailFast, Field, Tag, create_model, model_validator

from raysum.config.base import Section
from raysum.config.decoding import DECODE_ALIASES, DecodeConfig, ExtractConfig
from raysum.config.problems import did_you_mean

_MOST_FIELDS = 10  # of an object, where it has no more. So a body of unknown ones is no list of problems
_LONGEST_NAME = 1000  # characters of a title, or of a document's name
_LONGEST_FIELD = 40  # characters of a field's name to which the nearest is looked for


class Strict(BaseModel, extra="forbid", strict=True):
    """Base of what is taken."""

    @model_validator(mode="before")
    @classmethod
    def _few(cls, values: Any) -> Any:
        if isinstance(values, dict) and len(values) > max(_MOST_FIELDS, len(cls.model_fields)):
            raise ValueError(f"{len(values)} fields, most of them unknown")
        return values


class Document(Strict):
    """A source text with its name."""

    source: str | None = Field(None, max_length=_LONGEST_NAME, description="name of the document, if it has one")
    text: str


def _form(document: Any) -> str:
    return "Document" if isinstance(document, dict | Document) else "str"


# Told apart before they are checked, so that a problem is named once, and for the form that was meant.
TextOrDocument = Annotated[Annotated[str, Tag("str")] | Annotated[Document, Tag("Document")], Discriminator(_form)]


# Decoding settings that no request may give: the server has loaded the ranker and has memory for so much.
FIXED = ("ranker", "batch_examples", "source_paragraphs", "source_tokens")
_MOST = {"num_beams": 16, "max_length": 1000, "no_repeat_ngram_size": 20}  # so that a request stays affordable


def _options(section: type[Section]) -> Iterator[tuple[str, Any]]:
    """The fields of ``section`` as of one request: bounded, and None where the server's setting holds."""
    for name, field in section.model_fields.items():
        if name not in FIXED:
            bounds = (field.annotation, *field.metadata, Field(le=_MOST.get(name)))
            bounded: Any = Annotated.__class_getitem__(bounds)  # type: ignore[attr-defined]
            yield name, (bounded | None, Field(None, description=field.description))


class _Renamed(Strict):
    @model_validator(mode="before")
    @classmethod
    def _rename(cls, values: Any) -> Any:
        """Other toolkits' names become ours, as on the command line."""
        return DecodeConfig.renamed(values)


Options = create_model(
    "Options",
    __base__=_Renamed,
    __doc__="Decoding settings of one request: of a trained run, then of systems that extract.",
    **dict([*_options(DecodeConfig), *_options(ExtractConfig)]),
)


class SummarizeRequest(Strict):
    """A cluster of documents about one subject."""

    title: str = Field("", max_length=_LONGEST_NAME, description="the subject, if known; paragraphs are ranked by it")
    # The first wrong one is told: thousands of problems would take the event loop 0.4 s.
    documents: Annotated[list[TextOrDocument], FailFast()] = Field(
        min_length=1, description="texts, also with the names of their sources"
    )
    id: str | None = Field(None, max_length=200, description="given back in the answer")
    options: Options = Field(default_factory=Options)


def unknown(place: Sequence[str | int]) -> str:
    """What to say of a field that is not taken at ``place`` (``options``, its name) of a request."""
    *above, name = map(str, place)
    if above == ["options"] and name in FIXED:
        return f"is the server's alone: start it with --set {name}=..."
    part: Any = Options if above == ["options"] else Document if above else SummarizeRequest
    valid = [*part.model_fields, *(DECODE_ALIASES if part is Options else ())]
    if part is SummarizeRequest and name in {*Options.model_fields, *DECODE_ALIASES}:
        return f"unknown field, did you mean 'options.{name}'?"
    near = did_you_mean(name, valid) if len(name) <= _LONGEST_FIELD else ""
    return f"unknown field, {near}".rstrip(", ")


class Health(BaseModel):
    status: str
    run: str | None = Field(None, description="name of the run that is served")
    step: int | None = Field(None, description="training step of its checkpoint")
    system: str | None = Field(None, description="the system that is served, where nothing is trained of it")

    def __str__(self) -> str:
        return self.system or f"the run {self.run}, step {self.step}"


class Problem(BaseModel):
    """The body of every answer that is not 200."""

    error: str
