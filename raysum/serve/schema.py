"""What the HTTP interface takes and answers, as strict pydantic models: an unknown or mistyped field is an error."""

from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Discriminator, Field, Tag


class Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)


class Document(Strict):
    """A source text with its name."""

    source: str = Field(description="name of the document")
    text: str


def _form(document: Any) -> str:
    return "Document" if isinstance(document, dict | Document) else "str"


# Told apart before they are checked, so that a problem is named once, and for the form that was meant.
TextOrDocument = Annotated[Annotated[str, Tag("str")] | Annotated[Document, Tag("Document")], Discriminator(_form)]


class Options(Strict):
    """Decoding settings of one request; those left out are the run's. The upper bounds keep a request affordable."""

    num_beams: int | None = Field(None, ge=1, le=16)
    max_length: int | None = Field(None, ge=1, le=1000, description="tokens of the summary, at most")
    min_length: int | None = Field(None, ge=0, le=1000, description="tokens of the summary, at least")
    length_penalty: float | None = Field(None, ge=0, le=10)
    no_repeat_ngram_size: int | None = Field(None, ge=0, le=20, description="0 = off")
    n_best: int | None = Field(None, ge=1, le=16, description="summaries answered, the others as alternatives")


class SummarizeRequest(Strict):
    """A cluster of documents about one subject."""

    title: str = Field(description="the subject; paragraphs are ranked by it")
    documents: list[TextOrDocument] = Field(min_length=1, description="texts, or texts with the names of their sources")
    id: str | None = Field(None, max_length=200, description="given back in the answer")
    options: Options = Field(default_factory=Options)

    def cluster(self) -> dict[str, Any]:
        """The raw example, as `raysum prepare` reads it."""
        return self.model_dump(exclude={"options"}, exclude_none=True)

    def settings(self) -> dict[str, Any]:
        """The decoding settings that the request gives."""
        return self.options.model_dump(exclude_none=True)


class Citation(BaseModel):
    document: int = Field(description="the number of the document in the request, from 0")
    paragraph: int = Field(description="the number of the paragraph in that document, from 0")
    weight: float = Field(description="its share of the sentence; the shares of a sentence sum to 1")


class Sentence(BaseModel):
    text: str
    citations: list[Citation]


class Alternative(BaseModel):
    summary: str
    score: float


class SummarizeReply(BaseModel):
    id: str
    summary: str
    sentences: list[Sentence]
    attention: list[float] = Field(description="share of the attention of each ranked paragraph, best rank first")
    score: float = Field(description="what ranked the summary: log-probability normalized by length, plus the terms")
    alternatives: list[Alternative] = Field([], description="the next best, where n_best asks for more than one")


class Health(BaseModel):
    status: str
    run: str = Field(description="name of the run that is served")
    step: int = Field(description="training step of its checkpoint")


class Problem(BaseModel):
    """The body of every answer that is not 200."""

    error: str
