"""Middlewares and checks before the routes: limits of requests, access from this machine only, and 503 answers."""

import asyncio
from collections.abc import Callable, Coroutine, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar
from urllib.parse import urlsplit

from fastapi import Request, Response
from fastapi.routing import APIRoute
from pydantic_core import from_json
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from raysum.serve.anthropic_answers import anthropic_error
from raysum.serve.config import Limits
from raysum.serve.openai_answers import openai_error

T = TypeVar("T")

RETRY_AFTER = 2  # seconds until a refused client should retry: about one batch of decoding on a CPU
ERROR_FORMS = {
    "/v1/chat/completions": openai_error,
    "/v1/responses": openai_error,
    "/v1/messages": anthropic_error,
}  # of routes in the formats of other services
BATCHES = "/v1/batches"
LOCAL = ("localhost", "127.0.0.1", "::1")
_HEADERS = 1 << 16  # bytes of header names and values
_UNREAD = (408, 413)  # statuses of requests that are not read to their end
_TIMEOUT = 30.0  # seconds between two parts of a body


class Overloaded(HTTPException):
    """No replica can accept the request now; the client should retry."""

    def __init__(self, message: str):
        super().__init__(503, message, {"Retry-After": str(RETRY_AFTER)})


class NotLoaded(Overloaded):
    """The model of the request cannot be loaded now."""


def refused(answer: dict[str, Any]) -> HTTPException:
    """Return the exception for an answer with ``error``, ``status`` and, if its model is missing, ``not_loaded``."""
    if answer.get("not_loaded"):
        return NotLoaded(answer["error"])
    return Overloaded(answer["error"]) if answer["status"] == 503 else HTTPException(answer["status"], answer["error"])


def model_named(models: Mapping[str, T], name: str | None) -> T:
    """Return the model ``name``, or the first one without a name. Raises HTTPException 404 for an unknown name."""
    if name is None:
        return next(iter(models.values()))
    if name not in models:
        raise HTTPException(404, f"there is no model {name[:100]!r}; this service has {', '.join(map(repr, models))}")
    return models[name]


class _Around:
    def __init__(self, app: ASGIApp):
        self.app = app


class LocalOnly(_Around):
    """ASGI middleware that refuses requests with a Host or Origin other than this machine.

    Otherwise a foreign page in a local browser could use the server through a host name that it maps to this machine
    (DNS rebinding).
    """

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and (message := _foreign(Request(scope))):
            await problem(403, message)(scope, receive, send)
        else:
            await self.app(scope, receive, send)


def _foreign(request: Request) -> str | None:
    """Return the error message if Host or Origin is not this machine, else None."""
    host, origin = request.headers.get("host", ""), request.headers.get("origin")
    for name, url in (("Host", f"//{host}"), ("Origin", origin)):
        if url is not None and _hostname(url) not in LOCAL:
            value = url.removeprefix("//")[:100]
            return f"this server accepts requests only from this machine, as {', '.join(LOCAL)}; not {name}: {value}"
    return None


def _hostname(url: str) -> str | None:
    try:
        return urlsplit(url).hostname
    except ValueError:
        return None


class HeadAsGet(_Around):
    """ASGI middleware that answers HEAD as GET; the server sends the headers only."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await self.app({**scope, "method": "GET"} if scope.get("method") == "HEAD" else scope, receive, send)


class HeaderLimit(_Around):
    """ASGI middleware that answers 431 to headers of more than 64 KiB."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if sum(len(name) + len(value) for name, value in scope.get("headers", ())) > _HEADERS:
            await problem(431, f"the headers are larger than {_HEADERS} bytes")(scope, receive, send)
        else:
            await self.app(scope, receive, send)


class Unavailable(_Around):
    """ASGI middleware of Ray Serve's proxy: errors of the proxy itself become 503 with Retry-After.

    While the server stops or a front restarts, the proxy answers 404, 500 or 503 in plain text, or raises before it
    answers. The front's own errors are JSON and pass unchanged.
    """

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        started: bool = False
        replaced: bool = False

        async def send_or_replace(message: Message) -> None:
            nonlocal started, replaced
            started = True
            if message["type"] == "http.response.start" and message["status"] in (404, 500, 503):
                replaced = dict(message["headers"]).get(b"content-type") != b"application/json"
                if replaced:
                    await unavailable(scope, receive, send)
            if not replaced:
                await send(message)

        unavailable = problem(503, "the server stops or restarts; try again later", {"Retry-After": str(RETRY_AFTER)})
        try:
            await self.app(scope, receive, send_or_replace)
        except Exception:
            if started:
                raise
        if not started and scope["type"] == "http":  # the proxy raised or returned without an answer
            await unavailable(scope, receive, send)


