"""The events of a streamed summary, from ``queued`` to ``result`` or ``error``."""

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from itertools import islice
from typing import Any, Protocol

from raysum.config.decoding import SourceConfig
from raysum.data.rows import Row
from raysum.decode.summary import Summary
from raysum.errors import UserError
from raysum.extract.outline import outline

Event = dict[str, Any]  # "event": its name, "data": its values
# Settings of requests beside the decode settings: a limit that can only shorten summaries, and true for requests of
# batches, which do not delay others.
MAX_TOKENS, BACKGROUND = "max_tokens", "background"


class Service(Protocol):
    """Summarizes raw clusters with decode settings. Raises UserError (status 400), HTTPException or Overloaded."""

    async def summarize(self, cluster: dict[str, Any], settings: dict[str, Any]) -> dict[str, Any]: ...

    def stream(self, cluster: dict[str, Any], settings: dict[str, Any]) -> AsyncIterator[Event]: ...


def asked_settings(choose: Callable[[dict[str, Any]], Any], settings: Mapping[str, Any]) -> tuple[Any, bool]:
    """Return the settings that a summarizer's ``choose`` makes of a request's, and whether it belongs to a batch.

    Raises UserError.
    """
    changes = {**settings}
    most, is_background = changes.pop(MAX_TOKENS, None), changes.pop(BACKGROUND, False)
    try:
        values = choose(changes)
    except UserError as error:
        raise UserError(f"options: {error}") from None
    return (values.limited(most) if most else values), is_background


def queued(position: int) -> Event:
    """The request is accepted; so many requests wait before it. A second one means that the stream begins again."""
    return {"event": "queued", "data": {"position": position}}


def reading(row: Row, limits: SourceConfig) -> Event:
    """The sources are tokenized; of its paragraphs and tokens the model reads the first ones within its limits.

    ``places`` has the position of each of these paragraphs, in the order of the summary's attention.
    """
    tokens, paragraphs = len(row["ids"]), zip(row["document"], row["char_start"], row["text"], strict=True)
    places = [
        {"document": int(document), "start": int(start), "end": int(start) + len(text)}
        for document, start, text in islice(paragraphs, limits.max_paragraphs)
    ]
    counts = {"paragraphs": len(places), "tokens": min(tokens, limits.max_tokens or tokens)}
    return {"event": "reading", "data": {**counts, "places": places}}


def grown(text: str) -> Event:
    """The beginning of the summary that is final."""
    return {"event": "prefix", "data": {"text": text}}


async def outlined(summary: Summary, cluster: dict[str, Any]) -> Summary:
    """Return the summary with the parts of an outline that its request asks for."""
    if parts := cluster.get("outline"):
        return await asyncio.to_thread(outline, summary, cluster, parts)
    return summary


def completed(
    summary: Summary, model: dict[str, Any], with_sentences: bool, **counts: dict[str, Any]
) -> Iterator[Event]:
    """The sentences with their citations, if wanted, and the summary with its ``model`` and ``counts``.

    These are ``usage`` (schema.Usage), and for the metrics ``replica``: its ``id``, and how many requests are
    ``waiting`` there.
    """
    if with_sentences:
        yield from ({"event": "sentence", "data": sentence.model_dump()} for sentence in summary.sentences)
    yield {"event": "result", "data": summary.to_dict() | {"model": model} | counts}


def failed(message: str, status: int) -> Event:
    """The request is refused, or fails, with an HTTP ``status``."""
    return {"event": "error", "data": {"error": message, "status": status}}
