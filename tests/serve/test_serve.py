"""`raysum serve`: the HTTP interface by itself, the client, and the server as a process."""

import asyncio
import json
import time
from collections.abc import AsyncIterator
from typing import Any

import httpx
import pytest
from starlette.responses import JSONResponse, PlainTextResponse, Response

from raysum.config.decoding import DecodeConfig, ExtractConfig
from raysum.errors import UserError
from raysum.extract.summarizer import load
from raysum.serve import guard
from raysum.serve.api import build_api
from raysum.serve.config import Limits
from raysum.serve.events import BACKGROUND, MAX_TOKENS, Event, asked_settings, failed, queued
from raysum.serve.guard import Overloaded
from raysum.serve.schema import FIXED, Health, Options

LIMIT = 2000  # bytes
LIMITS = Limits(max_body=LIMIT, max_documents=50, max_paragraphs=60, max_characters=900)


class Echo:
    """A service that returns its request. Titles select failures."""

    async def summarize(self, cluster: dict[str, Any], settings: dict[str, Any]) -> dict[str, Any]:
        if cluster["title"] == "unusable":
            raise UserError("no text in the documents")
        if cluster["title"] == "busy":
            raise Overloaded("too many requests are waiting")
        if cluster["title"] == "broken":
            raise ZeroDivisionError("a fault of ours")
        return {"cluster": cluster, "settings": settings}

    async def stream(self, cluster: dict[str, Any], settings: dict[str, Any]) -> AsyncIterator[Event]:
        if cluster["title"] == "refused":
            yield failed("costs too much", 422)
            return
        yield queued(3)
        yield {"event": "result", "data": await self.summarize(cluster, settings)}


def ask(
    method: str = "POST", path: str = "/v1/summarize", limits: Limits = LIMITS, local: bool = False, **request: Any
) -> httpx.Response:
    async def send() -> httpx.Response:
        api = build_api({"pht": Echo()}, Health(status="ok", run="pht", step=7), limits, local)
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


def test_a_stream_sends_events_and_refuses_before_its_first():
    def events(title: str) -> httpx.Response:
        return ask(path="/v1/summarize/stream", json={"title": title, "documents": ["one"]})

    answered = events("Florence")
    assert answered.headers["content-type"].startswith("text/event-stream")
    first, last, rest = answered.text.split("\n\n")
    assert first == 'event: queued\ndata: {"position": 3}' and not rest
    assert json.loads(last.removeprefix("event: result\ndata: "))["cluster"]["title"] == "Florence"
    assert error(events("refused"), 422) == "costs too much"
    for title, status in (("busy", 503), ("broken", 500)):  # after the first event
        name, data = events(title).text.split("\n\n")[-2].split("\ndata: ")
        assert (name, json.loads(data)["status"]) == ("event: error", status)


@pytest.mark.parametrize("value", ["trigam", 3, -1, True, "0.5", [1]])
def test_a_wrong_redundancy_is_told_once_with_all_that_it_can_be(value):
    asked = {"documents": ["one"], "options": {"redundancy": value}}
    assert error(ask(json=asked), 422) == "options.redundancy: must be a number from 0 to 1, trigram or mmr"
    for good in ("mmr", 0.5, 1):
        assert ask(json=asked | {"options": {"redundancy": good}}).json()["settings"] == {"redundancy": good}


@pytest.mark.parametrize("value", ["true", 1, 0, [True]])
def test_a_wrong_early_stopping_is_told_once(value):
    message = "options.early_stopping: must be true, false or never; null selects raysum's own rule"
    assert error(ask(json={"documents": ["one"], "options": {"early_stopping": value}}), 422) == message


