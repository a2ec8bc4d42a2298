"""The replica of systems and runs that extract sentences. It does not batch, and without a run needs no torch."""

import asyncio
from collections.abc import AsyncGenerator
from typing import Any

from raysum.errors import UserError
from raysum.extract.summarizer import Extractor, summarizer_of
from raysum.serve.config import ModelConfig
from raysum.serve.events import Event, asked_settings, completed, failed, outlined, queued
from raysum.serve.served import EXAMPLE, Follower, Served


class Extracts:
    """A loaded system with the interface of ``replicas.Model``."""

    def __init__(self, served: Served):
        self._follower = Follower(served, _loaded)

    def close(self) -> None:
        self._follower.close()

    def describe(self) -> dict[str, Any]:
        """Return the values of a ``schema.ModelCard``."""
        return self._follower.describe()

    async def summarize(self, cluster: dict[str, Any], settings: dict[str, Any]) -> dict[str, Any]:
        """Return the summary of ``cluster``, or ``{"error": ..., "status": ...}`` if the request is invalid."""
        return [event async for event in self.stream(cluster, settings)][-1]["data"]

    async def stream(self, cluster: dict[str, Any], settings: dict[str, Any]) -> AsyncGenerator[Event, None]:
        """Yield the events of a stream, which has no prefixes: all sentences are selected together."""
        version = self._follower.current
        try:
            asked, _ = asked_settings(version.model.choose, settings)
            yield queued(0)
            summary = await outlined(await asyncio.to_thread(version.model.extract, cluster, asked), cluster)
            for event in completed(summary, version.name, with_sentences=True):
                yield event
        except UserError as error:
            yield failed(str(error), 400)


def _loaded(config: ModelConfig) -> Extractor:
    extractor = summarizer_of(config.run, config)
    assert isinstance(extractor, Extractor), "other systems use replicas.Model"
    extractor.summarize("", [*EXAMPLE])
    return extractor
