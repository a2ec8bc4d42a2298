"""Decoding steps on a CPU as TorchScript: one call instead of about 700 from Python, of the same kernels.

Measured on two cores of an AMD EPYC with AVX-512: steps of `ft`, one example with 5 beams, without the search, took 2.7
to 3.1 ms instead of 4.4 to 4.8 in int8, and 4.6 to 5.5 instead of 6.3 to 7.2 in fp32. torch.compile takes longer than
Python there. torch 2.13 calls TorchScript deprecated; without it, steps stay Python.

A trace keeps the numbers of Python from the step in which it was made. So only models are traced whose steps depend on
nothing but arrays: those with flat attention to the source, while nobody asks for that attention.
"""

import threading
import warnings
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from raysum.models.keys import Cache, SourceKeys
from raysum.models.layers import backbone_of
from raysum.runtime.compat import traced

_FIRST = 100  # steps before a trace, which takes as long as 100 to 200 of them gain

_tracing = threading.Lock()


class TracedStep:
    """The traces of a model's step, by number of beams and precision."""

    def __init__(self, model: Any):
        """``model``: a Generator. It has no traces while its parameters require gradients."""
        self._model, self._calls = model, 0
        self._traces: dict[tuple[int, bool], Callable[..., Tensor] | None] = {}

    def logits(self, tokens: Tensor, state: Cache) -> Tensor | None:
        """Return the logits of a step for which ``state`` has room, or None if it has no trace."""
        self._calls += 1
        most = backbone_of(self._model.spec).max_target
        if self._calls < _FIRST or state.store is None or (most is not None and state.length > most):
            return None
        key = state.lineage.shape[1], torch.is_autocast_enabled("cpu")
        if key not in self._traces and _tracing.acquire(blocking=False):
            try:
                self._traces[key] = self._trace(tokens, state)
            finally:
                _tracing.release()
        step, source = self._traces.get(key), _arrays(state.keys)
        return None if step is None or source is None else step(tokens, *state.in_use(), *source)

    def _trace(self, tokens: Tensor, state: Cache) -> Callable[..., Tensor] | None:
        source, model = _arrays(state.keys), self._model
        if source is None or model.gate is not None or any(each.requires_grad for each in model.parameters()):
            return None
        inputs = [array.clone() for array in (tokens, *state.in_use(), *source)]
        try:
            return traced(_Step(model, type(state.keys[0]), state.lineage.shape[1]), inputs)
        except (RuntimeError, SystemError, Warning) as error:
            cause = error.__cause__ or error
            warnings.warn(f"decoding without TorchScript, because a step cannot be traced: {cause}", stacklevel=1)
            return None


def _arrays(keys: Sequence[SourceKeys]) -> list[Tensor] | None:
    """Return the arrays of all layers, or None if a step needs more than these."""
    layers = [layer.arrays for layer in keys]
    return None if None in layers else [array for layer in layers for array in layer or ()]


class _Step(nn.Module):
    """A step as a function of arrays, which changes those of the cache in place."""

    def __init__(self, model: Any, keys: Any, beams: int):
        """``keys``: the class of the keys of all layers."""
        super().__init__()
        self.model, self._keys, self._beams = model, keys, beams

    def forward(self, tokens: Tensor, *arrays: Tensor) -> Tensor:
        state, source = arrays[:4], arrays[4:]
        size = len(source) // len(self.model.decoder)
        keys = [self._keys.of(*source[start : start + size]) for start in range(0, len(source), size)]
        cache = Cache(keys, state[1][:, 0], self._beams).hold(*state)
        logits: Tensor = self.model.extend(tokens, cache)[0]
        return logits
