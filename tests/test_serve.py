"""`raysum serve`: the HTTP interface by itself, the client, and the server as a process."""

import asyncio
from typing import Any

import httpx
import pytest

from raysum.errors import UserError
from raysum.serve.api import Overloaded, build_api
from raysum.serve.schema import Health

LIMIT = 2000  # bytes


async def answer(cluster: dict[str, Any], settings: dict[str, Any]) -> dict[str, Any]:
    """Gives back what it was asked; titles name the ways to fail."""
    if cluster["title"] == "unusable":
        raise UserError("no text in the documents")
    if cluster["title"] == "busy":
        raise Overloaded("too many requests are waiting")
    if cluster["title"] == "broken":
        raise ZeroDivisionError("a fault of ours")
    return {"cluster": cluster, "settings": settings}


def ask(method: str = "POST", path: str = "/v1/summarize", **request: Any) -> httpx.Response:
    async def send() -> httpx.Response:
        api = build_api(answer, Health(status="ok", run="pht", step=7), max_body=LIMIT)
        transport = httpx.ASGITransport(api, raise_app_exceptions=False)
        async with httpx.AsyncClient(transport=transport, base_url="http://server") as http:
            return await http.request(method, path, **request)

    return asyncio.run(send())


def error(response: httpx.Response, status: int) -> str:
    assert response.status_code == status
    assert set(response.json()) == {"error"}
    return response.json()["error"]


def test_a_request_reaches_the_model_as_a_raw_cluster_and_the_settings_that_were_given():
    documents = ["one", {"source": "a.txt", "text": "two"}]
    asked = {"title": "Florence", "documents": documents, "options": {"num_beams": 2, "length_penalty": 1}}
    assert ask(json=asked).json() == {
        "cluster": {"title": "Florence", "documents": documents},
        "settings": {"num_beams": 2, "length_penalty": 1},
    }
    assert ask(json=asked | {"id": "x"}).json()["cluster"]["id"] == "x"


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"title": None}, "title: Input should be a valid string"),
        ({"documents": []}, "documents: List should have at least 1 item"),
        ({"documents": ["a", 3]}, "documents.1: Input should be a valid string"),
        ({"documents": ["a", {"text": "b"}]}, "documents.1.source: Field required"),
        ({"document": ["a"]}, "document: unknown field"),
        ({"options": {"num_beams": "4"}}, "options.num_beams: Input should be a valid integer"),
        ({"options": {"num_beams": 1000}}, "options.num_beams: Input should be less than or equal to 16"),
        ({"options": {"beam": 4}}, "options.beam: unknown field"),
        ({"id": "\ud800"}, "id: Input should be a valid string"),
    ],
)
def test_a_wrong_field_is_named(change: dict[str, Any], message: str):
    import json

    body = json.dumps({"title": "a", "documents": ["b"]} | change)
    told = error(ask(content=body, headers={"Content-Type": "application/json"}), 422)
    assert told.startswith(message)
    assert ";" not in told  # one mistake, one complaint


def test_what_is_no_json_object_is_said_so():
    head = {"Content-Type": "application/json"}
    assert "not JSON" in error(ask(content=b'{"title": ', headers=head), 400)
    assert "must be a JSON object" in error(ask(content=b"[1]", headers=head), 422)
    assert "application/json" in error(ask(content=b'{"title": "a", "documents": ["b"]}'), 422)
    error(ask(content=b"[" * LIMIT, headers=head), 400)


def test_failures_have_their_status():
    def titled(title: str) -> httpx.Response:
        return ask(json={"title": title, "documents": ["b"]})

    assert error(titled("unusable"), 400) == "no text in the documents"
    assert "waiting" in error(titled("busy"), 503)
    assert int(titled("busy").headers["Retry-After"]) > 0
    assert "ZeroDivisionError" in error(titled("broken"), 500)
    error(ask("GET", "/nowhere"), 404)
    error(ask("GET", "/v1/summarize"), 405)


def test_a_large_body_is_refused_announced_or_not():
    async def pieces():
        for _ in range(30):
            yield b"x" * 100

    assert str(LIMIT) in error(ask(content=b"x" * (LIMIT + 1)), 413)
    assert str(LIMIT) in error(ask(content=pieces()), 413)
    title = "a" * (LIMIT - len('{"title":"","documents":["b"]}'))
    whole = f'{{"title":"{title}","documents":["b"]}}'
    assert len(whole) == LIMIT
    assert ask(content=whole, headers={"Content-Type": "application/json"}).json()["cluster"]["title"] == title


def test_health_and_the_openapi_page_need_nothing_from_elsewhere():
    assert ask("GET", "/healthz").json() == {"status": "ok", "run": "pht", "step": 7}
    page = ask("GET", "/docs").text
    assert "POST" in page and "/v1/summarize" in page and "no_repeat_ngram_size" in page
    assert "<script" not in page and "http://server/v1/summarize" in page
    assert 'src="' not in page and "//cdn" not in page
    assert "/v1/summarize" in ask("GET", "/openapi.json").json()["paths"]
