"""The HTTP interface: routes, and one JSON format for all errors. It has no model and needs no Ray."""

import asyncio
import json
from collections.abc import AsyncGenerator, AsyncIterator, Mapping, Sequence
from html import escape
from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import HTMLResponse, JSONResponse, StreamingResponse
from pydantic import ValidationError
from starlette.exceptions import HTTPException

import raysum
from raysum.errors import UserError
from raysum.serve.access import Callers, KeyRequired, act_as
from raysum.serve.batch_routes import Batches, Runner, add_batches, refuse_batches, running
from raysum.serve.config import Limits
from raysum.serve.dialect_routes import REQUESTS, add_dialects
from raysum.serve.dialects import server_sent
from raysum.serve.events import BACKGROUND, Event, Service
from raysum.serve.guard import (
    BodyLimit,
    GuardedRoute,
    HeadAsGet,
    HeaderLimit,
    LocalOnly,
    check_documents,
    model_named,
    problem,
)
from raysum.serve.metrics import Accounted, Measured, Metrics, add_metrics_route
from raysum.serve.openapi import add_examples
from raysum.serve.request_log import request_log
from raysum.serve.schema import Document, Health, Problem, Strict, SummarizeRequest, SummaryAnswer, unknown
from raysum.serve.streams import NO_STORE, accepted, fault_message
from raysum.serve.uploads import with_uploads

_MOST_PROBLEMS = 10  # listed in an answer
_LONGEST_NAME = 40  # characters of a field name in an answer

_STYLE = (
    "body{font:16px/1.5 system-ui,sans-serif;max-width:56rem;margin:2rem auto;padding:0 1rem}"
    "h2 b{color:#0a5c8a}pre{background:#f2f5f8;padding:.8rem;overflow-x:auto}"
)
_PROBLEMS: dict[int | str, dict[str, Any]] = {
    400: {"model": Problem, "description": "The body is not JSON, or nothing in the documents can be summarized"},
    401: {"model": Problem, "description": "The key is missing, unknown or revoked (servers with keys)"},
    403: {"model": Problem, "description": "The server accepts only requests from this machine"},
    404: {"model": Problem, "description": "There is no such model"},
    408: {"model": Problem, "description": "The request was not received or answered in time"},
    413: {"model": Problem, "description": "The body or its content is too large"},
    422: {"model": Problem, "description": "A field is missing, unknown or of the wrong type"},
    429: {"model": Problem, "description": "The key has reached a limit; retry after Retry-After seconds"},
    431: {"model": Problem, "description": "The headers are too large"},
    503: {"model": Problem, "description": "Too many requests are waiting; retry after Retry-After seconds"},
}


