"""The scheduling of a replica: one thread decodes all requests, a step of one batch at a time."""

import asyncio
import atexit
import math
import threading
import time
from collections import Counter
from collections.abc import AsyncGenerator, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Literal, get_args

import torch

from raysum.config.decoding import DecodeConfig
from raysum.data.rows import Row
from raysum.decode.summarizer import Progress, SummarizedRow, Summarizer

Lane = Literal["ordinary", "large", "costly", "background"]
LANES: tuple[Lane, ...] = get_args(Lane)

_BATCH_WAIT = 0.02  # seconds that a request waits for others; decoding takes much longer
_SLOWER = 5  # a large or costly batch gets this fraction of the time of an ordinary one
_PADDING = 2  # longest over shortest source of a batch, unless all are
_SHORT = 1024  # tokens or shorter: then a fuller batch gains more than the padding costs
_LINGER = 2.0  # seconds that a closed scheduler waits for requests that were given to it
_LONGEST_STEP = 10.0  # seconds
_PREFIX_PAUSE = 0.1  # seconds between two prefixes of a stream


@dataclass(eq=False)
class Request:
    """A request of a replica. ``sends_prefixes``: its stream shows the summary as it grows."""

    row: Row
    settings: DecodeConfig
    lane: Lane = "ordinary"
    sends_prefixes: bool = False
    cancelled: threading.Event = field(default_factory=threading.Event)
    arrived: float = field(default_factory=time.monotonic)
    prefix: str = ""
    prefix_time: float = 0.0
    results: "asyncio.Queue[str | SummarizedRow | Exception]" = field(default_factory=asyncio.Queue)
    loop: asyncio.AbstractEventLoop = field(default_factory=asyncio.get_running_loop)

    @property
    def length(self) -> int:
        return len(self.row["ids"])

    def send(self, result: "str | SummarizedRow | Exception") -> None:
        """Send a prefix, the summary or an error from the thread that decodes."""
        self.loop.call_soon_threadsafe(self.results.put_nowait, result)

    def grow(self, progress: Progress, index: int) -> None:
        """Send the beginning of the summary that is now final, if it has grown."""
        if self.sends_prefixes and time.monotonic() - self.prefix_time >= _PREFIX_PAUSE:
            text, self.prefix_time = progress.text(index), time.monotonic()
            if len(text) > len(self.prefix):
                self.prefix = text
                self.send(text)


class _Batch:
    """Requests of one lane with equal settings, and their search."""

    def __init__(self, summarizer: Summarizer, requests: Sequence[Request], used: float):
        self.requests, self.lane, self.used = requests, requests[0].lane, used
        rows, settings = [request.row for request in requests], requests[0].settings
        self._steps = summarizer.summarize_steps(rows, settings, [settings.beta], self._is_cancelled)

    def _is_cancelled(self, index: int) -> bool:
        return self.requests[index].cancelled.is_set()

    def advance(self) -> bool:
        """Decode a step, send its results, and return whether there are more."""
        began = time.monotonic()
        try:
            event = next(self._steps, None)
        except Exception as error:
            for request in self.requests:
                request.send(error)
            return False
        self.used += (time.monotonic() - began) * (1 if self.lane == "ordinary" else _SLOWER)
        if isinstance(event, Progress):
            for index in event.rows:
                self.requests[index].grow(event, index)
        elif isinstance(event, SummarizedRow):
            self.requests[event.row].send(event)
        return event is not None


