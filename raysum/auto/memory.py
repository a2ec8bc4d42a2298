"""The fastest way of DeepSpeed to train that fits. Activations are not counted: the rest of the memory is for them."""

from collections.abc import Sequence
from dataclasses import dataclass

from raysum.config.sections import Config
from raysum.data.dataset import Dataset
from raysum.errors import UserError
from raysum.tokenizers.loading import load_tokenizer
from raysum.train.memory import MemoryPlan, ModelSize, free_memory, memory_plans, model_size, uses_gpu

_GIB = 1 << 30
_USED = 0.8  # share of the free memory; the rest is for activations


class DoesNotFitError(UserError):
    """The memory of a machine does not suffice for a model."""


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
    spec, has_gpu = config.model.with_tokenizer(load_tokenizer(dataset.vocabulary_path)), uses_gpu(config)
    model = model_size(config.model_copy(update={"model": spec}))
    device, host = free_memory(config, workers)
    plans = memory_plans(model, workers, has_gpu)
    if plan := fitting(plans, device, host):
        return MemoryChoice(plan, plans, model, workers, device)
    least = min(plans, key=lambda plan: plan.device)
    needs = f"{_gib(least.device)}{f' and {_gib(least.host)} of CPU memory' if least.host else ''}"
    raise DoesNotFitError(
        f"{model.parameters / 1e6:,.1f} million parameters do not fit: a worker ({workers}) needs {needs} with "
        f"{least.name}, and {_gib(_USED * device)} of {_gib(device)} are for them; set a smaller model.width"
    )


def _gib(size: float) -> str:
    return f"{size / _GIB:.2f} GiB"