def build_api(
    models: Mapping[str, Service],
    health: Health,
    limits: Limits,
    local: bool,
    keys: str | None = None,
    log: str | None = None,
    batches: Batches | None = None,
) -> FastAPI:
    """Return the web application of ``models`` by name, the default one first.

    ``health`` describes them. With ``local``, only this machine may send requests. ``keys`` is the file of
    keys that admit requests, ``log`` the file that lists them.
    """
    metrics = Metrics()
    models = {name: Accounted(model, metrics) for name, model in models.items()}
    callers = Callers(keys) if keys else None

    async def asked(request: SummarizeRequest) -> tuple[dict[str, Any], dict[str, Any]]:
        """Return the cluster as `raysum prepare` reads it, and the decode settings of a request."""
        cluster = request.model_dump(exclude={"options", "model"}, exclude_none=True)
        if any(map(_is_file, request.documents)):
            cluster["documents"] = await asyncio.to_thread(with_uploads, cluster["documents"])
            check_documents(cluster["documents"], limits)
        return cluster, request.options.model_dump(exclude_none=True)

    async def answer_stored(key: str, body: dict[str, Any]) -> dict[str, Any]:
        """Return the answer to a request of a batch that the ``key`` has sent."""
        act_as(key, callers)
        request = await asyncio.to_thread(_stored_request, body, limits)
        cluster, settings = await asked(request)
        return await model_named(models, request.model).summarize(cluster, {**settings, BACKGROUND: True})

    runner = batches and Runner(batches, answer_stored)
    api = FastAPI(
        title="raysum",
        version=raysum.__version__,
        description=f"Summaries with citations of document clusters, by {health}.",
        docs_url=None,
        redoc_url=None,
        lifespan=None if runner is None else lambda _: running(runner),
    )
    api.state.limits = limits
    api.router.route_class = GuardedRoute
    api.add_middleware(BodyLimit, limit=limits.max_body, batch_limit=limits.max_batch)
    if callers:
        api.add_middleware(KeyRequired, callers=callers)
    api.add_middleware(HeaderLimit)
    if local:
        api.add_middleware(LocalOnly)
    api.add_middleware(Measured, metrics=metrics, log=request_log(log))
    api.add_middleware(HeadAsGet)
    _answer_errors(api)
    add_metrics_route(api, metrics)
    add_examples(api, next(iter(models)), has_keys=bool(keys))
    if runner:
        add_batches(api, runner, limits)
    else:
        refuse_batches(api)

    @api.post("/v1/summarize", responses={200: {"model": SummaryAnswer}, **_PROBLEMS})
    async def summarize(request: SummarizeRequest) -> JSONResponse:
        """Summarize a cluster of documents. Each sentence cites the paragraphs that support it."""
        model = model_named(models, request.model)
        return JSONResponse(await model.summarize(*await asked(request)))

    @api.post(
        "/v1/summarize/stream",
        response_class=StreamingResponse,
        responses={200: {"content": {"text/event-stream": {}}}, **_PROBLEMS},
    )
    async def stream(request: SummarizeRequest) -> StreamingResponse:
        """Summarize a cluster by server-sent events.

        `queued` (requests before this one; sent again if the summary starts over), `files` (`texts`: what was read of
        files that were sent as `data`, by the numbers of their documents), `reading` (paragraphs and tokens), `prefix`
        (the final beginning of the summary), `sentence` (one each, with citations), then `result` (the summary as of
        /v1/summarize) or `error`.
        """
        model = model_named(models, request.model)
        cluster, settings = await asked(request)
        documents = zip(request.documents, cluster["documents"], strict=True)
        texts = {number: read["text"] for number, (sent, read) in enumerate(documents) if _is_file(sent)}
        events = await accepted(_with_texts(model.stream(cluster, settings), texts))
        parts = (server_sent(event["data"], event["event"]) async for event in events)
        return StreamingResponse(parts, media_type="text/event-stream", headers=NO_STORE)

    add_dialects(api, models, limits, _PROBLEMS)

    @api.get("/healthz", response_model_exclude_none=True)
    async def show_health() -> Health:
        """Report that the server is ready, and which run or system it serves."""
        return health

    @api.get("/docs", include_in_schema=False)
    async def show_docs(request: Request) -> HTMLResponse:
        return HTMLResponse(_page(api.openapi(), curl_example(str(request.base_url).rstrip("/"))))

    return api


def _is_file(document: Any) -> bool:
    return isinstance(document, Document) and document.data is not None


async def _with_texts(events: AsyncIterator[Event], texts: dict[int, str]) -> AsyncGenerator[Event, None]:
    """Yield ``events``, and after each event ``queued`` the ``texts`` of uploaded files by their documents, if any."""
    async for event in events:
        yield event
        if texts and event["event"] == "queued":
            yield {"event": "files", "data": {"texts": texts}}


def curl_example(address: str, has_keys: bool = False) -> str:
    """Return a curl command that requests a summary from the server at ``address``."""
    body = '{"title": "Florence", "documents": ["First text.", {"source": "a.txt", "text": "Second text."}]}'
    key = ' -H "Authorization: Bearer $RAYSUM_KEY"' * has_keys
    return f"curl {address}/v1/summarize{key} -H 'Content-Type: application/json' -d '{body}'"


