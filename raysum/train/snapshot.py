"""Copies of the state of an engine in CPU memory: training continues while a background thread writes them."""

import copy
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import chain
from pathlib import Path
from typing import Any

import psutil
import torch
from torch import Tensor, distributed

from raysum.runtime.compat import full_precision_copies, zero_fragment
from raysum.runtime.processes import available_memory, peak_rss_mb

_MARGIN = 1.25  # of the copies: other processes allocate memory, too
_BUCKET = 1 << 24  # elements that a rank sends at once, or one parameter


@dataclass(frozen=True)
class Fragment:
    """The elements from ``start`` on of the flattened parameter ``name`` that this rank has."""

    name: str
    start: int
    tensor: Tensor


class Snapshot:
    """Copies of tensors in buffers that the next snapshot reuses: new memory costs several times the time of a copy."""

    def __init__(self) -> None:
        self._buffers, self._used = list[Tensor](), 0
        self._copies: dict[tuple[Any, ...], tuple[Tensor, Tensor]] = {}  # each tensor and its copy

    def take(self, files: dict[Path, Any], fragments: list[Fragment]) -> tuple[dict[Path, Any], list[Fragment]] | None:
        """Return copies of the states of ``files`` and of ``fragments``, or None if there is too little memory.

        A fragment of a tensor in ``files`` is a view of its copy.
        """
        tensors = chain(_tensors(files), (fragment.tensor for fragment in fragments))
        needed = sum({(each.data_ptr(), each.nbytes): each.nbytes for each in tensors}.values())
        missing = needed - sum(buffer.nbytes for buffer in self._buffers)
        returning = peak_rss_mb() * (1 << 20) - psutil.Process().memory_info().rss  # freed between steps
        if (missing * _MARGIN + returning) * int(os.environ["LOCAL_WORLD_SIZE"]) > available_memory():
            self._buffers.clear()
            return None
        self._used = 0
        states = {path: self._state(state) for path, state in files.items()}
        parts = [replace(part, tensor=self._part(part.tensor)) for part in fragments]
        self._copies.clear()
        return states, parts

    def _state(self, value: Any) -> Any:
        """Return a deep copy with all tensors on the CPU. Equal views of the same memory are copied once."""
        if isinstance(value, Tensor):
            return self._whole(value)
        if isinstance(value, dict):
            result = copy.copy(value)
            for key, item in value.items():
                result[key] = self._state(item)
            return result
        return type(value)(map(self._state, value)) if type(value) in (list, tuple) else copy.deepcopy(value)

    def _whole(self, tensor: Tensor) -> Tensor:
        key = (tensor.device, tensor.data_ptr(), tensor.dtype, tensor.shape, tensor.stride())
        if key not in self._copies or not tensor.numel():
            self._copies[key] = tensor, self._buffer(tensor).copy_(tensor.detach())
        return self._copies[key][1]

    def _part(self, part: Tensor) -> Tensor:
        begin = part.data_ptr()
        for whole, made in self._copies.values():
            start, is_alike = whole.data_ptr(), (whole.device, whole.dtype) == (part.device, part.dtype)
            if is_alike and start <= begin and begin + part.nbytes <= start + whole.nbytes and whole.is_contiguous():
                return made.flatten().narrow(0, (begin - start) // part.itemsize, part.numel())
        return self._whole(part)

    def _buffer(self, like: Tensor) -> Tensor:
        """Return the next buffer, with the shape and type of ``like``."""
        position, self._used = self._used, self._used + 1
        if position < len(self._buffers):
            if (self._buffers[position].shape, self._buffers[position].dtype) == (like.shape, like.dtype):
                return self._buffers[position]
            del self._buffers[position:]  # the optimizer has other states than before
        self._buffers.append(torch.empty(like.shape, dtype=like.dtype))
        return self._buffers[position]


def _tensors(value: Any) -> Iterator[Tensor]:
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, Mapping | list | tuple):
        for item in value.values() if isinstance(value, Mapping) else value:
            yield from _tensors(item)


