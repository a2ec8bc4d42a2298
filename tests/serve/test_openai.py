"""OpenAI's routes: its own client understands each answer, and every citation quotes its document."""

import asyncio
import base64
import json
import random
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any, TypeVar

import httpx
import openai
import pytest
from openai import AsyncOpenAI
from openai.types.chat import ChatCompletion, ChatCompletionChunk
from openai.types.responses import Response

from helpers.small_runs import TEXTS, write_run
from helpers.small_services import LEXRANK, LIMITS, routes
from raysum.serve.config import Limits, ModelConfig
from raysum.serve.events import Event, Service, failed, grown, queued
from raysum.serve.guard import Overloaded
from raysum.serve.replicas import Model
from raysum.serve.served import Served

T = TypeVar("T")


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> ModelConfig:
    return ModelConfig(run=str(write_run(tmp_path_factory.mktemp("openai"))))


def http(service: Service, name: str = "lexrank", limits: Limits = LIMITS) -> httpx.AsyncClient:
    transport = httpx.ASGITransport(routes(service, name, limits), raise_app_exceptions=False)
    return httpx.AsyncClient(transport=transport, base_url="http://server", timeout=60)


def asked(call: Callable[[AsyncOpenAI], Awaitable[T]], service: Service = LEXRANK, name: str = "lexrank") -> T:
    """Return the result of a call of OpenAI's client."""

    async def ask() -> T:
        async with http(service, name) as server:
            client = AsyncOpenAI(base_url="http://server/v1", api_key="none", http_client=server, max_retries=0)
            return await call(client)

    return asyncio.run(ask())


def post(path: str, service: Service = LEXRANK, **body: Any) -> httpx.Response:
    async def ask() -> httpx.Response:
        async with http(service) as server:
            return await server.post(f"/v1/{path}", json={"model": "lexrank"} | body)

    return asyncio.run(ask())


def user(*texts: str) -> list[Any]:
    return [{"role": "user", "content": [{"type": "text", "text": text} for text in texts]}]


def refused(status: int, path: str = "chat/completions", **body: Any) -> str:
    """Return the message of a refused request, which has OpenAI's form."""
    default = {"messages": user("one")} if path == "chat/completions" else {"input": "one"}
    response = post(path, **(default | body))
    assert response.status_code == status, response.text
    error = response.json()["error"]
    assert set(response.json()) == {"error"} and {*error} == {"message", "type", "param", "code"}
    assert error["type"] == "invalid_request_error"
    return error["message"]


def check_quotes(text: str, documents: list[str], citations: list[dict[str, Any]]) -> None:
    """Check that each citation has the sentence of the summary and the quote of the document."""
    for cited in citations:
        assert 0 <= cited["start_index"] < cited["end_index"] <= len(text)
        quote = documents[cited["document_index"]][cited["start_char_index"] : cited["end_char_index"]]
        assert cited["cited_text"] == quote and quote.strip()


class Told:
    """A service with given events."""

    def __init__(self, *events: Event | Exception):
        self.events, self.asked = events, list[Any]()

    async def summarize(self, cluster: dict[str, Any], settings: dict[str, Any]) -> dict[str, Any]:
        raise NotImplementedError

    async def stream(self, cluster: dict[str, Any], settings: dict[str, Any]) -> AsyncIterator[Event]:
        self.asked.append((cluster, settings))
        for event in self.events:
            if isinstance(event, Exception):
                raise event
            yield event


def result(text: str, **values: Any) -> Event:
    return {"event": "result", "data": {"summary": text, "sentences": [], **values}}


