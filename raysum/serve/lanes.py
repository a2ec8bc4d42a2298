"""In which order a replica works on what it is asked: on those that wait together, and on ordinary requests first."""

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

_COMPANY = 0.02  # seconds a request waits for company; decoding one takes many times as long
_RESTS = 5  # times as long as a step of decoding took is given to those that go first


@dataclass(eq=False)
class Request:
    row: Row
    settings: DecodeConfig
    left: threading.Event = field(default_factory=threading.Event)  # set once nobody waits for it any more
    answer: Future[dict[str, Any]] = field(default_factory=Future)


class Lane:
    """A thread that prepares and one that decodes: all that wait and want the settings of the first, up to a batch.

    While anyone is in the lane ``first``, a rest of several times its length follows each step of decoding.
    """

    def __init__(self, summarizer: Summarizer, threads: int, first: "Lane | None" = None):
        self._summarizer, self._first = summarizer, first
        self.present = 0  # requests that are prepared, wait or are decoded
        self._nobody = threading.Event()
        self._nobody.set()
        self._waiting: list[Request] = []
        self._rested = 0.0  # until when
        # The event loop stays free to take requests meanwhile.
        self._preparing = ThreadPoolExecutor(1)
        self._decoding = ThreadPoolExecutor(1, initializer=torch.set_num_threads, initargs=(threads,))

    @contextmanager
    def entered(self) -> Iterator[None]:
        """A request is here for the length of the block."""
        self.present += 1
        self._nobody.clear()
        try:
            yield
        finally:
            self.present -= 1
            if not self.present:
                self._nobody.set()

    async def prepared(self, cluster: dict[str, Any]) -> Row:
        """``cluster`` as the model reads it. Raises UserError where there is nothing to summarize."""
        return await asyncio.get_running_loop().run_in_executor(self._preparing, self._summarizer.prepare, cluster)

    async def answer(self, request: Request) -> dict[str, Any]:
        """The summary as an object. Where this is cancelled, so is the search."""
        self._waiting.append(request)
        try:
            await asyncio.sleep(_COMPANY)
            return await asyncio.get_running_loop().run_in_executor(self._decoding, self._answer, request)
        finally:
            request.left.set()
            self._waiting.remove(request)

    def _answer(self, request: Request) -> dict[str, Any]:
        """Runs once for each request, in their order. Who is first is decoded with its like; they find it done."""
        if not request.answer.done():
            alike = [other for other in list(self._waiting) if other.settings == request.settings]
            batch = [request, *(other for other in alike if other is not request and not other.answer.done())]
            self._decode(batch[: self._summarizer.settings.batch_examples])
        return request.answer.result()

    def _decode(self, batch: list[Request]) -> None:
        def left(place: int) -> bool:
            self._rest()
            return batch[place].left.is_set()

        self._rested = time.monotonic()
        try:
            rows = [request.row for request in batch]
            summaries = self._summarizer.summarize_rows(rows, batch[0].settings, left=left)
            for request, summary in zip(batch, summaries, strict=True):
                request.answer.set_result(summary.to_dict())
        except Exception as error:
            for request in batch:
                request.answer.set_exception(error)

    def _rest(self) -> None:
        """Called at each step for each of a batch; after the first of them nothing is left to rest from."""
        if self._first:
            self._first._nobody.wait(_RESTS * (time.monotonic() - self._rested))
            self._rested = time.monotonic()
