"""The client against a small HTTP server that fails as it is told."""

import asyncio
import json
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import Any

import pytest

from raysum.errors import UserError
from raysum.serve.client import AsyncClient, Client


class Scripted(HTTPServer):
    """Answers with the statuses in ``script``, then with 200 and the request's body."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.script: list[int] = []
        self.asked, self.stream = 0, ""  # the body of a stream
        self.refusal = ""  # the body of an answer with another status than 200


class Handler(BaseHTTPRequestHandler):
    server: Scripted

    def do_POST(self) -> None:
        self.server.asked += 1
        body = self.rfile.read(int(self.headers["Content-Length"]))
        status = self.server.script.pop(0) if self.server.script else 200
        self.send_response(status)
        self.send_header("Retry-After", "0")
        self.end_headers()
        body = self.server.stream.encode() or body
        refusal = self.server.refusal or json.dumps({"error": f"told {status}"})
        self.wfile.write(body if status == 200 else refusal.encode())

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def server() -> Iterator[Scripted]:
    with Scripted() as scripted:
        threading.Thread(target=scripted.serve_forever, daemon=True).start()
        yield scripted
        scripted.shutdown()


class Awaited:
    """An AsyncClient whose methods wait."""

    def __init__(self, *arguments: Any, **options: Any):
        self._made = arguments, options

    def __getattr__(self, name: str) -> Callable[..., Any]:
        async def ask(*arguments: Any, **options: Any) -> Any:
            made, settings = self._made
            async with AsyncClient(*made, **settings) as client:
                answer = getattr(client, name)(*arguments, **options)
                return [event async for event in answer] if name == "stream" else await answer

        return lambda *arguments, **options: asyncio.run(ask(*arguments, **options))


@pytest.fixture(params=[Client, Awaited])
def kind(request) -> Callable[..., Any]:
    return request.param


@pytest.fixture
def client(server: Scripted, kind) -> Callable[..., Any]:
    return lambda retries=5: kind(f"http://127.0.0.1:{server.server_port}", retries=retries)


def test_a_request_is_tried_again_until_it_is_answered(server: Scripted, client):
    server.script = [503, 500]
    asked = client().summarize("Florence", ["one"], id="x", num_beams=2)
    assert asked == {"title": "Florence", "documents": ["one"], "options": {"num_beams": 2}, "id": "x"}
    assert server.asked == 3


def test_a_refused_request_is_not_tried_again(server: Scripted, client):
    server.script = [400]
    with pytest.raises(UserError, match="400: told 400"):
        client().summarize("Florence", [])
    assert server.asked == 1


def test_patience_ends(server: Scripted, client):
    server.script = [503] * 9
    with pytest.raises(UserError, match="503: told 503"):
        client(retries=2).summarize("Florence", ["one"])
    assert server.asked == 3


def test_where_nothing_answers_the_address_is_named(kind):
    with pytest.raises(UserError, match="nothing answers at http://127.0.0.1:9"):
        kind("http://127.0.0.1:9", retries=1).health()
    for wrong in ("127.0.0.1:8000", "http://127.0.0.1:99999"):
        with pytest.raises(UserError, match="is not a URL"):
            kind(wrong).health()


@pytest.mark.parametrize("key", ["ké", "a\nb", "a\0b"])
def test_a_key_that_no_server_has_is_one_message(key: str):
    with pytest.raises(UserError, match="the key has characters that no key has; set RAYSUM_KEY"):
        Client(key=key)
    Client(key="raysum-a\r\n").close()


@pytest.mark.parametrize(
    ("lines", "events", "problem"),
    [
        (['event: queued\ndata: {"position": 1}\n', 'event: result\ndata: {"id": "x"}\n'], ["queued", "result"], ""),
        (['event: queued\ndata: {"position": 1}\n'], [], "ended before its result"),
        (['event: error\ndata: {"error": "too long", "status": 422}\n'], [], "422: too long"),
    ],
)
def test_a_stream_yields_events_until_its_result(server: Scripted, client, lines, events, problem):
    server.stream = "\n".join(lines)
    if problem:
        with pytest.raises(UserError, match=problem):
            [*client().stream("Florence", ["one"])]
    else:
        assert [name for name, _ in client().stream("Florence", ["one"])] == events


def test_a_refused_stream_is_one_message(server: Scripted, client):
    server.script = [422]
    with pytest.raises(UserError, match="422: told 422"):
        [*client().stream("Florence", ["one"])]


FOREIGN = ["<html>A page</html>", "[1]", "data: no\n\n", "event: error\ndata: [3]\n\n", "event: error\ndata: {}\n\n"]


@pytest.mark.parametrize("body", FOREIGN)
def test_another_web_server_is_one_message(server: Scripted, client, body: str):
    server.stream = server.refusal = body
    for status in (200, 404, 301):
        for ask in ("summarize", "stream"):
            server.script = [status]
            with pytest.raises(UserError, match="does not answer as `raysum serve` does; check the address"):
                [*getattr(client(), ask)("Florence", ["one"])]
    server.script, server.refusal = [502] * 3, "<html>Bad gateway</html>"
    with pytest.raises(UserError, match="answers 502$"):
        client(retries=2).summarize("Florence", ["one"])


def test_requests_of_one_async_client_wait_side_by_side(server: Scripted):
    async def ask() -> list[dict[str, Any]]:
        async with AsyncClient(f"http://127.0.0.1:{server.server_port}") as client:
            return await asyncio.gather(*(client.summarize(str(number), ["one"]) for number in range(5)))

    assert [answer["title"] for answer in asyncio.run(ask())] == ["0", "1", "2", "3", "4"]


@pytest.mark.parametrize("documents", ["A bridge was built.", {"text": "A bridge was built."}, None])
def test_a_single_document_is_not_taken_for_a_list(documents):
    with pytest.raises(UserError, match=r"documents is not a list: .*\[document\]"):
        Client("http://127.0.0.1:1").summarize("Bridge", documents)


def test_bytes_and_requests_without_ids_are_refused():
    with pytest.raises(UserError, match="a document is bytes: decode it to a text"):
        Client("http://127.0.0.1:1").summarize("Bridge", [b"A bridge was built."])
    with pytest.raises(UserError, match="requests have no ids: put them into a dictionary"):
        Client("http://127.0.0.1:1").start_batch([{"title": "Bridge"}])
