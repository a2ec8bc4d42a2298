"""What the server refuses: bodies that are too large, and requests beyond what it can queue."""

from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

from starlette.responses import JSONResponse

RETRY_AFTER = 2  # seconds a refused client is told to wait: about one batch of decoding on a CPU

Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]


class Overloaded(Exception):
    """No replica can take the request now; the client should come again."""


class BodyLimit:
    """ASGI middleware: requests of more than ``limit`` bytes are answered 413 without being parsed."""

    def __init__(self, app: Callable[..., Awaitable[None]], limit: int):
        self.app = app
        self.limit = limit

    async def __call__(self, scope: Message, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return await self.app(scope, receive, send)
        announced = next((value for name, value in scope["headers"] if name == b"content-length"), b"0")
        body = None if int(announced) > self.limit else await self._read(receive)
        if body is None:
            refusal = JSONResponse({"error": f"the request is larger than {self.limit} bytes"}, status_code=413)
            return await refusal(scope, receive, send)
        await self.app(scope, _replay(body, receive), send)

    async def _read(self, receive: Receive) -> bytes | None:
        """The whole body, None where it is too large. A client that leaves early has sent what it has sent."""
        body = bytearray()
        while True:
            message = await receive()
            body += message.get("body", b"")
            if len(body) > self.limit:
                return None
            if not message.get("more_body"):
                return bytes(body)


def _replay(body: bytes, receive: Receive) -> Receive:
    """A ``receive`` that gives ``body`` first, then what the connection says."""
    messages = [{"type": "http.request", "body": body, "more_body": False}]

    async def replayed() -> Message:
        return messages.pop() if messages else await receive()

    return replayed
