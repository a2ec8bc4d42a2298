"""The replica of what extracts, a system or a trained run: no batches, and without a run no torch."""

import asyncio
from typing import Any

from raysum.errors import UserError
from raysum.extract.summarizer import Extractor, summarizer_of
from raysum.serve.config import ServeConfig
from raysum.serve.ports import bind_to_node

AT_ONCE = 4  # requests that a replica works on


class Extracts:
    """It answers as ``replicas.Model`` does."""

    def __init__(self, config: ServeConfig):
        bind_to_node()
        found = summarizer_of(config.run, config)
        assert isinstance(found, Extractor), "others have replicas of their own"
        self._extractor = found

    async def summarize(self, cluster: dict[str, Any], settings: dict[str, Any]) -> dict[str, Any]:
        """The `summarize` object of ``cluster``, or ``{"error": ..., "status": ...}`` where the request is at fault."""
        try:
            chosen = self._extractor.choose(settings)
            return (await asyncio.to_thread(self._extractor.extract, cluster, chosen)).to_dict()
        except UserError as error:
            return {"error": str(error), "status": 400}