def test_the_client_reads_a_chat_completion():
    async def complete(client: AsyncOpenAI) -> ChatCompletion:
        extra = {"title": "Florence", "options": {"words": 40}}
        return await client.chat.completions.create(model="lexrank", messages=user(*TEXTS), extra_body=extra)

    answer = asked(complete)
    assert ChatCompletion.model_validate(answer.model_dump()).model == "lexrank"
    (choice,) = answer.choices
    text = choice.message.content
    assert text and choice.finish_reason == "stop"
    citations = [citation.url_citation.model_dump() for citation in choice.message.annotations or ()]
    check_quotes(text, TEXTS, citations)
    assert {text[cited["start_index"] : cited["end_index"]] for cited in citations} == {
        sentence["text"] for sentence in answer.model_extra["raysum"]["sentences"]
    }
    first = citations[0]
    span = f"{first['start_char_index']},{first['end_char_index']}"
    assert first["url"] == f"document%20{first['document_index'] + 1}#char={span}"
    assert first["title"] == f"document {first['document_index'] + 1}"


def test_the_client_reads_a_response():
    async def respond(client: AsyncOpenAI) -> Response:
        content = [{"type": "input_text", "text": text} for text in TEXTS]
        return await client.responses.create(
            model="lexrank",
            instructions="Title: Florence",
            input=[{"role": "user", "content": content}],
            metadata={"a": "b"},
        )

    answer = asked(respond)
    assert Response.model_validate(answer.model_dump(warnings=False)).status == "completed"
    (part,) = answer.output[0].content
    assert answer.output_text == part.text and answer.metadata == {"a": "b"}
    citations = [annotation.model_dump() for annotation in part.annotations]
    assert citations and {cited["type"] for cited in citations} == {"url_citation"}
    check_quotes(part.text, TEXTS, citations)


def test_the_client_reads_both_streams_of_a_run_with_its_usage(tiny: ModelConfig):
    async def compare(client: AsyncOpenAI) -> None:
        create = client.chat.completions.create
        options: dict[str, Any] = {"model": "tiny", "extra_body": {"options": {"num_beams": 1}}}
        chat = {"messages": user(*TEXTS), "max_tokens": 25, **options}
        whole = await create(**chat)
        chunks = [c async for c in await create(**chat, stream=True, stream_options={"include_usage": True})]
        assert all(ChatCompletionChunk.model_validate(chunk.model_dump()) for chunk in chunks)
        deltas = [chunk.choices[0].delta for chunk in chunks if chunk.choices]
        text = "".join(delta.content or "" for delta in deltas)
        assert text == whole.choices[0].message.content and text
        annotations = [a for delta in deltas for a in (delta.model_extra or {}).get("annotations", ())]
        assert annotations == [a.model_dump() for a in whole.choices[0].message.annotations]
        assert chunks[-1].usage == whole.usage and whole.usage.prompt_tokens > 20
        reasons = [chunk.choices[0].finish_reason for chunk in chunks if chunk.choices]
        assert reasons[-1] == whole.choices[0].finish_reason == "length" and set(reasons[:-1]) == {None}
        assert whole.usage.completion_tokens == 25

        response = {"input": [{"role": "user", "content": [{"type": "input_text", "text": t} for t in TEXTS]}]}
        events = [e async for e in await client.responses.create(**response, **options, stream=True)]
        assert [event.sequence_number for event in events] == [*range(len(events))]
        once = await client.responses.create(**response, **options)
        text = "".join(event.delta for event in events if event.type == "response.output_text.delta")
        assert text == once.output_text and text
        final = events[-1].response
        assert final.output[0].content[0].text == text and final.usage == once.usage
        added = [e.annotation.model_dump() for e in events if e.type == "response.output_text.annotation.added"]
        assert added == [annotation.model_dump() for annotation in final.output[0].content[0].annotations]
        assert once.usage.total_tokens == once.usage.input_tokens + once.usage.output_tokens

    asked(compare, Model(Served.of(tiny)), "tiny")


def test_the_client_accumulates_a_streamed_response():
    async def respond(client: AsyncOpenAI) -> Any:
        async with client.responses.stream(model="lexrank", input=TEXTS[0]) as stream:
            return await stream.get_final_response()

    answer = asked(respond)
    assert answer.status == "completed" and answer.output_text and answer.output[0].content[0].annotations


