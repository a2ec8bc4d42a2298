"""The memory that a training needs in each worker: weights and states at each ZeRO stage, and activations.

Bytes per parameter with Adam, as in the ZeRO paper (Rajbhandari et al. 2020, section 3.1), but with gradients in fp32,
in which raysum sums them: 4 for a weight in fp32, 2 in half precision; 4 for its gradient; 8 for its moments; and 4 for
the fp32 copy that DeepSpeed keeps, except at ZeRO-0 in fp32. Activations are measured on the meta device, which
computes nothing.
"""

from dataclasses import dataclass
from typing import Any
from unittest import mock

import torch
import torch.nn.functional as F
from torch import Tensor

from raysum import systems
from raysum.config.sections import Config
from raysum.errors import UserError
from raysum.models.batch import copied
from raysum.models.kernels.recomputation import recompute_layers
from raysum.runtime.compat import peak_memory
from raysum.runtime.processes import available_memory
from raysum.stream.random_rows import limits_of, random_rows
from raysum.train.optim import UNMEASURED, check_batch_tokens, precision

# The share of the free memory that a chosen micro-batch may fill, with weights and states. On a CPU there are holes
# between blocks: training HT took 1.5 times the memory of its tensors.
_USED, _USED_ON_CPU = 0.8, 0.5
_FEW, _MANY = 2, 4  # examples of the two measured batches
_MOST = 10**9  # tokens
BUCKET = 50_000_000  # elements of the buffer where DeepSpeed adds gradients
_GATHERED = 50_000_000  # elements of the weights that ZeRO-3 gathers at once, at least the two largest parameters
_GRADIENTS, _MASTER, _MOMENTS = 4, 4, 8  # bytes per parameter
_ON_CPU = {"device": "cpu"}
_OFFLOADS = {"offload_optimizer", "offload_param"}


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
    alone, *divided, optimizer, both = _every_plan(model, workers)
    return [alone, *(divided if workers > 1 else []), *((optimizer, both) if has_gpu else ())]