def at_proxy() -> list[Middleware]:
    """Return the middlewares of Ray Serve's proxy. (It takes 0.3 s to forward 100,000 headers to the front.)"""
    return [Middleware(HeaderLimit), Middleware(Unavailable)]


class BodyLimit:
    """ASGI middleware that answers 413 to a body of more than ``limit`` bytes, and 408 to a stalled one.

    The body of a batch may have ``batch_limit`` bytes.
    """

    def __init__(self, app: ASGIApp, limit: int, batch_limit: int):
        self.app, self._limits = app, {False: ("--max-body", limit), True: ("--max-batch", batch_limit)}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        taken, more = 0, True
        name, limit = self._limits[scope.get("path", "").endswith(BATCHES)]

        async def limited() -> Message:
            nonlocal taken, more
            try:
                message = await asyncio.wait_for(receive(), _TIMEOUT if more else None)
            except asyncio.TimeoutError:  # noqa: UP041 - another class before Python 3.11
                raise HTTPException(408, f"the request stalled for {_TIMEOUT:.0f} s") from None
            taken += len(message.get("body", b""))
            more = message.get("more_body", False)
            if taken > limit:
                reason = f"the request is larger than {limit} bytes, the server's {name}"
                raise HTTPException(413, reason)
            return message

        await self.app(scope, limited, send)


class GuardedRoute(APIRoute):
    """A route that checks JSON bodies against the ``limits`` of the application's state."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        handle = super().get_route_handler()

        async def handle_guarded(request: Request) -> Response:
            return await handle(_GuardedRequest(request.scope, request.receive))

        return handle_guarded


class _GuardedRequest(Request):
    async def json(self) -> Any:
        body = await self.body()
        return await asyncio.get_running_loop().run_in_executor(_READER, _read, body, self.app.state.limits)


_AROUND = 200  # bytes outside strings for each allowed document: names, brackets and indentation

_READER = ThreadPoolExecutor(1)  # one thread, so that at most one large body is parsed at a time


def _read(body: bytes, limits: Limits) -> Any:
    """Parse the JSON of a body and check its limits. Raises HTTPException 400 or 413."""
    # Parsing a million small lists would block the interpreter for seconds.
    if len(body) > (most := _AROUND * limits.max_documents) and _around(body, most) > most:
        excess = f"more than {most} bytes outside texts for {limits.max_documents} documents"
        raise HTTPException(413, f"the body is too large: {excess}, the server's --max-documents")
    try:
        value = from_json(body, allow_inf_nan=False)
    except ValueError as error:
        raise HTTPException(400, f"the body is not JSON: {error}") from None
    if isinstance(value, dict) and isinstance(value.get("documents"), list):
        check_documents(value["documents"], limits)
    return value


def check_documents(documents: list[Any], limits: Limits) -> None:
    """Raises HTTPException 413 if ``documents``, each a text or an object with one, exceed the limits."""
    _check("documents", len(documents), limits.max_documents)
    for what, found in extent(documents).items():
        _check(what, found, getattr(limits, f"max_{what}"))


def _around(body: bytes, most: int) -> int:
    """Return the bytes of a JSON ``body`` outside strings, or any number above ``most`` if they exceed it."""
    bare = body.replace(b"\\\\", b"").replace(b'\\"', b"") if b"\\" in body else body
    if bare.count(b'"') > 2 * most + 2:  # two quotes for each string, and a separator between strings
        return most + 1
    return sum(map(len, bare.split(b'"')[::2]))


def extent(documents: Iterable[Any]) -> dict[str, int]:
    """Return the characters and lines of ``documents``, texts or objects with one, by the names in :class:`Limits`."""
    found = (document.get("text") if isinstance(document, Mapping) else document for document in documents)
    texts = [text for text in found if isinstance(text, str)]
    lines = sum(1 + max(text.count("\n"), text.count("\r")) for text in texts)
    return {"characters": sum(map(len, texts)), "paragraphs": lines}


def _check(what: str, found: int, most: int) -> None:
    if found > most:
        raise HTTPException(413, f"{found} {what} exceed {most}, the server's --max-{what}")


def problem(status: int, message: str, headers: dict[str, str] | None = None) -> JSONResponse:
    """Return an answer with a status other than 200. It ends the connection of a body that is too large or slow."""
    ending = {"Connection": "close"} if status in _UNREAD else {}
    return _Problem({"error": message}, status_code=status, headers={**ending, **(headers or {})})


class _Problem(JSONResponse):
    """A message in the form of the route that answers it."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        path = scope.get("path", "")
        if form := next((form for route, form in ERROR_FORMS.items() if path.endswith(route)), None):
            message = from_json(bytes(self.body))["error"]
            headers = {name: value for name, value in self.headers.items() if not name.startswith("content-")}
            answer = JSONResponse(form(self.status_code, message), self.status_code, headers)
            await answer(scope, receive, send)
        else:
            await super().__call__(scope, receive, send)