def test_n_gives_the_next_best_summaries(tiny: ModelConfig):
    async def complete(client: AsyncOpenAI) -> ChatCompletion:
        return await client.chat.completions.create(model="tiny", messages=user(*TEXTS), n=3)

    answer = asked(complete, Model(Served.of(tiny)), "tiny")
    assert [choice.index for choice in answer.choices] == [0, 1, 2]
    assert len({choice.message.content for choice in answer.choices}) == 3


def chat_stream(*events: Event | Exception) -> tuple[list[str], str]:
    """Return the deltas of a chat stream of these events, and the last data of the stream."""
    lines = post("chat/completions", Told(*events), messages=user("one"), stream=True).text.split("\n\n")
    data = [line.removeprefix("data: ") for line in lines if line]
    chunks = [json.loads(one) for one in data if one != "[DONE]"]
    return [text for one in chunks for c in one.get("choices", ()) if (text := c["delta"].get("content"))], data[-1]


def test_only_text_that_stays_is_sent():
    grown_then_moved = [
        queued(0),
        grown("The mill"),
        grown("The mill was in Rome.Its"),
        grown("The mill was in Rome. Its"),
    ]
    deltas, last = chat_stream(*grown_then_moved, result("The mill was in Rome. Its wheel turns."))
    assert deltas == ["The", " mill was in", " Rome.", " Its wheel turns."] and last == "[DONE]"
    restarted = [queued(0), grown("The mill was"), queued(0), grown("The"), grown("The mill was in")]
    deltas, last = chat_stream(*restarted, result("The mill was in Rome."))
    assert deltas == ["The mill", " was", " in Rome."] and last == "[DONE]"
    deltas, last = chat_stream(queued(0), grown("漢" * 100), result("漢" * 101))
    assert deltas == ["漢" * 60, "漢" * 41] and last == "[DONE]"


def test_a_stream_that_fails_ends_with_an_error():
    for events in (
        [queued(0), grown("The mill was"), result("A mill was.")],
        [queued(0), failed("broken", 500)],
        [queued(0), Overloaded("no place")],
        [queued(0), ZeroDivisionError()],
    ):
        _, last = chat_stream(*events)
        assert json.loads(last)["error"]["type"] == "server_error"
        response = post("responses", Told(*events), input="one", stream=True).text.split("\n\n")[-2]
        name, data = response.split("\ndata: ")
        assert name == "event: response.failed" and json.loads(data)["response"]["error"]["code"] == "server_error"

    async def complete(client: AsyncOpenAI) -> None:
        create = client.chat.completions.create
        async for _ in await create(model="lexrank", messages=user("one"), stream=True):
            pass

    with pytest.raises(openai.APIError, match="no place"):
        asked(complete, Told(queued(0), Overloaded("no place")))
    for service, error in (
        (Told(failed("too costly", 422)), openai.UnprocessableEntityError),
        (Told(Overloaded("no place")), openai.InternalServerError),
        (Told(ZeroDivisionError()), openai.InternalServerError),
    ):
        with pytest.raises(error):
            asked(complete, service)


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ({"model": "gpt-5"}, "there is no model 'gpt-5'; this service has 'lexrank'"),
        ({"model": None}, "model: Input should be a valid string"),
        ({"messages": []}, "messages: List should have at least 1 item"),
        ({"messages": [{"role": "system", "content": "Title: a"}]}, "no user message has a text or file"),
        ({"messages": [{"role": "tool", "content": "a"}]}, "messages.0.role: Input should be 'system', 'developer'"),
        ({"messages": [{"role": "user", "content": 3}]}, "messages.0.content: Input should be a valid list"),
        ({"messages": [{"role": "user", "content": [{"type": "image_url"}]}]}, "messages.0.content.0.type: Input"),
        ({"messages": [{"role": "user", "content": [{"type": "text"}]}]}, "messages.0.content.0: a text part needs"),
        (
            {"messages": [{"role": "user", "content": [{"type": "file", "file": {"file_id": "x"}}]}]},
            "messages.0.content.0.file.file_data: Field required",
        ),
        ({"messages": [{"role": "user", "content": "a", "nam": "b"}]}, "messages.0.nam: unknown field"),
        ({"temperature": 0.7}, "temperature: is not supported other than 0 or 1; leave it out"),
        ({"tools": [{"type": "function"}]}, "tools: is not supported other than []"),
        ({"stop": "."}, "stop: is not supported"),
        ({"n": 2, "stream": True}, "the body: n must be 1 with stream"),
        ({"max_tokens": 0}, "max_tokens: Input should be greater than or equal to 1"),
        ({"mesages": []}, "mesages: unknown field, did you mean 'messages'?"),
        ({"num_beams": 2}, "num_beams: unknown field, did you mean 'options.num_beams'?"),
        ({"options": {"num_beems": 2}}, "options.num_beems: unknown field, did you mean 'num_beams'?"),
    ],
)
def test_a_request_that_cannot_be_answered_is_refused_in_the_form_of_openai(body: dict[str, Any], message: str):
    assert refused(404 if body.get("model") else 422, **body).startswith(message)


