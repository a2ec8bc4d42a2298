"""Requests to end the workers of a training early, with a checkpoint: SIGTERM, a stopped trial of a search, a node that
drains, nodes that joined.

The workers compare their requests about once a second, at steps that all of them know, so that all end after the same.
Ray Train's controller loads this module, so imports of torch are local.
"""

import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import Any

from raysum.runtime.progress import say

GROW, LEAVE, STOP = "grow", "leave", "stop"  # at the next checkpoint; now and start again; now and stop
_ORDER = ("", GROW, LEAVE, STOP)  # the last one of all workers counts
_PAUSE = 1.0  # seconds between comparisons, and between looks for requests
_own = threading.Event()  # this process has received SIGTERM, or shall end the training in it
_asks = list[Callable[[], bool]]()  # of the trainings that this process drives


def leave_at_sigterm() -> None:
    """Make SIGTERM request a checkpoint instead of ending this worker. It must run in the main thread."""
    signal.signal(signal.SIGTERM, lambda *_: _own.set())


@contextmanager
def stoppable(ask: Callable[[], bool]) -> Iterator[None]:
    """Let the training of the block save and end early, at :func:`stop_trainings` and, in the main thread, at SIGTERM.

    ``ask`` requests that, and returns False if no step was trained yet.
    """
    _asks.append(ask)
    try:
        with _saving_at_sigterm(ask):
            yield
    finally:
        _asks.remove(ask)


def stop_trainings() -> None:
    """Ask the trainings of this process to save and end."""
    for ask in [*_asks]:
        ask()


@contextmanager
def _saving_at_sigterm(ask: Callable[[], bool]) -> Iterator[None]:
    """Call ``ask`` at the first SIGTERM, which ends this process after the block, or at once if that returns False."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    received, before = list[int](), signal.getsignal(signal.SIGTERM)

    def handle(number: int, frame: Any) -> None:
        signal.signal(signal.SIGTERM, before)
        if ask():
            received.append(number)
            say("saving a checkpoint, then stopping; another SIGTERM stops at once")
        else:
            signal.raise_signal(number)

    signal.signal(signal.SIGTERM, handle)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
    for number in received:
        signal.raise_signal(number)


class Requests:
    """The requests to the workers of one process group. Rank 0 calls ``look`` in a thread: it returns one, or ""."""

    def __init__(self, look: Callable[[], str] | None = None, own: str = LEAVE):
        self._own, self._found, self._agreed = own, "", ""
        self._step, self._next, self._compared = 0, 0, 0.0
        self._closed = threading.Event()
        _own.clear()
        if look:
            threading.Thread(target=self._follow, args=(look,), daemon=True).start()

    def _follow(self, look: Callable[[], str]) -> None:
        while not self._closed.wait(_PAUSE):
            with suppress(Exception):  # of Ray while its head does not answer
                self._found = look()

    def after(self, step: int) -> str:
        """Return the request that all workers follow after ``step``. Every worker calls it after each step."""
        from raysum.train.group import from_all_ranks

        if step < self._next:
            return self._agreed
        now, steps = time.monotonic(), step - self._step
        pace = steps / (now - self._compared) if self._compared else 0.0  # steps a second
        own = max(self._found, self._own if _own.is_set() else "", key=_ORDER.index)
        each = from_all_ranks((own, pace))
        self._agreed = max((request for request, _ in each), key=_ORDER.index)
        self._step, self._next, self._compared = step, step + max(1, int(_PAUSE * each[0][1])), now
        return self._agreed

    def ask(self) -> bool:
        """Request the end of a training in this process; return whether it has trained a step."""
        _own.set()
        return self._step > 0

    def close(self) -> None:
        self._closed.set()
