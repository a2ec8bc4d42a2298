"""The routes of OpenAI and Anthropic: the documents of the messages are summarized, the answer has their citations."""

import asyncio
from collections.abc import AsyncGenerator, Iterator, Mapping
from contextlib import aclosing
from typing import Any

from fastapi import FastAPI
from fastapi.responses import JSONResponse, Response, StreamingResponse
from starlette.exceptions import HTTPException

from raysum.serve.anthropic_answers import MessageAnswer
from raysum.serve.anthropic_requests import MessagesRequest
from raysum.serve.config import Limits
from raysum.serve.dialects import stable
from raysum.serve.events import Event, Service
from raysum.serve.guard import check_documents, model_named, refused
from raysum.serve.openai_answers import ChatCompletion, ModelResponse
from raysum.serve.openai_requests import ChatRequest, OpenAIRequest, ResponsesRequest
from raysum.serve.schema import AnthropicProblem, OpenAIProblem, Strict
from raysum.serve.streams import NO_STORE, accepted

# An answer to one request: ``whole``, or ``begin``, some ``delta`` and ``end`` or ``fail`` as server-sent events.
# Summaries are dictionaries as of ``/v1/summarize``. If it ``sends_deltas``, they have the text, so that ``end`` must
# not change it.
Dialect = ChatCompletion | ModelResponse | MessageAnswer

REQUESTS: dict[str, type[Strict]] = {
    "/v1/chat/completions": ChatRequest,
    "/v1/responses": ResponsesRequest,
    "/v1/messages": MessagesRequest,
}


def add_dialects(api: FastAPI, models: Mapping[str, Service], limits: Limits, problems: dict[int | str, Any]) -> None:
    """Add the routes of ``REQUESTS`` for the ``models``.

    ``problems`` describe the answers with errors by status; here they have the forms of these services.
    """
    of_openai = {status: answer | {"model": OpenAIProblem} for status, answer in problems.items()}
    of_anthropic = {status: answer | {"model": AnthropicProblem} for status, answer in problems.items()}

    async def answer(request: OpenAIRequest | MessagesRequest, dialect: Dialect) -> Response:
        model = model_named(models, request.model)
        cluster = await asyncio.to_thread(request.cluster)
        if not cluster["documents"]:
            raise HTTPException(422, "no user message has a text or file to summarize")
        check_documents(cluster["documents"], limits)
        events = model.stream(cluster, request.settings())
        if request.stream:
            parts = _streamed(dialect, await accepted(events))
            return StreamingResponse(parts, media_type="text/event-stream", headers=NO_STORE)
        *_, last = [event async for event in events]
        if last["event"] == "error":
            raise refused(last["data"])
        return JSONResponse(dialect.whole(last["data"]))

    @api.post("/v1/chat/completions", responses=of_openai)
    async def chat(request: ChatRequest) -> Response:
        """Summarize the texts and files of the user messages, as OpenAI's chat completions, plain or streamed.

        Each sentence has annotations `url_citation`, with the quote and its characters in the document.
        """
        with_usage = request.stream_options is not None and request.stream_options.include_usage
        return await answer(request, ChatCompletion(request.model, request.n or 1, with_usage))

    @api.post("/v1/responses", responses=of_openai)
    async def respond(request: ResponsesRequest) -> Response:
        """Summarize the texts and files of the input, as OpenAI's responses, plain or streamed.

        Each sentence has annotations `url_citation`, with the quote and its characters in the document.
        """
        echoed = request.model_dump(include={"instructions", "max_output_tokens", "metadata"}, exclude_none=True)
        return await answer(request, ModelResponse(request.model, **echoed))

    @api.post("/v1/messages", responses=of_anthropic)
    async def create_message(request: MessagesRequest) -> Response:
        """Summarize the documents of the user messages, as Anthropic's messages, plain or streamed.

        Each sentence is a block with its citations `char_location`. Texts are documents only if there are no others.
        """
        return await answer(request, MessageAnswer(request.model))


_CHANGED = "the summary differs from the beginning that was sent; repeat the request without stream"


async def _streamed(dialect: Dialect, events: AsyncGenerator[Event, None]) -> AsyncGenerator[bytes, None]:
    """Yield server-sent events. Together, the deltas are the summary; nothing that was sent is changed later."""
    sent = ""
    async with aclosing(events):
        for part in dialect.begin():
            yield part
        async for event in events:
            is_result, values = event["event"] == "result", event["data"]
            text = values["summary"] if is_result else stable(values["text"]) if event["event"] == "prefix" else ""
            if text.startswith(sent) and len(text) > len(sent):
                new, sent = text[len(sent) :], text
                for part in dialect.delta(new):
                    yield part
            parts: Iterator[bytes] = iter(())
            if event["event"] == "error":
                parts = dialect.fail(values["error"], values["status"])
            elif is_result:
                parts = dialect.end(values) if text == sent or not dialect.sends_deltas else dialect.fail(_CHANGED, 500)
            for part in parts:
                yield part