def test_what_does_not_change_a_summary_is_accepted():
    service = Told(queued(0), result("a"))
    neutral = {"temperature": 0, "top_p": 1, "n": 1, "stop": None, "tools": [], "tool_choice": "auto", "user": "me"}
    neutral |= {"response_format": {"type": "text"}, "seed": 7, "frequency_penalty": 0.0, "store": False}
    assert post("chat/completions", service, messages=user("one"), **neutral).status_code == 200
    neutral = {"temperature": 1.0, "text": {"format": {"type": "text"}}, "truncation": "auto", "reasoning": {}}
    assert post("responses", service, input="one", **neutral).status_code == 200
    assert service.asked == [({"title": "", "documents": ["one"]}, {})] * 2


def test_the_messages_are_the_documents_and_the_title():
    service = Told(queued(0), result("a"))
    history = [
        {"role": "system", "content": "You summarize.\nTitle: Florence"},
        *user("one", "two"),
        {"role": "assistant", "content": "An earlier answer.", "annotations": [], "refusal": None},
        {"role": "user", "content": "three"},
    ]
    post("chat/completions", service, messages=history, n=3, max_tokens=90, max_completion_tokens=80)
    post("responses", service, input="TITLE: Rome\none", max_output_tokens=7, options={"words": 9})
    post("responses", service, input="Title: Rome", title="Florence")
    documents = [cluster["documents"] for cluster, _ in service.asked]
    assert documents == [["one", "two", "three"], [" " * len("TITLE: Rome") + "\none"], ["Title: Rome"]]
    assert [cluster["title"] for cluster, _ in service.asked] == ["Florence", "Rome", "Florence"]
    settings = [settings for _, settings in service.asked]
    assert settings == [{"max_tokens": 80, "n_best": 3}, {"max_tokens": 7, "words": 9}, {}]


def test_the_limits_of_the_server_apply():
    assert refused(413, messages=user(*["a"] * 51)).startswith("51 documents exceed 50")
    assert refused(413, path="responses", input="\n" * 500).startswith("501 paragraphs exceed 500")
    assert refused(413, messages=[*user("a" * 15_000), *user("b" * 5001)]).startswith("20001 characters exceed 20000")
    assert refused(413, messages=user("a" * 100_000)).startswith("the request is larger than 100000 bytes")
    assert "outside texts" in refused(413, messages=[[]] * 6000)
    assert refused(400, messages=user(" ")).startswith("cluster 1 cannot be summarized")