def _page(spec: dict[str, Any], example: str) -> str:
    """Render an OpenAPI 3.1 object as one HTML page without scripts or external resources."""
    title, version, about = (escape(spec["info"][key]) for key in ("title", "version", "description"))
    operations = [
        f"<h2><b>{method.upper()}</b> {escape(path)}</h2><p>{escape(operation['description'])}</p>"
        for path, methods in spec["paths"].items()
        for method, operation in methods.items()
    ]
    schemas = [
        f'<h3 id="{escape(name)}">{escape(name)}</h3><pre>{escape(json.dumps(schema, indent=2))}</pre>'
        for name, schema in spec["components"]["schemas"].items()
    ]
    return (
        f'<!doctype html><html lang="en"><meta charset="utf-8"><title>{title}</title>'
        f"<style>{_STYLE}</style><h1>{title} {version}</h1><p>{about} For programs: "
        f'<a href="openapi.json">openapi.json</a>.</p><pre>{escape(example)}</pre>'
        f"{''.join(operations)}<h2>Objects</h2>{''.join(schemas)}"
    )


def _answer_errors(api: FastAPI) -> None:
    """Answer every error with ``{"error": message}``."""

    @api.exception_handler(UserError)
    async def user_error(_: Request, error: UserError) -> JSONResponse:
        return problem(400, str(error))

    @api.exception_handler(RequestValidationError)
    async def invalid(request: Request, error: RequestValidationError) -> JSONResponse:
        asked = REQUESTS.get(request.scope["path"], SummarizeRequest)
        return problem(422, _explained(error.errors(), asked))

    @api.exception_handler(HTTPException)
    async def http_error(_: Request, error: HTTPException) -> JSONResponse:
        return problem(error.status_code, str(error.detail), dict(error.headers or {}))

    @api.exception_handler(Exception)
    async def fault(_: Request, error: Exception) -> JSONResponse:
        return problem(500, fault_message(error))


_BODY, _FORM = 0, 3  # positions without a field in pydantic's locations: ("body", "documents", 2, "Document", "text")


def _explained(errors: Sequence[Any], asked: type[Strict]) -> str:
    messages = [_explain(each, asked) for each in errors[:_MOST_PROBLEMS]]
    rest = len(errors) - len(messages)
    return "; ".join(messages + [f"and {rest} more"] * (rest > 0))


def _stored_request(body: dict[str, Any], limits: Limits) -> SummarizeRequest:
    """Return the request in a batch. Raises HTTPException as the route /v1/summarize answers."""
    if isinstance(documents := body.get("documents"), list):
        check_documents(documents, limits)
    try:
        return SummarizeRequest.model_validate(body)
    except ValidationError as error:
        found = [{**each, "loc": ("body", *each["loc"])} for each in error.errors()]
        raise HTTPException(422, _explained(found, SummarizeRequest)) from None


def _explain(error: Any, asked: type[Strict]) -> str:
    """Return the message of a pydantic error with the name of its field (``documents.0.text``)."""
    bare = {_BODY} if asked is not SummarizeRequest else {_BODY, _FORM}
    parts = [part for depth, part in enumerate(error["loc"]) if depth not in bare]
    field = ".".join(map(_shortened, parts))
    if error["type"] == "extra_forbidden":
        return f"{field}: {unknown(parts, asked)}"
    message = error["msg"].removeprefix("Value error, ")
    if error["type"] == "model_attributes_type":
        message = "must be a JSON object" + ("" if field else ", sent with Content-Type: application/json")
    return f"{field or 'the body'}: {message}"


def _shortened(part: Any) -> str:
    return str(part) if len(str(part)) <= _LONGEST_NAME else f"{str(part)[:_LONGEST_NAME]}..."
