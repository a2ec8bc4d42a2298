"""Decoding steps on a CPU as TorchScript: one call instead of about 700 from Python, of the same kernels.

Measured on two cores of an AMD EPYC with AVX-512: steps of `ft`, one example with 5 beams, without the search, took 2.7
to 3.1 ms instead of 4.4 to 4.8 in int8, and 4.6 to 5.5 instead of 6.3 to 7.2 in fp32. torch.compile takes longer than
Python there. torch 2.13 calls TorchScript deprecated; without it, steps stay Python.

A trace keeps the numbers of Python from the step in which it was made. So only steps are traced that depend on nothing
but arrays: those with flat attention to the source, while nobody asks for that attention.
"""

import threading
import warnings
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from raysum.models.keys import Cache
from raysum.models.layers import backbone_of
from raysum.runtime.compat import traced

_STEPS_BEFORE = 100  # steps before a trace, which takes as long as 100 to 200 of them gain

_tracing = threading.Lock()

Key = tuple[int, bool]


class TracedStep:
    """The traces of the step of one model, by number of beams and precision. Copies of the model have their own."""

    def __init__(self) -> None:
        self._calls = Counter[Key]()
        self._traces: dict[Key, Callable[..., Tensor] | None] = {}

    def __reduce__(self) -> Any:
        return TracedStep, ()

    def logits(self, model: Any, tokens: Tensor, state: Cache) -> Tensor | None:
        """Return the logits of a step for which ``state`` has room, or None if ``model`` must compute it."""
        if tokens.device.type != "cpu" or state.is_fixed or state.store is None:
            return None
        key, most = (state.lineage.shape[1], torch.is_autocast_enabled("cpu")), backbone_of(model.spec).max_target
        self._calls[key] += 1
        if self._calls[key] <= _STEPS_BEFORE or (most is not None and state.length > most):
            return None
        if key not in self._traces and _tracing.acquire(blocking=False):
            try:
                if key not in self._traces:
                    self._traces[key] = _trace(model, tokens, state)
            finally:
                _tracing.release()
        step = self._traces.get(key)
        return None if step is None else step(tokens, *state.step_arrays(), *_arrays(state.keys))


def _trace(model: Any, tokens: Tensor, state: Cache) -> Callable[..., Tensor] | None:
    own = [array.clone() for array in state.step_arrays()]  # a trace also does its step
    inputs = [tokens, *own, *_arrays(state.keys)]
    try:
        return traced(_Step(model, type(state.keys[0]), state.lineage.shape[1]), inputs)
    except (RuntimeError, SystemError, Warning) as error:
        cause = error.__cause__ or error
        warnings.warn(f"decoding without TorchScript, because a step cannot be traced: {cause}", stacklevel=1)
        return None


def _arrays(keys: Sequence[Any]) -> list[Tensor]:
    """Return what a step reads of the keys of all layers."""
    return [array for layer in keys for array in layer.arrays]


class _Step(nn.Module):
    """A step as a function of arrays, which changes those of the cache in place."""

    def __init__(self, model: Any, keys_class: Any, beams: int):
        """``keys_class``: that of the keys of all layers."""
        super().__init__()
        self.model, self._keys_class, self._beams = model, keys_class, beams

    def forward(self, tokens: Tensor, *arrays: Tensor) -> Tensor:
        state, source = arrays[:4], arrays[4:]
        size = len(source) // len(self.model.decoder)
        keys = [self._keys_class.of(*source[start : start + size]) for start in range(0, len(source), size)]
        cache = Cache(keys, state[1][:, 0], self._beams).with_step_arrays(*state)
        logits: Tensor = self.model.extend(tokens, cache)[0]
        return logits
