"""What stands before the routes: bounds on a request's body, checked before and while it is read, and off the event
loop; and who may ask a server that is bound to this machine alone."""

import asyncio
from collections.abc import Callable, Coroutine, Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import Any
from urllib.parse import urlsplit

from fastapi import Request, Response
from fastapi.routing import APIRoute
from pydantic_core import from_json
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from raysum.serve.config import Limits

RETRY_AFTER = 2  # seconds that a refused client waits: about one batch of decoding on a CPU
LOCAL = ("localhost", "127.0.0.1", "::1")
_HEADERS = 1 << 16  # bytes of names and values
_PATIENCE = 30.0  # seconds within which each piece of a body has to come


class LocalOnly:
    """ASGI middleware: only requests to and from pages of this machine, by their names for it.

    A page from elsewhere that a browser here shows could otherwise use the server: under a name of its own that it
    lets point at this machine (DNS rebinding).
    """

    def __init__(self, app: ASGIApp):
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and (message := _foreign(Request(scope))):
            await problem(403, message)(scope, receive, send)
        else:
            await self.app(scope, receive, send)


def _foreign(request: Request) -> str | None:
    """What is wrong with where the request comes from or goes to; None where nothing is."""
    host, origin = request.headers.get("host", ""), request.headers.get("origin")
    for name, place in (("Host", f"//{host}"), ("Origin", origin)):
        if place is not None and _hostname(place) not in LOCAL:
            shown = place.removeprefix("//")[:100]
            return f"this server answers this machine alone, as {', '.join(LOCAL)}; not {name}: {shown}"
    return None


def _hostname(place: str) -> str | None:
    try:
        return urlsplit(place).hostname
    except ValueError:
        return None


class HeaderLimit:
    """ASGI middleware: headers of more than 64 KiB are answered 431."""

    def __init__(self, app: ASGIApp):
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if sum(len(name) + len(value) for name, value in scope.get("headers", ())) > _HEADERS:
            await problem(431, f"the headers are larger than {_HEADERS} bytes")(scope, receive, send)
        else:
            await self.app(scope, receive, send)


class Unavailable:
    """ASGI middleware of Ray Serve's proxy: errors of the proxy itself become 503 with Retry-After.

    While the server stops or a front restarts, the proxy answers 404, 500 or 503 in plain text, or raises before it
    answers. The front's own errors are JSON and pass unchanged.
    """

    def __init__(self, app: ASGIApp):
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        started = replaced = False

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
            await unavailable(scope, receive, send)


def at_proxy() -> list[Middleware]:
    """The middlewares of Ray Serve's proxy, in a Ray of ours.

    100,000 headers take the proxy 0.3 s to hand on to the front.
    """
    return [Middleware(HeaderLimit), Middleware(Unavailable)]


class BodyLimit:
    """ASGI middleware: a body is read up to ``limit`` bytes; what is larger is answered 413 without being parsed, what
    stops coming 408."""

    def __init__(self, app: ASGIApp, limit: int):
        self.app, self.limit = app, limit

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        taken, more = 0, True

        async def limited() -> Message:
            nonlocal taken, more
            try:
                message = await asyncio.wait_for(receive(), _PATIENCE if more else None)
            except asyncio.TimeoutError:  # noqa: UP041 - another class before Python 3.11
                raise HTTPException(408, f"nothing more of the request came within {_PATIENCE:.0f} s") from None
            taken += len(message.get("body", b""))
            more = message.get("more_body", False)
            if taken > self.limit:
                told = f"the request is larger than {self.limit} bytes; the server's --max-body says it"
                raise HTTPException(413, told)
            return message

        await self.app(scope, limited, send)


class GuardedRoute(APIRoute):
    """A route whose JSON bodies are within the ``limits`` of the application's state."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        handle = super().get_route_handler()

        async def handle_guarded(request: Request) -> Response:
            return await handle(_GuardedRequest(request.scope, request.receive))

        return handle_guarded


class _GuardedRequest(Request):
    async def json(self) -> Any:
        body = await self.body()
        return await asyncio.get_running_loop().run_in_executor(_READER, _read, body, self.app.state.limits)


_AROUND = 200  # bytes outside of strings for each document that may come, for names, brackets and indentation

_READER = ThreadPoolExecutor(1)  # so that many large bodies never lie parsed in memory at one time


def _read(body: bytes, limits: Limits) -> Any:
    """A body's JSON, whose parts are few enough to be checked one by one. Raises HTTPException 400 or 413."""
    # A million small lists would hold the interpreter for seconds while they are made.
    if len(body) > (most := _AROUND * limits.max_documents) and _around(body, most) > most:
        told = f"more than {most} bytes of it are no text, too many for {limits.max_documents} documents"
        raise HTTPException(413, f"the body holds too much: {told}; the server's --max-documents says it")
    try:
        value = from_json(body, allow_inf_nan=False)
    except ValueError as error:
        raise HTTPException(400, f"the body is not JSON: {error}") from None
    documents = value.get("documents") if isinstance(value, dict) else None
    if isinstance(documents, list):
        _check("documents", len(documents), limits.max_documents)
        texts = (document.get("text") if isinstance(document, dict) else document for document in documents)
        for what, found in extent(text for text in texts if isinstance(text, str)).items():
            _check(what, found, getattr(limits, f"max_{what}"))
    return value


def _around(body: bytes, most: int) -> int:
    """Bytes of a JSON ``body`` outside of its strings; more than ``most`` as soon as that is certain."""
    bare = body.replace(b"\\\\", b"").replace(b'\\"', b"") if b"\\" in body else body
    if bare.count(b'"') > 2 * most + 2:  # two for each string, and a comma or colon between two of them
        return most + 1
    return sum(map(len, bare.split(b'"')[::2]))


def extent(texts: Iterable[str]) -> dict[str, int]:
    """How many characters and lines there are, by the names that :class:`Limits` has for them."""
    texts = list(texts)
    lines = sum(1 + max(text.count("\n"), text.count("\r")) for text in texts)
    return {"characters": sum(map(len, texts)), "paragraphs": lines}


def _check(what: str, found: int, most: int) -> None:
    if found > most:
        raise HTTPException(
            413, f"{found} {what} are more than the {most} that a request may hold; the server's --max-{what} says it"
        )


def problem(status: int, message: str, headers: dict[str, str] | None = None) -> JSONResponse:
    """The one form of every answer that is not 200."""
    return JSONResponse({"error": message}, status_code=status, headers=headers)
