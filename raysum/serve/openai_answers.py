"""Summaries and their citations in OpenAI's formats: chat completions and responses."""

import time
from collections.abc import Iterator, Mapping
from typing import Any
from urllib.parse import quote
from uuid import uuid4

from raysum.decode.summary import Citation
from raysum.serve.dialects import server_sent

_CHUNK = {"object": "chat.completion.chunk"}
_CODES = {401: "invalid_api_key", 404: "model_not_found", 429: "rate_limit_exceeded"}
_URL_CHARACTERS = ":/?#[]@!$&'()*+,;=%~"


def url_citations(summary: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return an OpenAI annotation for each citation of each sentence, in their order.

    ``start_index`` and ``end_index`` are the sentence in the summary. The other fields have the names of Anthropic's
    ``char_location``: the quote, and its characters in the document.
    """
    return [
        {
            "type": "url_citation",
            "start_index": sentence["start"],
            "end_index": sentence["end"],
            "url": _url(citation),
            "title": citation.name,
            "cited_text": citation.quote,
            "document_index": citation.document,
            "document_title": citation.source,
            "start_char_index": citation.start,
            "end_char_index": citation.end,
            "is_extracted": citation.is_extracted,
            "place": citation.place,
            "weight": citation.weight,
        }
        for sentence in summary["sentences"]
        for citation in map(Citation.model_validate, sentence["citations"])
    ]


def _url(citation: Citation) -> str:
    """Return the name of the document as a URL, with the characters (RFC 5147) if it is a text without an address."""
    name = quote(citation.source or f"document {citation.document + 1}", safe=_URL_CHARACTERS)
    is_text = not citation.is_extracted and "://" not in name
    return f"{name}#char={citation.start},{citation.end}" if is_text else name


def openai_error(status: int, message: str) -> dict[str, Any]:
    """Return the body of OpenAI's answers with a ``status`` other than 200."""
    kind = "server_error" if status >= 500 else "rate_limit_error" if status == 429 else "invalid_request_error"
    return {"error": {"message": message, "type": kind, "param": None, "code": _CODES.get(status)}}


def _usage(summary: Mapping[str, Any], read: str, written: str) -> dict[str, Any] | None:
    """Return the tokens that the model ``read`` and has ``written`` by these names. Only trained models count them."""
    if not (usage := summary.get("usage")):
        return None
    counts = usage["source_tokens"], usage["summary_tokens"]
    return {f"{read}_tokens": counts[0], f"{written}_tokens": counts[1], "total_tokens": sum(counts)}


class ChatCompletion:
    """An answer of ``/v1/chat/completions``. With ``n`` choices, the others are the next best summaries."""

    sends_deltas = True

    def __init__(self, model: str, n: int = 1, with_usage: bool = False):
        self._n, self._with_usage = n, with_usage
        self._head = {"id": f"chatcmpl-{uuid4().hex}", "created": int(time.time()), "model": model}

    def whole(self, summary: Mapping[str, Any]) -> dict[str, Any]:
        texts = [summary["summary"], *(other["summary"] for other in summary.get("alternatives", ()))]
        cited = [_nested(url_citations(summary)), *([] for _ in texts[1:])]
        choices = [
            {
                "index": index,
                "message": {"role": "assistant", "content": text, "refusal": None, "annotations": annotations},
                "logprobs": None,
                "finish_reason": _finish_reason(summary),
            }
            for index, (text, annotations) in enumerate(zip(texts[: self._n], cited, strict=False))
        ]
        return {
            **self._head,
            "object": "chat.completion",
            "choices": choices,
            "usage": _usage(summary, "prompt", "completion"),
            "raysum": summary,
        }

    def begin(self) -> Iterator[bytes]:
        yield self._chunk({"role": "assistant", "content": ""})

    def delta(self, text: str) -> Iterator[bytes]:
        yield self._chunk({"content": text})

    def end(self, summary: Mapping[str, Any]) -> Iterator[bytes]:
        yield self._chunk({"annotations": _nested(url_citations(summary))})
        yield self._chunk({}, _finish_reason(summary), raysum=summary)
        if self._with_usage:
            yield server_sent({**self._head, **_CHUNK, "choices": [], "usage": _usage(summary, "prompt", "completion")})
        yield b"data: [DONE]\n\n"

    def fail(self, message: str, status: int) -> Iterator[bytes]:
        yield server_sent(openai_error(status, message))

    def _chunk(self, delta: dict[str, Any], finish_reason: str | None = None, **more: Any) -> bytes:
        choice = {"index": 0, "delta": delta, "logprobs": None, "finish_reason": finish_reason}
        return server_sent({**self._head, **_CHUNK, "choices": [choice], **more})


def _nested(citations: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return annotations as chat completions have them: the values in an object ``url_citation``."""
    return [
        {"type": "url_citation", "url_citation": {key: value for key, value in citation.items() if key != "type"}}
        for citation in citations
    ]


def _finish_reason(summary: Mapping[str, Any]) -> str:
    return "length" if (summary.get("usage") or {}).get("is_truncated") else "stop"


class ModelResponse:
    """An answer of ``/v1/responses``. ``echoed`` are fields of the request that the answer repeats."""

    sends_deltas = True

    def __init__(self, model: str, **echoed: Any):
        self._item_id, self._number = f"msg_{uuid4().hex}", -1
        self._response = {
            "id": f"resp_{uuid4().hex}",
            "object": "response",
            "created_at": int(time.time()),
            "status": "in_progress",
            "background": False,
            "error": None,
            "incomplete_details": None,
            "instructions": None,
            "max_output_tokens": None,
            "metadata": {},
            "model": model,
            "output": [],
            "parallel_tool_calls": False,
            "previous_response_id": None,
            "store": False,
            "temperature": None,
            "text": {"format": {"type": "text"}},
            "tool_choice": "none",
            "tools": [],
            "top_p": None,
            "truncation": "disabled",
            "usage": None,
            **echoed,
        }

    def whole(self, summary: Mapping[str, Any]) -> dict[str, Any]:
        usage = _usage(summary, "input", "output")
        if usage:
            usage["input_tokens_details"] = {"cached_tokens": 0, "cache_write_tokens": 0}
            usage["output_tokens_details"] = {"reasoning_tokens": 0}
        is_truncated = _finish_reason(summary) == "length"
        status = "incomplete" if is_truncated else "completed"
        return {
            **self._response,
            "status": status,
            "incomplete_details": {"reason": "max_output_tokens"} if is_truncated else None,
            "output": [self._item(status, [_output_text(summary["summary"], url_citations(summary))])],
            "usage": usage,
            "raysum": summary,
        }

    def begin(self) -> Iterator[bytes]:
        yield self._named("created", response=self._response)
        yield self._named("in_progress", response=self._response)
        yield self._named("output_item.added", output_index=0, item=self._item("in_progress", []))
        yield self._in_part("content_part.added", part=_output_text("", []))

    def delta(self, text: str) -> Iterator[bytes]:
        yield self._in_part("output_text.delta", delta=text, logprobs=[])

    def end(self, summary: Mapping[str, Any]) -> Iterator[bytes]:
        response = self.whole(summary)
        (item,) = response["output"]
        (part,) = item["content"]
        for index, annotation in enumerate(part["annotations"]):
            yield self._in_part("output_text.annotation.added", annotation_index=index, annotation=annotation)
        yield self._in_part("output_text.done", text=part["text"], logprobs=[])
        yield self._in_part("content_part.done", part=part)
        yield self._named("output_item.done", output_index=0, item=item)
        yield self._named(response["status"], response=response)

    def fail(self, message: str, status: int) -> Iterator[bytes]:
        error = {"code": "rate_limit_exceeded" if status == 429 else "server_error", "message": message}
        yield self._named("failed", response={**self._response, "status": "failed", "error": error})

    def _item(self, status: str, content: list[dict[str, Any]]) -> dict[str, Any]:
        return {"id": self._item_id, "type": "message", "role": "assistant", "status": status, "content": content}

    def _in_part(self, name: str, **values: Any) -> bytes:
        return self._named(name, item_id=self._item_id, output_index=0, content_index=0, **values)

    def _named(self, name: str, **values: Any) -> bytes:
        self._number += 1
        kind = f"response.{name}"
        return server_sent({"type": kind, "sequence_number": self._number, **values}, kind)


def _output_text(text: str, annotations: list[dict[str, Any]]) -> dict[str, Any]:
    return {"type": "output_text", "text": text, "annotations": annotations, "logprobs": []}
