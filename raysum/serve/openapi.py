"""The OpenAPI object of a service: examples of requests and answers, and the keys."""

import json
from typing import Any

from fastapi import FastAPI

from raysum.decode.summary import Citation, Sentence
from raysum.serve.access import OPEN
from raysum.serve.anthropic_answers import MessageAnswer
from raysum.serve.batch_store import BatchState
from raysum.serve.guard import BATCHES, ERROR_FORMS
from raysum.serve.openai_answers import ChatCompletion, ModelResponse
from raysum.serve.schema import ModelCard, ModelEntry, ModelList, SummaryAnswer

_REQUEST = {
    "title": "Florence",
    "documents": [
        "Florence lies on the river Arno. It is the capital of Tuscany.",
        {"source": "guide.txt", "text": "The dome of Florence was finished in 1436. It has four million bricks."},
    ],
    "id": "example-1",
}
_TEXTS = ["Florence lies on the river Arno. It is the capital of Tuscany.", "The dome was finished in 1436."]
_FILES = [{"type": "document", "source": {"type": "text", "media_type": "text/plain", "data": text}} for text in _TEXTS]
_REQUESTS: dict[str, dict[str, Any]] = {
    "/v1/summarize": _REQUEST,
    "/v1/summarize/stream": _REQUEST,
    "/v1/chat/completions": {
        "messages": [{"role": "user", "content": [{"type": "text", "text": text} for text in _TEXTS]}],
    },
    "/v1/responses": {
        "input": [{"role": "user", "content": [{"type": "input_text", "text": text} for text in _TEXTS]}],
    },
    "/v1/messages": {"max_tokens": 1000, "messages": [{"role": "user", "content": _FILES}]},
}
_ERRORS = {
    "400": "cluster 'Florence' cannot be summarized: it has no text",
    "401": "a key is missing; send `Authorization: Bearer KEY`",
    "403": "this server accepts requests only from this machine, as localhost, 127.0.0.1, ::1; not Host: example.org",
    "404": "there is no model 'other'; this service has 'pht'",
    "408": "the request stalled for 30 s",
    "413": "1001 documents exceed 1000, the server's --max-documents",
    "422": "options.num_beems: unknown field, did you mean 'num_beams'?",
    "429": "the key web has reached its limit of 60 requests per minute",
    "431": "the headers are larger than 65536 bytes",
    "503": "too many requests are waiting; try again later",
    "507": "the server cannot write its batches (No space left on device); inform its operator",
}
_METRICS = """\
# HELP raysum_requests_total Requests by route, status and key
# TYPE raysum_requests_total counter
raysum_requests_total{key="web",route="/v1/summarize",status="200"} 1024.0
"""
_KEYS = {
    "bearer": {"type": "http", "scheme": "bearer", "description": "a key of `raysum keys add`"},
    "header": {"type": "apiKey", "in": "header", "name": "x-api-key", "description": "the same key"},
}
_UNUSED = ("HTTPValidationError", "ValidationError")  # FastAPI's own format of errors


def add_examples(api: FastAPI, model: str, has_keys: bool) -> None:
    """Add examples for the default ``model``, and keys, to the OpenAPI object, also for routes that are added later."""
    build = api.openapi

    def openapi() -> dict[str, Any]:
        if api.openapi_schema is None:
            _complete(build(), model, has_keys)
        return build()

    api.openapi = openapi  # type: ignore[method-assign]


def _complete(spec: dict[str, Any], model: str, has_keys: bool) -> None:
    schemas = spec["components"]["schemas"]
    for name in _UNUSED:
        schemas.pop(name, None)
    if has_keys:
        spec["components"]["securitySchemes"] = _KEYS
    answers = _answers()
    for path, operations in spec["paths"].items():
        for method, operation in operations.items():
            if has_keys and path not in OPEN:
                operation["security"] = [{name: []} for name in _KEYS]
            for status, answer in list(operation["responses"].items()):
                content = answer.get("content", {})
                schema = content.get("application/json", {}).get("schema", {})
                if schema.get("$ref", "").rpartition("/")[2] in _UNUSED:
                    del operation["responses"][status]
                elif status in _ERRORS:
                    message = _ERRORS[status]
                    form = ERROR_FORMS.get(path)
                    error = form(int(status), message) if form else {"error": message}
                    content["application/json"]["example"] = error
            for kind, example in (answers.get(f"{method} {path}") or answers.get(path, {})).items():
                operation["responses"]["200"]["content"][kind]["example"] = example
    for path, example in _REQUESTS.items():
        named = {"model": model} | example if path in ERROR_FORMS else example
        spec["paths"][path]["post"]["requestBody"]["content"]["application/json"]["example"] = named
    if BATCHES in spec["paths"]:
        body = "".join(json.dumps({"custom_id": id, "body": _REQUEST}) + "\n" for id in ("1", "2"))
        spec["paths"][BATCHES]["post"]["requestBody"]["content"]["application/jsonl"]["example"] = body