def test_every_decoding_setting_that_needs_no_more_memory_is_taken_with_the_bounds_of_the_config():
    settings = {"min_length": 5, "block_across_sentences": True, "no_repeat_last": 2, "title_prompt": False}
    settings |= {"beta": 0.5, "alignment_reduction": "mean", "structural_coverage": 0.1, "gnmt_coverage": 0.2}
    settings |= {"keep_paragraphs": 3, "citations": "lexical", "length_normalization": "length", "words": 50}
    settings |= {"early_stopping": "never", "forced_bos_token_id": 4, "forced_eos_token_id": 5}
    settings |= {"citing_layers": [1, -1], "bad_words_ids": [[7], [8, 9]], "repetition_penalty": 1.5}
    settings |= {"encoder_no_repeat_ngram_size": 3}
    asked = {"documents": [{"text": "two"}], "options": settings | {"beam_size": 4}}
    answered = ask(json=asked).json()
    assert answered["settings"] == settings | {"num_beams": 4}
    assert answered["cluster"]["documents"] == [{"text": "two"}], "a source is not needed"
    taken = {*Options.model_fields}
    assert {*DecodeConfig.model_fields} - taken == {*FIXED} and {*ExtractConfig.model_fields} <= taken
    properties = Options.model_json_schema()["properties"]
    for section in (DecodeConfig, ExtractConfig):
        for name, of_config in section.model_json_schema()["properties"].items():
            if name not in (*FIXED, "num_beams", "max_length", "no_repeat_ngram_size"):
                one, *_ = properties[name]["anyOf"]
                kinds = of_config.get("anyOf", [of_config])
                assert {key: kinds[0].get(key) for key in one} == one, name


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"title": None}, "title: Input should be a valid string"),
        ({"documents": []}, "documents: List should have at least 1 item"),
        ({"documents": ["a", 3]}, "documents.1: Input should be a valid string"),
        ({"documents": ["a", {"source": "b"}]}, "documents.1: needs either text or data"),
        ({"documents": ["a", {"text": "b", "titel": "c"}]}, "documents.1.titel: unknown field"),
        ({"documents": ["a", {"text": "b", "sorce": "c"}]}, "documents.1.sorce: unknown field, did you mean 'source'?"),
        ({"num_beams": 2}, "num_beams: unknown field, did you mean 'options.num_beams'?"),
        ({"titel": 2}, "titel: unknown field, did you mean 'title'?"),
        ({"str": 2}, "str: unknown field"),
        ({"options": {"str": 2}}, "options.str: unknown field"),
        ({"options": {"num_beems": 2}}, "options.num_beems: unknown field, did you mean 'num_beams'?"),
        ({"options": {"beam_sise": 2}}, "options.beam_sise: unknown field, did you mean 'beam_size'?"),
        (
            {"options": {"batch_examples": 2}},
            "options.batch_examples: is a setting of the server: start it with",
        ),
        ({"options": {"ranker": "x"}}, "options.ranker: is a setting of the server: start it with --set ranker="),
        ({"options": {"beta": -1}}, "options.beta: Input should be greater than or equal to 0"),
        ({"options": {"citing_layers": [1, 0]}}, "options.citing_layers: layers are counted from 1, or from the"),
        ({"options": {"citing_layers": 2}}, "options.citing_layers: Input should be a valid list"),
        ({"options": {"citations": "all"}}, "options.citations: Input should be 'attention', 'lexical' or 'both'"),
        ({"document": ["a"]}, "document: unknown field"),
        ({"options": {"num_beams": "4"}}, "options.num_beams: Input should be a valid integer"),
        ({"options": {"num_beams": 1000}}, "options.num_beams: Input should be less than or equal to 16"),
        ({"options": {"beam": 4}}, "options.beam: unknown field"),
        ({"title": "a" * 1001}, "title: String should have at most 1000 characters"),
        ({"x" * 1500: 1}, "x" * 40 + "...: unknown field"),
        ({f"x{number}": 1 for number in range(99)}, "the body: 101 fields, most of them unknown"),
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
    deep, half, huge = b"[" * LIMIT, b'{"title": "\\ud800", "documents": ["b"]}', b'{"title": ' + b"9" * 1500 + b"}"
    for content in (deep, half, huge[:-1], b'{"a": NaN}', b"\xff", b"\x00", b'{"title": "\x00"}'):
        assert "not JSON" in error(ask(content=content, headers=head), 400)
    assert "title" in error(ask(content=huge, headers=head), 422)


