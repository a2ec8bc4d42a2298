"""The replica of systems and runs that extract sentences. It does not batch, and without a run needs no torch."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

from raysum.errors import UserError
from raysum.extract.summarizer import Extractor, summarizer_of
from raysum.serve.config import ServeConfig
from raysum.serve.events import Event, completed, failed, queued
from raysum.serve.ports import bind_to_node

AT_ONCE = 4  # concurrent requests of a replica


class Extracts:
    """A replica with the interface of ``replicas.Model``."""

    def __init__(self, config: ServeConfig):
        bind_to_node()
        extractor = summarizer_of(config.run, config)
        assert isinstance(extractor, Extractor), "other systems use replicas.Model"
        self._extractor = extractor

    async def summarize(self, cluster: dict[str, Any], settings: dict[str, Any]) -> dict[str, Any]:
        """Return the summary of ``cluster``, or ``{"error": ..., "status": ...}`` if the request is invalid."""
        return [event async for event in self.stream(cluster, settings)][-1]["data"]

    async def stream(self, cluster: dict[str, Any], settings: dict[str, Any]) -> AsyncIterator[Event]:
        """Yield the events of a stream, which has no prefixes: all sentences are selected together."""
        try:
            chosen = self._extractor.choose(settings)
            yield queued(0)
            summary = await asyncio.to_thread(self._extractor.extract, cluster, chosen)
            for event in completed(summary, with_sentences=True):
                yield event
        except UserError as error:
            yield failed(str(error), 400)
