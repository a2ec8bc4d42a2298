"""Find a host that computes slower than the others, because all workers wait for it in every step."""

import statistics
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch

from raysum.train.group import from_all_ranks

_RATIO = 1.5  # of the time for a token, to that of the other workers
_BATCHES, _SECONDS = 20, 2.0  # of the slowest worker at least, before speeds are compared


class Pace:
    """Compares the time for a token in the forward pass, where workers wait for each other only at ZeRO-3."""

    def __init__(self, device: torch.device):
        self._on_gpu = device.type == "cuda"
        self._known: str | None = None  # the slow host that was reported
        self._reset()

    def _reset(self) -> None:
        self._seconds, self._tokens, self._batches, self._timed = 0.0, 0, 0, list[tuple[Any, Any]]()

    @contextmanager
    def forward(self, tokens: int) -> Iterator[None]:
        """Time the forward pass of a micro-batch with so many ``tokens``, padding included."""
        if self._on_gpu:
            first, last = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            first.record()
            yield
            last.record()
            self._timed.append((first, last))
        else:
            began = time.perf_counter()
            yield
            self._seconds += time.perf_counter() - began
        self._tokens, self._batches = self._tokens + tokens, self._batches + 1

    def slow_host(self, hosts: list[str]) -> tuple[str, str] | None:
        """Return a host that has become slow, and a message. Every worker calls it with the ``hosts`` of all."""
        for first, last in self._timed:
            last.synchronize()
            self._seconds += first.elapsed_time(last) / 1000
        self._timed = []
        each = from_all_ranks((self._seconds, self._tokens, self._batches))
        seconds = [spent / max(tokens, 1) for spent, tokens, _ in each]
        rank = seconds.index(max(seconds))
        others = [value for number, value in enumerate(seconds) if hosts[number] != hosts[rank]]
        if not others or each[rank][2] < _BATCHES or each[rank][0] < _SECONDS:
            return None
        self._reset()
        host, ratio = hosts[rank], seconds[rank] / max(statistics.median(others), 1e-12)
        before, self._known = self._known, host if ratio > _RATIO else None
        if self._known in (None, before):
            return None
        return host, f"worker {rank} on {host} computes {ratio:.1f} times as long for a token as those of other hosts"
