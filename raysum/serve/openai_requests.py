"""Requests in OpenAI's formats, and the clusters and settings that they ask for."""

from collections.abc import Sequence
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, FailFast, Field, model_validator

from raysum.serve.message_parts import IGNORED, DialectRequest, as_parts, cluster_of, only, without_answer
from raysum.serve.schema import Strict
from raysum.serve.uploads import uploaded


class File(Strict):
    """A document of any supported kind."""

    filename: str = Field("", max_length=1000)
    file_data: str = Field(description="its content in base64, also as a data URL")


class MessagePart(Strict):
    """A part of a message: one document, as a text or as a file."""

    type: Literal["text", "input_text", "file", "input_file"]
    text: str | None = None
    file: File | None = Field(None, description="of chat completions")
    filename: str = Field("", max_length=1000, description="of responses")
    file_data: str | None = Field(None, description="of responses: the content in base64, also as a data URL")

    @model_validator(mode="after")
    def _complete(self) -> "MessagePart":
        if self.type == "input_file" and self.file_data is not None:
            self.file = File(filename=self.filename, file_data=self.file_data)
        if self.type.endswith("text") and self.text is None:
            raise ValueError("a text part needs text")
        if self.type.endswith("file") and self.file is None:
            raise ValueError("a file part needs file_data; files by id or URL are not supported")
        return self


_Parts = Annotated[
    list[MessagePart],
    FailFast(),
    Field(min_length=1),
    BeforeValidator(as_parts, json_schema_input_type=str | list[MessagePart]),
]


class Message(Strict):
    """A message. Each part of a user message is one document; earlier answers of the assistant are skipped."""

    type: Literal["message"] = "message"
    role: Literal["system", "developer", "user", "assistant"]
    content: _Parts = []
    name: str | None = Field(None, description=IGNORED)

    _skip_answer = model_validator(mode="before")(without_answer)


def _as_messages(messages: Any) -> Any:
    return [{"role": "user", "content": messages}] if isinstance(messages, str) else messages


_Messages = Annotated[
    list[Message],
    FailFast(),
    Field(min_length=1),
    BeforeValidator(_as_messages, json_schema_input_type=str | list[Message]),
]


class OpenAIRequest(DialectRequest):
    """The fields that both routes share."""

    top_logprobs: Annotated[Any, only(0)] = None
    tool_choice: Annotated[Any, only("none", "auto")] = None

    user: Any = Field(None, description=IGNORED)
    store: Any = Field(None, description=IGNORED)
    metadata: dict[str, str] | None = Field(None, description="repeated in the answer of /v1/responses")
    parallel_tool_calls: Any = Field(None, description=IGNORED)
    prompt_cache_key: Any = Field(None, description=IGNORED)
    prompt_cache_retention: Any = Field(None, description=IGNORED)
    safety_identifier: Any = Field(None, description=IGNORED)

    def cluster(self) -> dict[str, Any]:
        """Return the cluster of all user messages. Raises UserError if a file is unreadable.

        The title may be in a system message.
        """
        messages = self._messages()
        parts = [part for message in messages if message.role == "user" for part in message.content]
        above = [part.text for message in messages if message.role != "user" for part in message.content]
        return cluster_of(self.title, above, [*map(_document, parts)])

    def _messages(self) -> Sequence[Message]:
        raise NotImplementedError


class StreamOptions(Strict):
    include_usage: bool = Field(False, description="send the usage before the end of the stream")
    include_obfuscation: Any = Field(None, description=IGNORED)


class ChatRequest(OpenAIRequest):
    """A request of ``/v1/chat/completions``."""

    messages: _Messages
    n: int | None = Field(None, ge=1, le=16, description="as n_best; streams have one choice")
    max_tokens: int | None = Field(None, ge=1, description="upper limit of the length; never raises max_length")
    max_completion_tokens: int | None = Field(None, ge=1, description="the same")
    stream_options: StreamOptions | None = None

    frequency_penalty: Annotated[Any, only(0)] = None
    presence_penalty: Annotated[Any, only(0)] = None
    logit_bias: Annotated[Any, only({})] = None
    logprobs: Annotated[Any, only(False)] = None
    stop: Annotated[Any, only([])] = None
    response_format: Annotated[Any, only({"type": "text"})] = None
    modalities: Annotated[Any, only(["text"])] = None
    seed: Any = Field(None, description=IGNORED)
    reasoning_effort: Any = Field(None, description=IGNORED)
    verbosity: Any = Field(None, description=IGNORED)

    @model_validator(mode="after")
    def _one_streamed(self) -> "ChatRequest":
        if self.stream and (self.n or 1) > 1:
            raise ValueError("n must be 1 with stream, which sends one summary")
        return self

    def settings(self) -> dict[str, Any]:
        return super().settings() | ({"n_best": self.n} if (self.n or 1) > 1 else {})

    def _messages(self) -> Sequence[Message]:
        return self.messages


class ResponsesRequest(OpenAIRequest):
    """A request of ``/v1/responses``."""

    input: _Messages
    instructions: str | None = Field(None, description="may have the line 'Title: ...'")
    max_output_tokens: int | None = Field(None, ge=1, description="upper limit of the length; never raises max_length")

    text: Annotated[Any, only({}, {"format": {"type": "text"}})] = None
    background: Annotated[Any, only(False)] = None
    previous_response_id: Annotated[Any, only()] = None
    conversation: Annotated[Any, only()] = None
    prompt: Annotated[Any, only()] = None
    include: Any = Field(None, description=IGNORED)
    reasoning: Any = Field(None, description=IGNORED)
    truncation: Any = Field(None, description=IGNORED)
    stream_options: Any = Field(None, description=IGNORED)
    max_tool_calls: Any = Field(None, description=IGNORED)

    def _messages(self) -> Sequence[Message]:
        if not self.instructions:
            return self.input
        return [Message(role="system", content=[MessagePart(type="text", text=self.instructions)]), *self.input]


def _document(part: MessagePart) -> str | dict[str, Any]:
    """Return a part as a document of a cluster. Raises UserError if its file is unreadable."""
    if part.file is None:
        return part.text or ""
    return uploaded(part.file.filename, part.file.file_data, "file_data")