def test_max_tokens_is_the_upper_limit_of_a_length(tiny: ModelConfig):
    async def tokens(client: AsyncOpenAI, most: int) -> tuple[int, str]:
        answer = await client.chat.completions.create(model="tiny", messages=user(*TEXTS), max_tokens=most)
        return answer.usage.completion_tokens, answer.choices[0].finish_reason

    for most in (5, 25):
        assert asked(lambda client, most=most: tokens(client, most), Model(Served.of(tiny)), "tiny") == (most, "length")
    assert asked(lambda client: tokens(client, 4096), Model(Served.of(tiny)), "tiny")[0] <= 30
    long = post("chat/completions", messages=user(*TEXTS)).json()["choices"][0]["message"]["content"]
    short = post("chat/completions", messages=user(*TEXTS), max_tokens=12).json()["choices"][0]["message"]["content"]
    assert 0 < len(short.split()) <= 12 < len(long.split())


def test_files_are_documents_with_their_names():
    page = "".join(f"<p>{text}</p>" for text in TEXTS[1:])
    contents = {"a b.txt": TEXTS[0], "c.html": f"<html><body><h1>Italy</h1>{page}</body></html>"}
    data = {name: base64.b64encode(content.encode()).decode() for name, content in contents.items()}
    parts = [
        {"type": "file", "file": {"filename": "a b.txt", "file_data": data["a b.txt"]}},
        {"type": "file", "file": {"filename": "c.html", "file_data": f"data:text/html;base64,{data['c.html']}"}},
    ]
    message = post("chat/completions", messages=[{"role": "user", "content": parts}]).json()["choices"][0]["message"]
    cited = {c["url_citation"]["document_title"]: c["url_citation"] for c in message["annotations"]}
    plain, page_cited = cited["a b.txt"], cited["c.html"]
    assert plain["url"] == f"a%20b.txt#char={plain['start_char_index']},{plain['end_char_index']}"
    assert page_cited["url"] == "c.html" and page_cited["is_extracted"] and page_cited["cited_text"]
    for wrong, words in (("%%%", "a.txt: file_data is not base64"), ("data:text/plain,a", "a.txt: file_data must be")):
        part = {"type": "input_file", "filename": "a.txt", "file_data": wrong}
        assert refused(400, path="responses", input=[{"role": "user", "content": [part]}]).startswith(words)


def uploads(*documents: Any, path: str = "summarize", limits: Limits = LIMITS) -> httpx.Response:
    async def ask() -> httpx.Response:
        async with http(LEXRANK, limits=limits) as server:
            return await server.post(f"/v1/{path}", json={"documents": documents})

    return asyncio.run(ask())


def in_base64(content: str) -> str:
    return base64.b64encode(content.encode()).decode()


def test_our_own_route_reads_files_too():
    page = f"<html><body><h1>Italy</h1>{''.join(f'<p>{text}</p>' for text in TEXTS)}</body></html>"
    file = {"source": "c.html", "data": in_base64(page)}
    answer = uploads("Rome is the capital of Italy.", file).json()
    cited = {c["document"]: c for sentence in answer["sentences"] for c in sentence["citations"]}
    assert cited[1]["source"] == "c.html" and cited[1]["is_extracted"]
    assert page[cited[1]["file_start"] : cited[1]["file_end"]] == cited[1]["quote"]
    lines = uploads("Rome is the capital of Italy.", file, path="summarize/stream").text.split("\n")
    (texts,) = [json.loads(lines[at + 1][6:])["texts"] for at, line in enumerate(lines) if line == "event: files"]
    assert {*texts} == {"1"} and TEXTS[0] in texts["1"] and "<p>" not in texts["1"]


