"""Decoding steps on a GPU as CUDA graphs: one launch for all kernels of a model's step (about 120 operations).

A graph repeats operations on the memory in which they were captured. So it is used as long as the arrays of a cache
stay in place: until examples leave, or until a cache needs larger arrays. The search around the step is not captured,
nor are steps that several searches share (:mod:`raysum.decode.multi_beta`).
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

from raysum.models.batch import AttentionRequest
from raysum.models.keys import Cache
from raysum.models.layers import backbone_of

Outputs = tuple[Tensor, Tensor | None]

_capturing = threading.Lock()
_uncaptured: WeakSet[Any] = WeakSet()  # models whose capture failed


def on_device(model: Any, device: torch.device) -> Any:
    """Return a model whose steps are graphs, if its ``device`` and its layers permit it, otherwise ``model``."""
    is_possible = device.type == "cuda" and hasattr(model, "extend") and model.spec.compiles
    return GraphedSteps(model) if is_possible and model not in _uncaptured else model


class GraphedSteps:
    """A StepModel of one search. Its results are overwritten by its next step.

    If a capture fails, the search warns and continues without graphs, as do later ones with this model.
    """

    def __init__(self, model: Any):
        """``model``: a :class:`raysum.models.generator.Generator`."""
        self._model = model
        self._store: Tensor | None = None  # of the cache, when a graph was last possible
        self._graph: tuple[Callable[[], None], Outputs] | None = None
        self._can_capture = True

    def start(self, memory: Any, beams: int) -> Cache:
        return self._model.start(memory, beams, is_fixed=True)

    def step(self, tokens: Tensor, state: Cache, attention: AttentionRequest = False) -> Outputs:
        state.make_room()
        if state.store is None or state.store is not self._store:  # the first step with new arrays is no repetition
            self._graph = None
            outputs = self._model.extend(tokens, state, attention)
            self._store = state.store
            return outputs
        if self._graph is None and self._can_capture:
            self._capture(tokens, state, attention)
        most = backbone_of(self._model.spec).max_target
        if self._graph is None or (most is not None and state.length > most):  # beyond it the model raises an error
            return self._model.extend(tokens, state, attention)
        repeat, outputs = self._graph
        self._tokens.copy_(tokens)
        repeat()
        return outputs

    def _capture(self, tokens: Tensor, state: Cache, attention: AttentionRequest) -> None:
        self._tokens = tokens.clone()
        try:
            self._graph = capture(lambda: self._model.extend(self._tokens, state, attention), tokens.device)
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
