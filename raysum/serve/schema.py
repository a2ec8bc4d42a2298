"""What the HTTP interface takes and answers, as strict pydantic models: an unknown or mistyped field is an error."""

from typing import Annotated, Any

from pydantic import AfterValidator, BaseModel, ConfigDict, Discriminator, Field, Tag


def _unicode(text: str) -> str:
    """JSON can escape half of a surrogate pair, which no tokenizer and no answer can encode."""
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise ValueError(f"not valid Unicode at character {error.start}") from None
    return text


Text = Annotated[str, AfterValidator(_unicode)]


class Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)


class Document(Strict):
    """A source text with its name."""

    source: Text = Field(description="name of the document")
    text: Text


def _form(document: Any) -> str:
    return "Document" if isinstance(document, dict | Document) else "str"


# Told apart before they are checked, so that a problem is named once, and for the form that was meant.
TextOrDocument = Annotated[Annotated[Text, Tag("str")] | Annotated[Document, Tag("Document")], Discriminator(_form)]


class Options(Strict):
    """Decoding settings of one request; those left out are the run's. The upper bounds keep a request affordable."""

    num_beams: int | None = Field(None, ge=1, le=16)
    max_length: int | None = Field(None, ge=1, le=1000, description="tokens of the summary, at most")
    min_length: int | None = Field(None, ge=0, le=1000, description="tokens of the summary, at least")
    length_penalty: float | None = Field(None, ge=0, le=10)
    no_repeat_ngram_size: int | None = Field(None, ge=0, le=20, description="0 = off")


class SummarizeRequest(Strict):
    """A cluster of documents about one subject."""

    title: Text = Field(description="the subject; paragraphs are ranked by it")
    documents: list[TextOrDocument] = Field(min_length=1, description="texts, or texts with the names of their sources")
    id: Text | None = Field(None, max_length=200, description="given back in the answer")
    options: Options = Field(default_factory=Options)

    def cluster(self) -> dict[str, Any]:
        """The raw example, as `raysum prepare` reads it."""
        return self.model_dump(exclude={"options"}, exclude_none=True)

    def settings(self) -> dict[str, Any]:
        """The decoding settings that the request gives."""
        return self.options.model_dump(exclude_none=True)


class Citation(BaseModel):
    document: Any = Field(description="the document that the sentence attended to")
    paragraph: int = Field(description="the paragraph's position in that document")
    weight: float = Field(description="its share of the sentence's attention")


class Sentence(BaseModel):
    text: str
    citations: list[Citation]


class SummarizeReply(BaseModel):
    id: str
    summary: str
    sentences: list[Sentence]
    attention: list[float] = Field(description="share of the attention each kept paragraph received, best rank first")


class Health(BaseModel):
    status: str
    run: str = Field(description="name of the run that is served")
    step: int = Field(description="training step of its checkpoint")


class Problem(BaseModel):
    """The body of every answer that is not 200."""

    error: str
