"""What the HTTP interface takes, strictly: an unknown or mistyped field is an error. It answers with a ``Summary``."""

from typing import Annotated, Any

from pydantic import BaseModel, Discriminator, FailFast, Field, Tag, create_model, model_validator

from raysum.config.sections import DecodeConfig, ExtractConfig, Section

_MOST_FIELDS = 10  # of an object; none has as many. So a body of unknown ones is no list of problems
_LONGEST_NAME = 1000  # characters of a title, or of a document's name


class Strict(BaseModel, extra="forbid", strict=True):
    """Base of what is taken."""

    @model_validator(mode="before")
    @classmethod
    def _few(cls, values: Any) -> Any:
        if isinstance(values, dict) and len(values) > _MOST_FIELDS:
            raise ValueError(f"{len(values)} fields, most of them unknown")
        return values


class Document(Strict):
    """A source text with its name."""

    source: str = Field(max_length=_LONGEST_NAME, description="name of the document")
    text: str


def _form(document: Any) -> str:
    return "Document" if isinstance(document, dict | Document) else "str"


# Told apart before they are checked, so that a problem is named once, and for the form that was meant.
TextOrDocument = Annotated[Annotated[str, Tag("str")] | Annotated[Document, Tag("Document")], Discriminator(_form)]


# Decoding settings that a request may give, and the most of a number it may ask for, so that it stays affordable.
_MOST: dict[str, int | None] = {
    "num_beams": 16,
    "max_length": 1000,
    "min_length": 1000,
    "length_penalty": 10,
    "no_repeat_ngram_size": 20,
    "n_best": 16,
    "grounded": None,
}
_MOST_EXTRACTED: dict[str, int | None] = {
    "words": 1000,
    "sentences": 100,
    "redundancy": None,
}  # of systems that extract


def _option(section: type[Section], name: str, most: int | None) -> Any:
    """The field of ``section``, bounded, and None where the run's setting holds."""
    field = section.model_fields[name]
    bounded: Any = Annotated.__class_getitem__((field.annotation, *field.metadata, Field(le=most)))  # type: ignore
    return bounded | None, Field(None, description=field.description)


_OPTIONS: Any = {name: _option(DecodeConfig, name, most) for name, most in _MOST.items()}
_OPTIONS |= {name: _option(ExtractConfig, name, most) for name, most in _MOST_EXTRACTED.items()}
Options = create_model("Options", __base__=Strict, __doc__="Decoding settings of one request.", **_OPTIONS)


class SummarizeRequest(Strict):
    """A cluster of documents about one subject."""

    title: str = Field("", max_length=_LONGEST_NAME, description="the subject, if known; paragraphs are ranked by it")
    # The first wrong one is told: thousands of problems would take the event loop 0.4 s.
    documents: Annotated[list[TextOrDocument], FailFast()] = Field(
        min_length=1, description="texts, or texts with the names of their sources"
    )
    id: str | None = Field(None, max_length=200, description="given back in the answer")
    options: Options = Field(default_factory=Options)


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
