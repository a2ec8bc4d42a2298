"""In which order a replica decodes what it is asked: those that wait together, and ordinary requests first."""

import asyncio
import threading
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch

from raysum.config.sections import DecodeConfig
from raysum.data.rows import Row
from raysum.decode.summarizer import Summarizer

_COMPANY = 0.02  # seconds a request waits for company; decoding one takes many times as long


@dataclass(eq=False)
class Request:
    row: Row
    settings: DecodeConfig
    left: threading.Event = field(default_factory=threading.Event)  # set once nobody waits for it any more
    answer: Future[dict[str, Any]] = field(default_factory=Future)


class Lane:
    """A thread that decodes: when it is free, all that wait and want the settings of the first, up to a batch.

    At each step it gives way to the lane ``first`` while anyone is there, for ``patience`` seconds at most.
    """

    def __init__(self, summarizer: Summarizer, threads: int, first: "Lane | None" = None, patience: float = 0):
        self._summarizer, self._first, self._patience = summarizer, first, patience
        self.present = 0  # requests that are prepared, wait or are decoded
        self._nobody = threading.Event()
        self._nobody.set()
        self._waiting: list[Request] = []
        # The event loop stays free to take requests meanwhile.
        self._thread = ThreadPoolExecutor(1, initializer=torch.set_num_threads, initargs=(threads,))

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

    async def answer(self, request: Request) -> dict[str, Any]:
        """The summary as an object. Where this is cancelled, so is the search."""
        self._waiting.append(request)
        try:
            await asyncio.sleep(_COMPANY)
            return await asyncio.get_running_loop().run_in_executor(self._thread, self._answer, request)
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
            if self._first:
                self._first._nobody.wait(self._patience / len(batch))  # asked at each step for each of the batch
            return batch[place].left.is_set()

        try:
            rows = [request.row for request in batch]
            summaries = self._summarizer.summarize_rows(rows, batch[0].settings, left=left)
            for request, summary in zip(batch, summaries, strict=True):
                request.answer.set_result(summary.to_dict())
        except Exception as error:
            for request in batch:
                request.answer.set_exception(error)