class Scheduler:
    """Decodes the requests of a replica in one thread.

    At most one batch of each lane is decoded; the next one collects meanwhile. Batches take turns after each step: the
    next turn has the batch with the least time, and time of a large or costly batch counts five times. A batch has
    requests of equal settings and similar lengths, so that short ones do not wait for the longest.
    """

    def __init__(self, summarizer: Summarizer, threads: int):
        self._summarizer, self._threads = summarizer, threads
        self._changed = threading.Condition()
        self._waiting: list[Request] = []
        self._present = Counter[Lane]()
        self._end = math.inf
        self._is_stopped = False
        self._thread = threading.Thread(target=self._decode, daemon=True)
        self._thread.start()
        atexit.register(self._stop)

    def close(self) -> None:
        """End the thread when it has answered all requests, also those that are about to arrive."""
        with self._changed:
            self._end = time.monotonic() + _LINGER
            self._changed.notify()

    def _stop(self) -> None:
        """End the thread after its current step, because an exit in the middle of it would abort the process."""
        with self._changed:
            self._is_stopped = True
            self._changed.notify()
        self._thread.join(_LONGEST_STEP)

    def is_full(self, lane: Lane) -> bool:
        """Return whether a request of a ``lane`` other than the ordinary one must be refused."""
        most = (2 if lane == "background" else 1) * self._summarizer.settings.batch_examples
        return lane != "ordinary" and self._present[lane] >= most

    @contextmanager
    def entered(self, lane: Lane) -> Iterator[None]:
        """Count a request of ``lane`` during the block."""
        self._present[lane] += 1
        try:
            yield
        finally:
            with self._changed:
                self._present[lane] -= 1
                self._changed.notify()

    @property
    def waiting(self) -> int:
        """The number of requests that wait for a batch."""
        return len(self._waiting)

    def position(self, lane: Lane) -> int:
        """Return how many requests of ``lane`` wait for a batch."""
        return sum(request.lane == lane for request in list(self._waiting))

    async def results(self, request: Request) -> AsyncGenerator[str | SummarizedRow, None]:
        """Yield the growing prefixes of a stream, then the summary. Closing the iterator cancels the search."""
        with self._changed:
            self._waiting.append(request)
            self._changed.notify()
        try:
            while True:
                result = await request.results.get()
                if isinstance(result, Exception):
                    raise result
                yield result
                if isinstance(result, SummarizedRow):
                    return
        finally:
            request.cancelled.set()

    def _decode(self) -> None:
        torch.set_num_threads(self._threads)
        running: list[_Batch] = []
        while not self._is_stopped and (running or not self._is_ended()):
            running += self._admitted(running)
            if not running:
                continue
            batch = min(running, key=lambda batch: batch.used)
            if not batch.advance():
                running.remove(batch)
        atexit.unregister(self._stop)

    def _is_ended(self) -> bool:
        return time.monotonic() > self._end and not self._present.total()

    def _admitted(self, running: Sequence[_Batch]) -> list[_Batch]:
        """Return new batches of lanes without one. Waits if nothing is to be decoded."""
        with self._changed:
            while not (ready := self._ready({batch.lane for batch in running})) and not running:
                if self._is_stopped or self._is_ended():
                    return []
                self._changed.wait(_BATCH_WAIT if self._waiting else _LINGER if self._end < math.inf else None)
            used = min((batch.used for batch in running), default=0.0)
            batches = []
            while ready:
                requests = self._together(ready)
                self._waiting = [request for request in self._waiting if request not in requests]
                batches.append(_Batch(self._summarizer, requests, used))
                ready = [request for request in ready if request.lane != requests[0].lane]
            return batches

    def _ready(self, busy: set[Lane]) -> list[Request]:
        """Return the requests that have waited for others and whose lanes are not ``busy``."""
        self._waiting = [request for request in self._waiting if not request.cancelled.is_set()]
        latest = time.monotonic() - _BATCH_WAIT
        return [request for request in self._waiting if request.lane not in busy and request.arrived <= latest]

    def _together(self, ready: Sequence[Request]) -> list[Request]:
        """Return the oldest request with those that can share its batch."""
        first = ready[0]
        batch, shortest, longest = [first], first.length, first.length
        for request in self._waiting:
            low, high = min(shortest, request.length), max(longest, request.length)
            alike = request.lane == first.lane and request.settings == first.settings and request is not first
            if alike and high <= max(_PADDING * low, _SHORT) and len(batch) < self._summarizer.settings.batch_examples:
                batch.append(request)
                shortest, longest = low, high
        return batch
