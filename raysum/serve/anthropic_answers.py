"""Summaries and their citations in the format of Anthropic's messages: a block for each sentence."""

from collections.abc import Iterator, Mapping
from typing import Any
from uuid import uuid4

from raysum.decode.summary import Citation
from raysum.serve.dialects import server_sent

_KINDS = {
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
    503: "overloaded_error",
}


def anthropic_error(status: int, message: str) -> dict[str, Any]:
    """Return the body of Anthropic's answers with a ``status`` other than 200."""
    kind = _KINDS.get(status, "api_error" if status >= 500 else "invalid_request_error")
    return {"type": "error", "error": {"type": kind, "message": message}}


class MessageAnswer:
    """An answer of ``/v1/messages``. Its blocks, joined, are the summary; each has the citations of its sentence.

    A stream sends a block when its citations are known, which is at the end of the search.
    """

    sends_deltas = False

    def __init__(self, model: str):
        self._head = {"id": f"msg_{uuid4().hex}", "type": "message", "role": "assistant", "model": model}

    def whole(self, summary: Mapping[str, Any]) -> dict[str, Any]:
        ending = {"content": _blocks(summary), **_stop(summary), "usage": _usage(summary)}
        return {**self._head, **ending, "raysum": summary}

    def begin(self) -> Iterator[bytes]:
        message: dict[str, Any] = {**self._head, "content": [], "stop_reason": None, "stop_sequence": None}
        message["usage"] = {"input_tokens": 0, "output_tokens": 0}
        yield _named("message_start", message=message)
        yield _named("ping")

    def delta(self, text: str) -> Iterator[bytes]:
        """Keep the connection alive: the text comes with its citations."""
        yield _named("ping")

    def end(self, summary: Mapping[str, Any]) -> Iterator[bytes]:
        for index, block in enumerate(_blocks(summary)):
            yield _named("content_block_start", index=index, content_block={**block, "text": "", "citations": []})
            deltas = [{"type": "text_delta", "text": block["text"]}]
            deltas += [{"type": "citations_delta", "citation": citation} for citation in block["citations"]]
            for delta in deltas:
                yield _named("content_block_delta", index=index, delta=delta)
            yield _named("content_block_stop", index=index)
        yield _named("message_delta", delta=_stop(summary), usage=_usage(summary), raysum=summary)
        yield _named("message_stop")

    def fail(self, message: str, status: int) -> Iterator[bytes]:
        yield server_sent(anthropic_error(status, message), "error")


def _blocks(summary: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return a block of text for each sentence, with the space before it."""
    blocks, end = list[dict[str, Any]](), 0
    for sentence in summary["sentences"]:
        citations = [*map(_char_location, map(Citation.model_validate, sentence["citations"]))]
        text, end = summary["summary"][end : sentence["end"]], sentence["end"]
        blocks.append({"type": "text", "text": text, "citations": citations})
    return blocks


def _char_location(citation: Citation) -> dict[str, Any]:
    """Return a citation of characters; of a file they count in its extracted text. ``place`` is its page or heading."""
    return {
        "type": "char_location",
        "cited_text": citation.quote,
        "document_index": citation.document,
        "document_title": citation.source,
        "start_char_index": citation.start,
        "end_char_index": citation.end,
        "file_id": None,
        "place": citation.place,
    }


def _stop(summary: Mapping[str, Any]) -> dict[str, Any]:
    is_truncated = (summary.get("usage") or {}).get("is_truncated")
    return {"stop_reason": "max_tokens" if is_truncated else "end_turn", "stop_sequence": None}


def _usage(summary: Mapping[str, Any]) -> dict[str, int]:
    """Return the tokens, which only trained models count."""
    usage = summary.get("usage") or {}
    return {"input_tokens": usage.get("source_tokens", 0), "output_tokens": usage.get("summary_tokens", 0)}


def _named(name: str, **values: Any) -> bytes:
    return server_sent({"type": name, **values}, name)