def _every_plan(model: ModelSize, workers: int) -> list[MemoryPlan]:
    """Return the plans of ZeRO-0 to ZeRO-3, and of ZeRO-3 with the optimizer, and the weights too, in CPU memory."""
    count, weight = model.parameters, model.weight
    bucket, gathered = min(BUCKET, count), min(max(_GATHERED, 2 * model.largest), count)
    buffers = {"reduce_bucket_size": bucket}
    limits = {"stage3_max_live_parameters": gathered, "stage3_max_reuse_distance": gathered}
    third_stage: dict[str, Any] = {"stage": 3, **buffers, **limits, "stage3_prefetch_bucket_size": gathered // 2}
    states, sums = count * (_MOMENTS + _MASTER), count * _GRADIENTS
    weights, sending, working = count * weight, bucket * _GRADIENTS, bucket * _GRADIENTS + gathered * weight
    alone = weights + sums + states - (count * _MASTER if weight == 4 else 0)
    optimizer = third_stage | {"offload_optimizer": _ON_CPU}
    both, names = optimizer | {"offload_param": _ON_CPU}, ("the optimizer", "the optimizer and weights")
    in_cpu, all_in_cpu = (f"ZeRO-3 with {name} in CPU memory" for name in names)
    return [
        MemoryPlan("ZeRO-0", {"stage": 0}, alone),
        MemoryPlan("ZeRO-1", {"stage": 1, **buffers}, weights + sums + states // workers + sending),
        MemoryPlan("ZeRO-2", {"stage": 2, **buffers}, weights + (sums + states) // workers + sending),
        MemoryPlan("ZeRO-3", third_stage, (weights + sums + states) // workers + working),
        MemoryPlan(in_cpu, optimizer, weights // workers + working, (sums + states) // workers),
        MemoryPlan(all_in_cpu, both, working, (weights + sums + states) // workers),
    ]


def model_size(config: Config) -> ModelSize:
    """Return the sizes of the model of ``config``, which has its vocabulary, counted on the meta device."""
    sizes = [each.numel() for each in systems.parameters(config.model).values()]
    weight = 4 if precision(config, uses_gpu(config)) in ("fp32", "autocast") else 2
    return ModelSize(sum(sizes), max(sizes), weight)


def uses_gpu(config: Config) -> bool:
    """Return whether a training of ``config`` on this machine uses a GPU."""
    return torch.cuda.is_available() and config.train.gpus_per_worker != 0


def free_memory(config: Config, workers: int) -> tuple[float, float]:
    """Return the free bytes of each worker's device, and of its share of CPU memory, if all are on this machine."""
    host = available_memory() / workers
    return (torch.cuda.mem_get_info()[0] if uses_gpu(config) else host), host


def fitting_tokens(config: Config) -> int:
    """Return the most tokens of a micro-batch for which weights, states and activations fit into the memory.

    They may take 80 % of that of a GPU, or half of the CPU's. ``config.model`` has its vocabulary. Raises UserError if
    less than one example fits, or the model needs values.
    """
    fixed, per_token, least = memory_line(config)
    used = _USED if uses_gpu(config) else _USED_ON_CPU
    tokens = int((used * free_memory(config, max(config.train.workers, 1))[0] - fixed) / per_token)
    if tokens < least:
        raise UserError("train.batch_tokens=auto: not even one example fits into the memory; set a smaller model.width")
    return min(tokens, _MOST)


def memory_line(config: Config) -> tuple[float, float, int]:
    """Return the bytes of a worker without tokens and per token of a micro-batch, and the tokens of a full example.

    The activations of two batches of full size give those of others.
    """
    zero = config.deepspeed.get("zero_optimization", {})
    kind = (zero.get("stage", 0), zero.keys() & _OFFLOADS)
    plans = _every_plan(model_size(config), max(config.train.workers, 1))
    states = next((plan for plan in plans if (plan.zero["stage"], plan.zero.keys() & _OFFLOADS) == kind), plans[0])
    (few, least), (many, most) = (activations(config, examples) for examples in (_FEW, _MANY))
    per_token = (most - least) / (many - few)
    return states.device + least - per_token * few, per_token, few // _FEW


def activations(config: Config, examples: int) -> tuple[int, int]:
    """Return the tokens of a batch of full size, and the most bytes that a forward and backward pass adds at one time.

    Gradients of weights are freed at once: they are among the states. Raises UserError if the model needs values.
    """
    spec, target = config.model, config.source.target_tokens - 1
    with torch.device("meta"):
        model = systems.build(spec)
    if config.train.recompute:
        recompute_layers(model)
    objective = systems.objective(spec, model, config.train.label_smoothing).train()
    narrow = {"bf16": torch.bfloat16, "fp16": torch.float16}
    objective.to(narrow.get(precision(config, uses_gpu(config)), torch.float32))
    for weight in objective.parameters():
        weight.register_post_accumulate_grad_hook(lambda weight: setattr(weight, "grad", None))
    check_batch_tokens(config)
    kind = systems.kind(spec)
    try:
        arrays = kind.pack(random_rows(config, examples, target, 0), limits_of(config, target))
        batch = copied(kind.collate(arrays), torch.device("meta"))
        with (
            mock.patch.object(F, "scaled_dot_product_attention", _fused_attention),
            peak_memory(objective.parameters()) as peak,
        ):
            objective(batch).backward()
    except (RuntimeError, NotImplementedError, MemoryError):  # it needs values, or memory
        raise UserError(UNMEASURED.format(spec.system)) from None
    return sum(kind.tokens(arrays)), peak.most


def _fused_attention(query: Tensor, key: Tensor, value: Tensor, *_: Any) -> Tensor:
    """Keep what fused kernels of scaled dot-product attention keep; the meta device has only the plain one."""
    return _Fused.apply(query, key, value)


class _Fused(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        context = torch.empty_like(query)
        ctx.save_for_backward(query, key, value, context)
        return context

    @staticmethod
    def backward(ctx: Any, _: Tensor) -> tuple[Tensor, ...]:
        return tuple(map(torch.empty_like, ctx.saved_tensors[:3]))
