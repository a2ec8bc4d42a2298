"""The scheduling of a replica: requests that wait together form a batch, and ordinary requests have priority."""

import asyncio
import threading
import time
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch

from raysum.config.decoding import DecodeConfig
from raysum.data.rows import Row
from raysum.decode.summarizer import Summarizer

_BATCH_WAIT = 0.02  # seconds that a request waits for others; decoding takes much longer
_YIELD = 5  # a lane with lower priority pauses this many times the duration of its decoding steps


@dataclass(eq=False)
class Request:
    row: Row
    settings: DecodeConfig
    cancelled: threading.Event = field(default_factory=threading.Event)  # set if the client disconnects
    answer: Future[dict[str, Any]] = field(default_factory=Future)


class Lane:
    """Two threads: one prepares requests, one decodes them in batches of equal settings.

    While the lane ``first`` has requests, this lane pauses after each decoding step.
    """

    def __init__(self, summarizer: Summarizer, threads: int, first: "Lane | None" = None):
        self._summarizer, self._first = summarizer, first
        self.present = 0  # requests in this lane
        self._empty = threading.Event()
        self._empty.set()
        self._waiting: list[Request] = []
        self._rested = 0.0  # time of the last pause
        # Threads keep the event loop free for new requests.
        self._preparing = ThreadPoolExecutor(1)
        self._decoding = ThreadPoolExecutor(1, initializer=torch.set_num_threads, initargs=(threads,))

    @contextmanager
    def entered(self) -> Iterator[None]:
        """Count a request during the block."""
        self.present += 1
        self._empty.clear()
        try:
            yield
        finally:
            self.present -= 1
            if not self.present:
                self._empty.set()

    async def prepared(self, cluster: dict[str, Any]) -> Row:
        """Return the dataset row of ``cluster``. Raises UserError if there is nothing to summarize."""
        return await asyncio.get_running_loop().run_in_executor(self._preparing, self._summarizer.prepare, cluster)

    async def answer(self, request: Request) -> dict[str, Any]:
        """Return the summary as an object. Cancelling this cancels the search."""
        self._waiting.append(request)
        try:
            await asyncio.sleep(_BATCH_WAIT)
            return await asyncio.get_running_loop().run_in_executor(self._decoding, self._answer, request)
        finally:
            request.cancelled.set()
            self._waiting.remove(request)

    def _answer(self, request: Request) -> dict[str, Any]:
        """Decode the request with all waiting requests of equal settings, unless an earlier call has decoded it."""
        if not request.answer.done():
            alike = [other for other in list(self._waiting) if other.settings == request.settings]
            batch = [request, *(other for other in alike if other is not request and not other.answer.done())]
            self._decode(batch[: self._summarizer.settings.batch_examples])
        return request.answer.result()

    def _decode(self, batch: list[Request]) -> None:
        def is_cancelled(index: int) -> bool:
            self._rest()
            return batch[index].cancelled.is_set()

        self._rested = time.monotonic()
        try:
            rows = [request.row for request in batch]
            summaries = self._summarizer.summarize_rows(rows, batch[0].settings, is_cancelled=is_cancelled)
            for request, summary in zip(batch, summaries, strict=True):
                request.answer.set_result(summary.to_dict())
        except Exception as error:
            for request in batch:
                request.answer.set_exception(error)

    def _rest(self) -> None:
        """Pause for the lane with priority. Decoding calls it for each request of a step; only the first call
        pauses."""
        if self._first:
            self._first._empty.wait(_YIELD * (time.monotonic() - self._rested))
            self._rested = time.monotonic()