def engine_states(engine: Any, folder: Path, tag: str) -> dict[Path, Any]:
    """Return the states that DeepSpeed would write to ``folder / tag``, by file. Every rank calls it.

    Their tensors are those of the engine. The folder and DeepSpeed's recovery script are written.
    """
    from deepspeed.runtime.checkpoint_engine import TorchCheckpointEngine

    states = dict[Path, Any]()

    class Collector(TorchCheckpointEngine):
        def save(self, state_dict: Any, path: str) -> None:
            states[Path(path)] = state_dict

    former, engine.checkpoint_engine = engine.checkpoint_engine, Collector()
    try:
        engine.save_checkpoint(str(folder), tag=tag, save_latest=False)
    finally:
        engine.checkpoint_engine = former
    return states


def weight_shapes(engine: Any) -> dict[str, torch.Size]:
    """Return the shape of each parameter of the model; under ZeRO-3 the parameter itself is empty."""
    return {name: getattr(each, "ds_shape", each.shape) for name, each in engine.module.model.named_parameters()}


def weight_fragments(engine: Any) -> list[Fragment]:
    """Return this rank's fragments of the model's parameters: those of all ranks together have each element once.

    They are in the precision of the optimizer. Parameters that every rank has come from rank 0.
    """
    copies, fragments, is_first = full_precision_copies(engine.optimizer), list[Fragment](), distributed.get_rank() == 0
    for name, parameter in engine.module.model.named_parameters():
        is_rounded = parameter.requires_grad and parameter.dtype != torch.float32
        if hasattr(parameter, "ds_id") or (is_rounded and hasattr(parameter, "_hp_mapping")):
            if found := zero_fragment(parameter):
                start, tensor = found
                size = getattr(parameter, "ds_numel", parameter.numel()) - start  # without the padding behind it
                fragments.append(Fragment(name, start, tensor.detach().flatten()[: max(0, size)]))
        elif is_first:
            fragments.append(Fragment(name, 0, copies.get(id(parameter), parameter).detach().flatten()))
    return fragments


def gather_weights(fragments: list[Fragment], shapes: Mapping[str, torch.Size], group: Any) -> dict[str, Tensor]:
    """Return the whole parameters in fp32 on rank 0, and nothing on other ranks, which send theirs in buckets.

    Every rank of the gloo ``group`` calls it. A parameter that rank 0 has as a whole is not copied.
    """
    is_first = distributed.get_rank() == 0
    sizes = [(part.name, part.start, part.tensor.numel()) for part in fragments]
    tables: list[Any] | None = [None] * distributed.get_world_size() if is_first else None
    distributed.gather_object(sizes, tables, dst=0, group=group)
    if tables is None:
        tensors = iter(fragments)
        for bucket in _buckets(sizes):
            distributed.send(torch.cat([next(tensors).tensor.float().cpu() for _ in bucket]), 0, group=group)
        return {}
    weights = {part.name: part.tensor for part in fragments if part.tensor.numel() == shapes[part.name].numel()}
    weights = {name: weights[name].float().cpu() for name in weights}
    parts = [part for part in fragments if part.name not in weights]
    weights |= {name: torch.empty(shape.numel()) for name, shape in shapes.items() if name not in weights}
    for part in parts:
        weights[part.name][part.start : part.start + part.tensor.numel()] = part.tensor
    for rank, table in enumerate(tables[1:], 1):
        for bucket in _buckets(table):
            received = torch.empty(sum(size for *_, size in bucket))
            distributed.recv(received, rank, group=group)
            for name, start, size in bucket:
                weights[name][start : start + size], received = received[:size], received[size:]
    return {name: weights[name].view(shape) for name, shape in shapes.items()}


def _buckets(sizes: list[tuple[str, int, int]]) -> Iterator[list[tuple[str, int, int]]]:
    """Yield the fragments that are sent together: names, starts and sizes."""
    bucket, elements = list[tuple[str, int, int]](), 0
    for each in sizes:
        bucket.append(each)
        elements += each[-1]
        if elements >= _BUCKET:
            yield bucket
            bucket, elements = [], 0
    if bucket:
        yield bucket
