"""What requests in the formats of other services share: fields that may not change a summary, and the title."""

import re
from collections.abc import Iterable
from typing import Annotated, Any

from pydantic import AfterValidator, Field

from raysum.serve.events import MAX_TOKENS
from raysum.serve.schema import Options, Strict

_TITLE = re.compile(r"^[ \t]*title:[ \t]*(\S[^\r\n]{0,999})", re.IGNORECASE)
_TITLE_LINE = re.compile(_TITLE.pattern, re.IGNORECASE | re.MULTILINE)
_LIMITS = ("max_tokens", "max_completion_tokens", "max_output_tokens")  # fields with a limit of the length
IGNORED = "accepted without effect"


def only(*values: Any) -> AfterValidator:
    """Return the validator of a field that is accepted at ``values`` and null, which do not change a summary."""

    def check(value: Any) -> Any:
        if value is None or value in values:
            return value
        accepted = " or ".join(map(str, values))
        raise ValueError(f"is not supported{f' other than {accepted}' if accepted else ''}; leave it out")

    return AfterValidator(check)


class DialectRequest(Strict):
    """The fields that all routes share."""

    model: str = Field(max_length=1000, description="the served run or system")
    stream: bool = False
    title: str | None = Field(None, max_length=1000, description="as of /v1/summarize")
    options: Options = Field(default_factory=Options, description="decoding settings, as of /v1/summarize")

    temperature: Annotated[Any, only(0, 1)] = Field(None, description="0 or 1: the search does not sample")
    top_p: Annotated[Any, only(1)] = None
    tools: Annotated[Any, only([])] = None

    service_tier: Any = Field(None, description=IGNORED)

    def settings(self) -> dict[str, Any]:
        """Return the decoding settings. ``max_tokens`` is an upper limit: it can lower ``max_length`` only."""
        limits = [limit for name in _LIMITS if (limit := getattr(self, name, None)) is not None]
        return self.options.model_dump(exclude_none=True) | ({MAX_TOKENS: min(limits)} if limits else {})


def as_parts(content: Any) -> Any:
    """Return the content of a message, which may be one text, as a list of parts."""
    return [{"type": "text", "text": content}] if isinstance(content, str) else content


def without_answer(message: Any) -> Any:
    """Return a message of the user or the system; of an earlier answer of the assistant, only the role remains."""
    is_answer = isinstance(message, dict) and message.get("role") == "assistant"
    return {"role": "assistant"} if is_answer else message


def cluster_of(title: str | None, instructions: Iterable[str | None], documents: list[Any]) -> dict[str, Any]:
    """Return the raw cluster of a request.

    Without a ``title``, it is a line "Title: ..." of the ``instructions``, or the first line of the first document if
    that is a text. There, spaces replace it, so that the positions of quotes count in the text as it was sent.
    """
    if title is None:
        lines = [found[1] for text in instructions if text and (found := _TITLE_LINE.search(text))]
        first = documents[0] if documents else None
        if lines:
            title = lines[0]
        elif isinstance(first, str) and (line := _TITLE.match(first)):
            title, documents = line[1], [" " * line.end() + first[line.end() :], *documents[1:]]
    return {"title": (title or "").strip(), "documents": documents}