def test_failures_have_their_status():
    def titled(title: str) -> httpx.Response:
        return ask(json={"title": title, "documents": ["b"]})

    assert error(titled("unusable"), 400) == "no text in the documents"
    assert "waiting" in error(titled("busy"), 503)
    assert int(titled("busy").headers["Retry-After"]) > 0
    assert "ZeroDivisionError" in error(titled("broken"), 500)
    error(ask("GET", "/nowhere"), 404)
    error(ask("GET", "/v1/summarize"), 405)


def test_a_setting_of_another_kind_of_model_is_named_as_in_the_request():
    extractor = load("lexrank")
    asked = {"words": 40, BACKGROUND: True, MAX_TOKENS: 30}
    assert asked_settings(extractor.choose, asked) == (ExtractConfig(words=30), True)
    with pytest.raises(UserError, match="^options: unknown key 'num_beams'"):
        asked_settings(extractor.choose, {"num_beams": 4})


def test_a_service_without_batches_says_how_to_have_them():
    for method, path in (("POST", ""), ("GET", ""), ("GET", "/batch_1/results"), ("POST", "/batch_1/cancel")):
        assert "--batches FOLDER" in error(ask(method, f"/v1/batches{path}"), 404)


def test_head_is_answered_as_get_is():
    """Monitors ask so. The server sends no body of these answers."""
    answers = [ask(method, "/healthz") for method in ("HEAD", "GET")]
    assert answers[0].status_code == 200 and answers[0].headers == answers[1].headers
    assert ask("HEAD", "/nowhere").status_code == 404
    assert ask("HEAD", "/v1/summarize").status_code == 405


def test_a_large_body_is_refused_announced_or_not():
    async def pieces():
        for _ in range(30):
            yield b"x" * 100

    assert "65536 bytes" in error(ask(json={"title": "a", "documents": ["b"]}, headers={"x": "y" * (1 << 16)}), 431)
    assert str(LIMIT) in error(ask(content=b"x" * (LIMIT + 1)), 413)
    assert str(LIMIT) in error(ask(content=pieces()), 413)
    whole = '{"title":"a","documents":["b"]}'.ljust(LIMIT)
    assert ask(content=whole, headers={"Content-Type": "application/json"}).status_code == 200


@pytest.mark.parametrize(
    ("documents", "message"),
    [
        (["a"] * 51, "51 documents exceed 50, the server's --max-documents"),
        (["a\nb", "\n" * 58], "61 paragraphs exceed 60"),
        (["a\r" * 60], "61 paragraphs exceed 60"),
        ([{"source": "a.txt", "text": "a" * 450}, "b" * 451], "901 characters exceed 900"),
    ],
)
def test_what_a_request_may_hold_is_bounded_and_the_bound_named(documents: list[Any], message: str):
    assert error(ask(json={"title": "a", "documents": documents}), 413).startswith(message)


def test_a_body_that_stops_coming_is_not_waited_for(monkeypatch: pytest.MonkeyPatch):
    async def pieces():
        yield b'{"title": '
        await asyncio.sleep(60)

    monkeypatch.setattr(guard, "_TIMEOUT", 0.2)
    assert "the request stalled" in error(ask(content=pieces()), 408)


def test_a_request_at_its_bounds_is_taken():
    for documents in (["a"] * 50, ["\n" * 59], ["a" * 450, {"source": "a.txt", "text": "b" * 450}]):
        assert ask(json={"title": "a", "documents": documents}).status_code == 200


def test_ten_problems_are_listed_and_the_others_counted():
    unknown = {str(number): 1 for number in range(10)}
    told = error(ask(json={"title": "a", "documents": [unknown] * 5, "titel": "b"}), 422)
    assert told.count(";") == 10 and told.endswith("; and 1 more")
    assert "documents.1" not in told  # of thousands of wrong documents all would be looked at while others wait


