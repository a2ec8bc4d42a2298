"""Decoding steps on a GPU as CUDA graphs: one launch for all kernels of a model's step (about 120 operations).

A graph repeats operations on the memory in which they were captured. So it is used as long as the arrays of a cache
stay in place: until examples leave, or until a cache needs larger arrays. The search around the step is not captured.
Written without a GPU: a test repeats captured operations on the CPU, but graphs themselves have never run.
"""

import warnings
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from raysum.models.batch import AttentionRequest
from raysum.models.keys import Cache
from raysum.models.layers import backbone_of

Outputs = tuple[Tensor, Tensor | None]


def on_device(model: Any, device: torch.device) -> Any:
    """Return a model whose steps are graphs, if its ``device`` and its layers permit it, otherwise ``model``."""
    is_possible = device.type == "cuda" and hasattr(model, "extend") and model.spec.compiles
    return GraphedSteps(model) if is_possible else model


class GraphedSteps:
    """A StepModel of one search. Its results are overwritten by its next step. If a capture fails, it warns."""

    def __init__(self, model: Any):
        """``model``: a :class:`raysum.models.generator.Generator`."""
        self._model = model
        self._store: Tensor | None = None  # of the cache, when a graph was last possible
        self._repeat: Callable[[], None] | None = None
        self._can_capture = True

    def start(self, memory: Any, beams: int) -> Cache:
        return self._model.start(memory, beams, is_fixed=True)

    def step(self, tokens: Tensor, state: Cache, attention: AttentionRequest = False) -> Outputs:
        state.make_room()
        if state.store is None or state.store is not self._store:  # the first step with new arrays is no repetition
            outputs = self._model.extend(tokens, state, attention)
            self._store, self._repeat = state.store, None
            return outputs
        if self._repeat is None and self._can_capture:
            self._capture(tokens, state, attention)
        most = backbone_of(self._model.spec).max_target
        if self._repeat is None or (most is not None and state.length > most):  # beyond it the model raises an error
            return self._model.extend(tokens, state, attention)
        self._tokens.copy_(tokens)
        self._repeat()
        return self._outputs

    def _capture(self, tokens: Tensor, state: Cache, attention: AttentionRequest) -> None:
        self._tokens = tokens.clone()
        try:
            self._repeat, self._outputs = capture(lambda: self._model.extend(self._tokens, state, attention))
        except RuntimeError as error:
            self._can_capture = False
            warnings.warn(f"decoding without CUDA graphs, because a step cannot be captured: {error}", stacklevel=1)


def capture(work: Callable[[], Outputs]) -> tuple[Callable[[], None], Outputs]:
    """Return a function that repeats ``work`` and, after each call of it, its results. This call computes nothing."""
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, capture_error_mode="thread_local"):  # other threads may allocate memory
        outputs = work()
    return graph.replay, outputs
