"""Requests in Anthropic's format, and the clusters and settings that they ask for."""

from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, FailFast, Field, model_validator

from raysum.serve.message_parts import IGNORED, DialectRequest, as_parts, cluster_of, only, without_answer
from raysum.serve.schema import Strict
from raysum.serve.uploads import uploaded


class TextPart(Strict):
    """A text inside of a document, or of the system prompt."""

    type: Literal["text"]
    text: str
    citations: Any = Field(None, description=IGNORED)
    cache_control: Any = Field(None, description=IGNORED)


def _need(part: Strict, field: str, what: str) -> None:
    if getattr(part, field) is None:
        raise ValueError(f"{what} needs {field}")


class DocumentSource(Strict):
    """The content of a document: a text, a file in base64, or parts of text."""

    type: Literal["text", "base64", "content"]
    media_type: str | None = Field(None, description="of files; the name and the first bytes decide the kind")
    data: str | None = None
    content: Annotated[
        list[TextPart] | None, FailFast(), BeforeValidator(as_parts, json_schema_input_type=str | list[TextPart])
    ] = None

    @model_validator(mode="after")
    def _complete(self) -> "DocumentSource":
        _need(self, "content" if self.type == "content" else "data", f"a source of the type {self.type}")
        return self


class Block(Strict):
    """A part of a message: a document, or a text."""

    type: Literal["document", "text"]
    text: str | None = None
    source: DocumentSource | None = None
    title: str | None = Field(None, max_length=1000, description="name of the document")
    context: Any = Field(None, description=IGNORED)
    citations: Any = Field(None, description="accepted without effect: summaries always have citations")
    cache_control: Any = Field(None, description=IGNORED)

    @model_validator(mode="after")
    def _complete(self) -> "Block":
        _need(self, "source" if self.type == "document" else "text", f"a {self.type}")
        return self

    def document(self) -> str | dict[str, Any]:
        """Return it as a document of a cluster. Raises UserError if its file is unreadable."""
        if self.source is None:
            return self.text or ""
        if self.source.type == "base64":
            return uploaded(self.title or "", self.source.data or "", "source.data")
        text = self.source.data or "\n\n".join(part.text for part in self.source.content or ())
        return {"source": self.title, "text": text} if self.title else text


class Turn(Strict):
    """A message; earlier answers of the assistant are skipped."""

    role: Literal["user", "assistant"]
    content: Annotated[
        list[Block],
        FailFast(),
        Field(min_length=1),
        BeforeValidator(as_parts, json_schema_input_type=str | list[Block]),
    ] = []

    _skip_answer = model_validator(mode="before")(without_answer)


class MessagesRequest(DialectRequest):
    """A request of ``/v1/messages``."""

    max_tokens: int | None = Field(None, ge=1, description="upper limit of the length; never raises max_length")
    messages: Annotated[list[Turn], FailFast(), Field(min_length=1)]
    system: Annotated[
        list[TextPart] | None,
        BeforeValidator(as_parts, json_schema_input_type=str | list[TextPart]),
        Field(description="may have the line 'Title: ...'"),
    ] = None

    stop_sequences: Annotated[Any, only([])] = None
    thinking: Annotated[Any, only({"type": "disabled"})] = None

    top_k: Any = Field(None, description=IGNORED)
    tool_choice: Any = Field(None, description=IGNORED)
    metadata: Any = Field(None, description=IGNORED)

    def cluster(self) -> dict[str, Any]:
        """Return the cluster of all user messages: of their documents, or if there are none, of their texts.

        Raises UserError if a file is unreadable. The title may be in the system prompt, or in a text beside documents.
        """
        blocks = [block for turn in self.messages if turn.role == "user" for block in turn.content]
        documents = [block for block in blocks if block.type == "document"]
        instructions = [part.text for part in self.system or ()]
        instructions += [block.text for block in blocks if documents and block.text]
        return cluster_of(self.title, instructions, [block.document() for block in documents or blocks])
