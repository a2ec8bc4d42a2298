"""The client against a small HTTP server that fails as it is told."""

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer

import pytest

from raysum.errors import UserError
from raysum.serve.client import Client


class Scripted(HTTPServer):
    """Answers with the statuses in ``script``, then with 200 and the request's body."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.script: list[int] = []
        self.asked = 0


class Handler(BaseHTTPRequestHandler):
    server: Scripted

    def do_POST(self) -> None:
        self.server.asked += 1
        body = self.rfile.read(int(self.headers["Content-Length"]))
        status = self.server.script.pop(0) if self.server.script else 200
        self.send_response(status)
        self.send_header("Retry-After", "0")
        self.end_headers()
        self.wfile.write(body if status == 200 else json.dumps({"error": f"told {status}"}).encode())

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def server() -> Iterator[Scripted]:
    with Scripted() as scripted:
        threading.Thread(target=scripted.serve_forever, daemon=True).start()
        yield scripted
        scripted.shutdown()


def client(server: Scripted, retries: int = 5) -> Client:
    return Client(f"http://127.0.0.1:{server.server_port}", retries=retries)


def test_a_request_is_tried_again_until_it_is_answered(server: Scripted):
    server.script = [503, 500]
    asked = client(server).summarize("Florence", ["one"], id="x", num_beams=2)
    assert asked == {"title": "Florence", "documents": ["one"], "options": {"num_beams": 2}, "id": "x"}
    assert server.asked == 3


def test_a_refused_request_is_not_tried_again(server: Scripted):
    server.script = [400]
    with pytest.raises(UserError, match="400: told 400"):
        client(server).summarize("Florence", [])
    assert server.asked == 1


def test_patience_ends(server: Scripted):
    server.script = [503] * 9
    with pytest.raises(UserError, match="503: told 503"):
        client(server, retries=2).summarize("Florence", ["one"])
    assert server.asked == 3


def test_where_nothing_answers_the_address_is_named():
    with pytest.raises(UserError, match="nothing answers at http://127.0.0.1:9"):
        Client("http://127.0.0.1:9", retries=1).health()
    with pytest.raises(UserError, match="is not a URL"):
        Client("127.0.0.1:8000").health()


@pytest.mark.parametrize("key", ["ké", "a\nb", "a\0b"])
def test_a_key_that_no_server_has_is_one_message(key: str):
    with pytest.raises(UserError, match="the key has characters that no key has; set RAYSUM_KEY"):
        Client(key=key)
    Client(key="raysum-a\r\n").close()