@pytest.mark.parametrize("place", [b'"documents"', b'"documents": ["a"], "id"'])
def test_a_million_wrong_values_are_not_even_made(place: bytes):
    body = b'{"title": "a", ' + place + b": [" + b"{}," * 1_000_000 + b"{}]}"
    before = time.process_time()
    response = ask(content=body, headers={"Content-Type": "application/json"}, limits=Limits())
    assert "outside texts for 1000 documents, the server's --max-documents" in error(response, 413)
    assert time.process_time() - before < 0.5  # to make, check and list them took 13 s, to make them alone 2 s


@pytest.mark.parametrize("text", ['"', "\\", '\\"', "[]", "a"])
def test_text_is_told_from_what_is_around_it(text: str):
    documents = [{"source": "a.txt", "text": text * 900}] * 1000
    assert ask(json={"title": "a", "documents": documents}, limits=Limits()).status_code == 200
    unclosed = '{"title": "a", "documents": ["' + text * 20_000
    assert "the body is not JSON" in error(
        ask(content=unclosed.encode(), headers={"Content-Type": "application/json"}, limits=Limits()), 400
    )


PLACES = [
    ({}, 200),
    ({"Host": "127.0.0.1:8000"}, 200),
    ({"Host": "[::1]:8000"}, 200),
    ({"Host": "LocalHost"}, 200),
    ({"Host": "evil.example"}, 403),
    ({"Host": "127.0.0.1.evil.example:8000"}, 403),
    ({"Host": "localhost@evil.example"}, 403),
    ({"Host": "[::1"}, 403),
    ({"Host": ""}, 403),
    ({"Origin": "http://localhost:3000"}, 200),
    ({"Origin": "https://evil.example"}, 403),
    ({"Origin": "null"}, 403),
]


@pytest.mark.parametrize(("headers", "status"), PLACES)
def test_a_server_of_this_machine_alone_refuses_foreign_names_and_pages(headers: dict[str, str], status: int):
    headers = {"Host": "localhost:8000"} | headers
    response = ask(json={"title": "a", "documents": ["b"]}, headers=headers, local=True)
    assert response.status_code == status
    if status == 403:
        assert "only from this machine" in error(response, 403)
        assert "only from this machine" in error(ask("GET", "/openapi.json", headers=headers, local=True), 403)
    assert ask(json={"title": "a", "documents": ["b"]}, headers=headers).status_code == 200


async def fail_before_answering(scope, receive, send):
    raise ConnectionError("the front was killed")


@pytest.mark.parametrize(
    ("inner", "status"),
    [
        (PlainTextResponse("Path '/v1/summarize' not found.", 404), 503),
        (PlainTextResponse("Internal Server Error", 500), 503),
        (PlainTextResponse("Deployment is unavailable.", 503), 503),
        (fail_before_answering, 503),
        (PlainTextResponse("timed out", 408), 408),
        (PlainTextResponse("success", 200), 200),
        (JSONResponse({"error": "Not Found"}, 404), 404),
        (JSONResponse({"error": "internal error (ZeroDivisionError)"}, 500), 500),
    ],
)
def test_what_the_proxy_cannot_answer_is_503_and_what_the_front_answers_stays(inner: Response, status: int):
    async def send() -> httpx.Response:
        transport = httpx.ASGITransport(guard.Unavailable(inner))
        async with httpx.AsyncClient(transport=transport, base_url="http://server") as http:
            return await http.post("/v1/summarize")

    response = asyncio.run(send())
    assert response.status_code == status
    if status == 503:
        assert "try again later" in error(response, 503) and int(response.headers["Retry-After"]) > 0
    else:
        assert response.content == inner.body and "Retry-After" not in response.headers


def test_health_and_the_openapi_page_need_nothing_from_elsewhere():
    assert ask("GET", "/healthz").json() == {"status": "ok", "run": "pht", "step": 7}
    page = ask("GET", "/docs").text
    assert "POST" in page and "/v1/summarize" in page and "no_repeat_ngram_size" in page
    assert "<script" not in page and "http://server/v1/summarize" in page
    assert 'src="' not in page and "//cdn" not in page
    assert "/v1/summarize" in ask("GET", "/openapi.json").json()["paths"]
