"""Steps of a search on a GPU as CUDA graphs: one launch for all operations of the model and of the search around it.

A graph repeats operations on the memory in which they were captured. So it is used as long as the arrays of the search
stay in place: until examples leave, or until a cache or the hypotheses need larger arrays. Steps that several searches
share are no graphs (:mod:`raysum.decode.multi_beta`).
Written without a GPU: a test repeats captured operations on the CPU, but graphs themselves have never run.
"""

import threading
import warnings
from collections.abc import Callable
from functools import cache
from typing import Any
from weakref import WeakSet

import torch
from torch import Tensor

Outputs = tuple[Tensor, ...]

_capturing = threading.Lock()
_uncaptured: WeakSet[Any] = WeakSet()  # models whose capture failed


def permits_graphs(model: Any, device: torch.device) -> bool:
    """Return whether the device and the layers of ``model`` permit graphs of its steps."""
    is_possible = device.type == "cuda" and hasattr(model, "extend") and model.spec.compiles
    return is_possible and model not in _uncaptured


class RepeatedStep:
    """A step of one search, ``work``, which is captured at the second call with the same arrays.

    ``arrays`` returns arrays of which at least one is replaced whenever the search replaces any. If a capture fails,
    the search warns and continues without graphs, as do later ones with this ``model``.
    """

    def __init__(
        self, work: Callable[[], Outputs], arrays: Callable[[], tuple[Any, ...]], model: Any, device: torch.device
    ):
        self._work, self._arrays, self._model, self._device = work, arrays, model, device
        self._former: tuple[Any, ...] = ()  # arrays after the former step
        self._graph: tuple[Callable[[], None], Outputs] | None = None
        self._can_capture = True

    def __call__(self) -> Outputs:
        """Return the results of a step, as new arrays."""
        if [*map(id, self._former)] != [*map(id, self._arrays())]:
            self._graph = None  # the first step with new arrays is no repetition
            outputs = self._work()
            self._former = self._arrays()
            return outputs
        if self._graph is None and self._can_capture:
            self._capture()
        if self._graph is None:
            return self._work()
        repeat, outputs = self._graph
        repeat()
        return tuple(output.clone() for output in outputs)

    def _capture(self) -> None:
        try:
            self._graph = capture(self._work, self._device)
        except RuntimeError as error:
            self._can_capture = False
            if not isinstance(error, torch.OutOfMemoryError):
                _uncaptured.add(self._model)
            cause = error.__context__ or error  # the end of a capture raises another error
            warnings.warn(f"decoding without CUDA graphs, because a step cannot be captured: {cause}", stacklevel=1)


def capture(work: Callable[[], Outputs], device: torch.device) -> tuple[Callable[[], None], Outputs]:
    """Return a function that repeats ``work`` and, after each call of it, its results. This call computes nothing.

    One thread at a time captures; other threads may compute and allocate memory meanwhile. torch.cuda.graph would empty
    the cache of memory, wait for the device, and after an error leave the thread on the stream of captures.
    """
    graph = torch.cuda.CUDAGraph()
    with _capturing, torch.cuda.stream(_stream(device)):
        graph.capture_begin(capture_error_mode="thread_local")
        try:
            outputs = work()
        finally:
            graph.capture_end()
    return graph.replay, outputs


@cache
def _stream(device: torch.device) -> torch.cuda.Stream:
    """Return the stream of captures, one for each device, because cuBLAS keeps memory for each stream."""
    return torch.cuda.Stream(device)