@pytest.mark.parametrize(
    ("document", "status", "message"),
    [
        ({"source": "a.pdf", "data": "%%%"}, 400, "a.pdf: data is not base64"),
        ({"source": "a.pdf", "data": "data:application/pdf;base64,"}, 400, "a.pdf: data is empty"),
        ({"source": "a.pdf", "data": "\U0001f600"}, 400, "a.pdf: data is not base64"),
        ({"source": "a.pdf", "data": in_base64("%PDF-1.4")}, 400, "a.pdf cannot be read as PDF"),
        (
            {"source": "a.png", "data": base64.b64encode(b"\x89PNG\r\n\x1a\n" + bytes(99)).decode()},
            400,
            "a.png is an image",
        ),
        ({"source": "a.txt"}, 422, "needs either text or data"),
        ({"text": "One.", "data": ""}, 422, "needs either text or data"),
        ({"source": "a.txt", "data": in_base64("A word. " * 5_000)}, 413, "40000 characters exceed 20000"),
    ],
)
def test_files_that_cannot_be_read_are_refused(document: dict[str, str], status: int, message: str):
    for path in ("summarize", "summarize/stream"):
        answer = uploads(document, path=path)
        assert answer.status_code == status and message in answer.json()["error"], answer.text


WORDS = ["mill", "river", "Arno", "Rome", "1436", "dome", "bricks.", "wheel!", "It", "Dr.", "capital?", "ünïcode"]
WORDS += ["漢字。", "\U0001f600", "e\u0301", "\u00a0", "</S>", "⁇"]


def fuzzed(rng: random.Random) -> list[str]:
    """Return documents of random words and separators, some of them empty."""
    separators = [" ", " ", " ", "  ", "\n", "\n\n", "\t", "\r\n", ". ", ".\n"]
    texts = ["".join(rng.choice(WORDS) + rng.choice(separators) for _ in range(rng.randrange(60))) for _ in range(3)]
    if rng.random() < 0.3:
        texts[0] = f"Title: {rng.choice(WORDS)}\n{texts[0]}"
    return [*texts, rng.choice(TEXTS)][rng.randrange(3) :]


def check_clusters(service: Service, count: int) -> None:
    """Check the quotes of fuzzed clusters on both routes, plain and streamed."""
    cited = 0

    async def check(server: httpx.AsyncClient, number: int) -> None:
        nonlocal cited
        documents, is_stream = fuzzed(random.Random(number)), number % 4 > 1
        body: dict[str, Any] = {"model": "lexrank", "stream": is_stream}
        if number % 2:
            path, key = "chat/completions", "messages"
            body[key] = user(*documents)
        else:
            path, key = "responses", "input"
            body[key] = [{"role": "user", "content": [{"type": "input_text", "text": text} for text in documents]}]
        answer = await server.post(f"/v1/{path}", json=body)
        assert answer.status_code == 200, answer.text
        data = [line for line in answer.text.split("\n") if line.startswith("data: {")] if is_stream else [answer.text]
        parsed = [json.loads(line.removeprefix("data: ")) for line in data]
        if key == "messages":
            sides = [c.get("delta") or c.get("message") or {} for one in parsed for c in one["choices"]]
            text = "".join(side.get("content") or "" for side in sides)
            citations = [c["url_citation"] for side in sides for c in side.get("annotations", ())]
        else:
            last = parsed[-1]["response"] if is_stream else parsed[-1]
            (part,) = last["output"][0]["content"]
            text, citations = part["text"], part["annotations"]
            if is_stream:
                assert "".join(one.get("delta", "") for one in parsed) == text
        check_quotes(text, documents, citations)
        summary = next(one["raysum"] for one in [*parsed[::-1], parsed[-1].get("response") or {}] if "raysum" in one)
        assert summary["summary"] == text
        for sentence in summary["sentences"]:
            assert text[sentence["start"] : sentence["end"]] == sentence["text"]
        cited += len(citations)

    async def check_all() -> None:
        places = asyncio.Semaphore(8)
        async with http(service) as server:

            async def one(number: int) -> None:
                async with places:
                    await check(server, number)

            await asyncio.gather(*map(one, range(count)))

    asyncio.run(check_all())
    assert cited > count


def test_in_a_thousand_clusters_every_citation_of_an_extract_quotes_its_document():
    check_clusters(LEXRANK, 1000)


def test_in_fuzzed_clusters_every_citation_of_a_run_quotes_its_document(tiny: ModelConfig):
    check_clusters(Model(Served.of(tiny.model_copy(update={"decode": {"num_beams": 2}}))), 200)