def _answers() -> dict[str, dict[str, Any]]:
    """Return the example of an answer by path, or by method and path, and by media type."""
    model = {"run": "pht", "step": 42000}
    summary, entry = _summary(), ModelEntry(id="pht", created=1_790_000_000)
    validation = {"valid_loss": 2.31, "rouge2": 18.2}
    details = {"mix": {"encoder": "LGLGLG", "decoder": "PPPPPP"}, "beta": 0.4, "loaded": 1.79e9, "load_seconds": 4.2}
    counts = {"total": 2, "completed": 1, "failed": 0}
    batch = {"id": "batch_0123456789abcdef", "created_at": 1_790_000_000, "request_counts": counts}
    batch = BatchState.model_validate(batch).model_dump()
    result = {"custom_id": "1", "error": None, "response": summary}
    card = ModelCard.model_validate({**model, **details, "validation": validation})
    return {
        "/v1/summarize": {"application/json": summary},
        "/v1/summarize/stream": {"text/event-stream": _stream(summary)},
        "/v1/chat/completions": {"application/json": ChatCompletion("pht").whole(summary)},
        "/v1/responses": {"application/json": ModelResponse("pht").whole(summary)},
        "/v1/messages": {"application/json": MessageAnswer("pht").whole(summary)},
        "/healthz": {"application/json": {"status": "ok", **model}},
        "/readyz": {"application/json": {"status": "ready"}},
        "/v1/model": {"application/json": card.model_dump(exclude_none=True)},
        "/v1/models": {"application/json": ModelList(data=[entry]).model_dump()},
        "/v1/models/{model}": {"application/json": entry.model_dump()},
        "/metrics": {"text/plain": _METRICS},
        BATCHES: {"application/json": batch},
        f"get {BATCHES}": {"application/json": {"object": "list", "data": [batch]}},
        f"{BATCHES}/{{id}}": {"application/json": batch},
        f"{BATCHES}/{{id}}/cancel": {"application/json": batch | {"status": "cancelled"}},
        f"{BATCHES}/{{id}}/results": {"application/jsonl": json.dumps(result) + "\n"},
    }


def _summary() -> dict[str, Any]:
    quotes = [(0, "Florence lies on the river Arno."), (1, "The dome of Florence was finished in 1436.")]
    sentences, start = [], 0
    for document, quote in quotes:
        source = "guide.txt" if document else None
        end = len(quote)
        citation = Citation(document=document, paragraph=0, weight=1.0, source=source, quote=quote, end=end)
        sentences.append(Sentence(text=quote, start=start, end=start + end, citations=[citation], support=1.0))
        start += end + 1
    answer = SummaryAnswer.model_validate(
        {
            **{"id": "example-1", "summary": " ".join(quote for _, quote in quotes), "sentences": sentences},
            **{"attention": [0.6, 0.4], "score": -0.52, "support": 100.0, "model": {"run": "pht", "step": 42000}},
            "usage": {"source_tokens": 41, "summary_tokens": 24},
        }
    )
    return answer.model_dump(exclude={"alternatives": True, "model": {"system"}})


def _stream(summary: dict[str, Any]) -> str:
    events = [
        ("queued", {"position": 0}),
        ("reading", {"paragraphs": 2, "tokens": 41}),
        ("prefix", {"text": "Florence lies on the river"}),
        *(("sentence", sentence) for sentence in summary["sentences"]),
        ("result", summary),
    ]
    return "".join(f"event: {name}\ndata: {json.dumps(values)}\n\n" for name, values in events)
