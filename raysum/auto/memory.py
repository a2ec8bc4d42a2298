"""The memory that a training needs in each worker, and the fastest way of DeepSpeed to train that fits.

Bytes per parameter with Adam, as in the ZeRO paper (Rajbhandari et al. 2020, section 3.1), but with gradients in fp32,
in which raysum sums them: 4 for a weight in fp32, 2 in half precision; 4 for its gradient; 8 for its moments; and 4 for
the fp32 copy that DeepSpeed keeps, except at ZeRO-0 in fp32. Activations are not counted: the rest is for them.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from raysum.config.sections import Config
from raysum.data.dataset import Dataset
from raysum.errors import UserError
from raysum.runtime.processes import available_memory
from raysum.systems import parameters
from raysum.tokenizers.loading import load_tokenizer
from raysum.train.optim import precision

_GIB = 1 << 30
_USED = 0.8  # share of the free memory; the rest is for activations
_BUCKET = 50_000_000  # elements of the buffer in which DeepSpeed adds gradients
_GATHERED = 50_000_000  # elements of the weights that ZeRO-3 gathers at once, at least the two largest parameters
_GRADIENTS, _MASTER, _MOMENTS = 4, 4, 8  # bytes per parameter
_ON_CPU = {"device": "cpu"}


class DoesNotFitError(UserError):
    """The memory of a machine does not suffice for a model."""


@dataclass(frozen=True)
class ModelSize:
    """The number of parameters of a model, and of the largest one, and the bytes of a weight."""

    parameters: int
    largest: int
    weight: int = 4


@dataclass(frozen=True)
class MemoryPlan:
    """A way to train. ``device`` and ``host`` are the bytes that each worker needs on its device and in CPU memory."""

    name: str
    zero: dict[str, Any]  # ``deepspeed.zero_optimization``
    device: int
    host: int = 0


def memory_plans(model: ModelSize, workers: int, has_gpu: bool) -> list[MemoryPlan]:
    """Return the ways to train ``model``, the fastest first.

    One worker has nothing to divide. Without a GPU, offloading moves nothing: weights and states are in CPU memory.
    """
    count, weight = model.parameters, model.weight
    bucket, gathered = min(_BUCKET, count), min(max(_GATHERED, 2 * model.largest), count)
    buffers = {"reduce_bucket_size": bucket}
    limits = {"stage3_max_live_parameters": gathered, "stage3_max_reuse_distance": gathered}
    third_stage: dict[str, Any] = {"stage": 3, **buffers, **limits, "stage3_prefetch_bucket_size": gathered // 2}
    states, sums = count * (_MOMENTS + _MASTER), count * _GRADIENTS
    weights, sending, working = count * weight, bucket * _GRADIENTS, bucket * _GRADIENTS + gathered * weight
    alone = weights + sums + states - (count * _MASTER if weight == 4 else 0)
    found = [MemoryPlan("ZeRO-0", {"stage": 0}, alone)]
    if workers > 1:
        found += [
            MemoryPlan("ZeRO-1", {"stage": 1, **buffers}, weights + sums + states // workers + sending),
            MemoryPlan("ZeRO-2", {"stage": 2, **buffers}, weights + (sums + states) // workers + sending),
            MemoryPlan("ZeRO-3", third_stage, (weights + sums + states) // workers + working),
        ]
    if has_gpu:
        name, host = "ZeRO-3 with the optimizer in CPU memory", (sums + states) // workers
        found.append(MemoryPlan(name, third_stage | {"offload_optimizer": _ON_CPU}, weights // workers + working, host))
        name, host = "ZeRO-3 with the optimizer and weights in CPU memory", (weights + sums + states) // workers
        both = {"offload_optimizer": _ON_CPU, "offload_param": _ON_CPU}
        found.append(MemoryPlan(name, third_stage | both, working, host))
    return found


def fitting(plans: Sequence[MemoryPlan], device: float, host: float) -> MemoryPlan | None:
    """Return the first of ``plans`` that fits into the bytes of ``device`` and ``host`` memory of a worker, or None."""
    fits = (plan for plan in plans if plan.device <= _USED * device and plan.host <= _USED * host)
    return next(fits, None)


@dataclass(frozen=True)
class MemoryChoice:
    """The plan for a training of a machine, and its reasons."""

    plan: MemoryPlan
    plans: list[MemoryPlan]  # of which it is one
    model: ModelSize
    workers: int
    free: float  # bytes of a worker's device

    def __str__(self) -> str:
        larger = [f"{plan.name} needs {_gib(plan.device)}" for plan in self.plans[: self.plans.index(self.plan)]]
        why = f" ({', '.join(larger)})" if larger else ""
        host = f" and {_gib(self.plan.host)} of CPU memory" if self.plan.host else ""
        return (
            f"Memory: {self.plan.name}, as {self.model.parameters / 1e6:,.1f} million parameters need "
            f"{_gib(self.plan.device)}{host} in each worker ({self.workers}), and {_gib(_USED * self.free)} of "
            f"{_gib(self.free)} are for them; activations take the rest{why}"
        )


def choose_memory(dataset: Dataset, config: Config, workers: int) -> MemoryChoice:
    """Return how ``workers`` of this machine train the model of ``config``. Raises DoesNotFitError if nothing fits."""
    import torch

    has_gpu = torch.cuda.is_available() and config.train.gpus_per_worker != 0
    model = model_size(dataset, config, has_gpu)
    host = available_memory() / workers
    device = torch.cuda.mem_get_info()[0] if has_gpu else host
    plans = memory_plans(model, workers, has_gpu)
    if plan := fitting(plans, device, host):
        return MemoryChoice(plan, plans, model, workers, device)
    least = min(plans, key=lambda plan: plan.device)
    needs = f"{_gib(least.device)}{f' and {_gib(least.host)} of CPU memory' if least.host else ''}"
    raise DoesNotFitError(
        f"{model.parameters / 1e6:,.1f} million parameters do not fit: a worker ({workers}) needs {needs} with "
        f"{least.name}, and {_gib(_USED * device)} of {_gib(device)} are for them; set a smaller model.width"
    )


def model_size(dataset: Dataset, config: Config, cuda: bool) -> ModelSize:
    """Return the sizes of the model of ``config`` with the vocabulary of ``dataset``, counted on the meta device."""
    spec = config.model.with_tokenizer(load_tokenizer(dataset.vocabulary_path))
    sizes = [each.numel() for each in parameters(spec).values()]
    return ModelSize(sum(sizes), max(sizes), 4 if precision(config, cuda) in ("fp32", "autocast") else 2)


def _gib(size: float) -> str:
    return f"{size / _GIB:.2f} GiB"
