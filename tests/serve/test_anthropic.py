"""Anthropic's route: its own client understands plain and streamed answers, and every citation quotes its document."""

import asyncio
import base64
import random
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

import anthropic
import httpx2
import pytest
from anthropic import AsyncAnthropic
from anthropic.types import Message

from helpers.pdf import LONG, pdf
from helpers.small_runs import TEXTS, write_run
from helpers.small_services import LEXRANK, routes
from raysum.serve.config import ModelConfig
from raysum.serve.events import Service, failed, queued
from raysum.serve.replicas import Model
from raysum.serve.served import Served

T = TypeVar("T")


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> ModelConfig:
    return ModelConfig(run=str(write_run(tmp_path_factory.mktemp("anthropic"))))


def asked(call: Callable[[AsyncAnthropic], Awaitable[T]], service: Service = LEXRANK, name: str = "lexrank") -> T:
    """Return the result of a call of Anthropic's client."""

    async def ask() -> T:
        transport = httpx2.ASGITransport(routes(service, name), raise_app_exceptions=False)
        async with httpx2.AsyncClient(transport=transport, base_url="http://server", timeout=60) as http:
            return await call(AsyncAnthropic(base_url="http://server", api_key="none", http_client=http, max_retries=0))

    return asyncio.run(ask())


def document(text: str, title: str | None = None) -> dict[str, Any]:
    source = {"type": "text", "media_type": "text/plain", "data": text}
    return {"type": "document", "source": source, "citations": {"enabled": True}} | ({"title": title} if title else {})


def create(content: Any, **more: Any) -> Message:
    values = {"model": "lexrank", "max_tokens": 1000} | more
    return asked(lambda client: client.messages.create(messages=[{"role": "user", "content": content}], **values))


def check_quotes(answer: Message, documents: list[str]) -> None:
    cited = [citation for block in answer.content for citation in block.citations or ()]
    assert cited
    for citation in cited:
        assert citation.type == "char_location" and citation.cited_text.strip()
        quote = documents[citation.document_index][citation.start_char_index : citation.end_char_index]
        assert quote == citation.cited_text


def test_the_client_reads_a_message():
    blocks = [*map(document, TEXTS), {"type": "text", "text": "Summarize them.\nTitle: Florence"}]
    answer = create(blocks, extra_body={"options": {"words": 40}}, system="Be brief.")
    assert Message.model_validate(answer.model_dump(warnings=False)).stop_reason == "end_turn"
    check_quotes(answer, TEXTS)
    summary = answer.model_extra["raysum"]
    assert "".join(block.text for block in answer.content) == summary["summary"]
    assert [block.text.strip() for block in answer.content] == [part["text"] for part in summary["sentences"]]


def test_a_stream_of_a_run_is_its_plain_answer(tiny: ModelConfig):
    async def compare(client: AsyncAnthropic) -> None:
        values: dict[str, Any] = {"model": "tiny", "max_tokens": 25}
        values["messages"] = [{"role": "user", "content": [document(text, "a.txt") for text in TEXTS]}]
        whole = await client.messages.create(**values)
        async with client.messages.stream(**values) as stream:
            kinds = [event.type async for event in stream]
            streamed = await stream.get_final_message()
        assert kinds[0] == "message_start" and kinds[-1] == "message_stop"
        blocks = [[(block.text, block.citations) for block in answer.content] for answer in (streamed, whole)]
        assert blocks[0] == blocks[1] and whole.content[0].citations[0].document_title == "a.txt"
        assert streamed.stop_reason == whole.stop_reason == "max_tokens"
        assert streamed.usage.output_tokens == whole.usage.output_tokens == 25
        assert streamed.usage.input_tokens == whole.usage.input_tokens > 20
        check_quotes(whole, TEXTS)

    asked(compare, Model(Served.of(tiny)), "tiny")


def test_files_and_parts_are_documents_with_their_titles():
    file = {"type": "base64", "media_type": "application/pdf", "data": base64.b64encode(pdf([LONG])).decode()}
    parts = {"type": "content", "content": [{"type": "text", "text": TEXTS[0]}, {"type": "text", "text": TEXTS[1]}]}
    answer = create(
        [{"type": "document", "source": file, "title": "report"}, {"type": "document", "source": parts}],
        extra_body={"options": {"sentences": 20}},
    )
    cited = [citation for block in answer.content for citation in block.citations]
    assert {(one.document_index, one.document_title) for one in cited} == {(0, "report"), (1, "document 2")}
    assert {one.model_extra["place"] for one in cited if one.document_index == 0} == {"page 1"}
    joined = "\n\n".join(TEXTS[:2])
    assert all(joined[c.start_char_index : c.end_char_index] == c.cited_text for c in cited if c.document_index)


def test_texts_without_documents_are_the_documents():
    answer = create([{"type": "text", "text": text} for text in TEXTS])
    check_quotes(answer, TEXTS)
    assert create(TEXTS[0]).content[0].citations[0].cited_text in TEXTS[0]


def test_citations_of_fuzzed_documents_quote_them():
    words = [*" ".join(TEXTS).split(), "漢字。", "e\u0301", "\U0001f600", "…", "\u00a0"]
    for number in range(100):
        draw = random.Random(number)
        texts = [" ".join(draw.choices(words, k=draw.randint(1, 60))) + "." for _ in range(draw.randint(1, 4))]
        check_quotes(create([*map(document, texts)]), texts)


@pytest.mark.parametrize(
    ("error", "status", "body"),
    [
        (anthropic.BadRequestError, 400, {"content": [document(" ")]}),
        (anthropic.NotFoundError, 404, {"model": "other"}),
        (anthropic.UnprocessableEntityError, 422, {"extra_body": {"temperature": 0.3}}),
        (anthropic.UnprocessableEntityError, 422, {"content": [{"type": "document"}]}),
        (anthropic.UnprocessableEntityError, 422, {"content": [{"type": "image"}]}),
        (anthropic.UnprocessableEntityError, 422, {"tools": [{"name": "x", "input_schema": {}}]}),
        (anthropic.APIStatusError, 413, {"content": "x" * 90_000}),
    ],
)
def test_errors_have_the_form_of_anthropic(error: type[anthropic.APIStatusError], status: int, body: dict[str, Any]):
    content = body.pop("content", TEXTS[0])
    with pytest.raises(error) as raised:
        create(content, **body)
    assert raised.value.status_code == status
    told = raised.value.response.json()
    assert told["type"] == "error" and {*told["error"]} == {"type", "message"} and told["error"]["message"]


def test_a_stream_that_fails_ends_with_an_error():
    class Failing:
        async def stream(self, cluster: dict[str, Any], settings: dict[str, Any]) -> Any:
            yield queued(0)
            yield failed("the replicas stopped", 503)

    async def read(client: AsyncAnthropic) -> None:
        messages = [{"role": "user", "content": TEXTS[0]}]
        async with client.messages.stream(model="lexrank", max_tokens=9, messages=messages) as stream:
            async for _ in stream:
                pass

    with pytest.raises(anthropic.APIStatusError, match="the replicas stopped"):
        asked(read, Failing())
