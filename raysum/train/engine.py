"""The DeepSpeed engine of a training: gradients summed in fp32, and the gradient norm at every ZeRO stage."""

from functools import partial
from itertools import zip_longest
from typing import Any

import torch
from torch import Tensor, distributed

from raysum import systems
from raysum.config.loading import merge
from raysum.config.sections import OptimConfig
from raysum.errors import UserError
from raysum.models.adapters import adapt, is_adapter
from raysum.models.kernels.compilation import compile_layers
from raysum.models.kernels.recomputation import recompute_layers
from raysum.runs.folder import Checkpoint
from raysum.runtime.compat import check_compiler, load_deepspeed
from raysum.train.checkpoints import needs_conversion
from raysum.train.group import agreed, from_all_ranks
from raysum.train.job_spec import JobSpec
from raysum.train.memory import BUCKET
from raysum.train.optim import compiles_layers, engine_config


def build_engine(job_spec: JobSpec, checkpoint: Checkpoint | None) -> Any:
    """Return a DeepSpeed engine that wraps the objective and its model, with the same weights on every rank."""
    load_deepspeed()
    import deepspeed

    config, start, world = job_spec.config, job_spec.start, distributed.get_world_size()
    torch.manual_seed(config.train.seed)
    model = systems.build(config.model)
    if start and checkpoint is None:
        agreed(partial(start.apply, model))
    new = {*(checkpoint.state["new"] if checkpoint else start.new if start else ())}
    if config.adapters.rank:
        adapt(model, config.adapters, new)
    is_converted = checkpoint is not None and needs_conversion(checkpoint, world)
    settings = engine_config(config, world, torch.cuda.is_available(), is_converted)
    if settings.get("zero_optimization", {}).get("stage", 0) in (1, 2):  # a new buffer of 2 GB otherwise, in each step
        bucket = min(BUCKET, sum(weight.numel() for weight in model.parameters() if weight.requires_grad))
        settings = merge({"zero_optimization": {"reduce_bucket_size": bucket}}, settings)
    if compiles_layers(config):
        if not torch.cuda.is_available():
            agreed(check_compiler)
        compile_layers(model)
    if config.train.recompute:
        recompute_layers(model)
    objective = systems.objective(config.model, model, config.train.label_smoothing)
    groups = parameter_groups(objective, config.optim, new)
    engine, *_ = deepspeed.initialize(model=objective, model_parameters=groups, config=settings)
    if engine.zero_optimization_stage() == 0:  # stage 0 ignores `grad_accum_dtype`
        for parameter in engine.module.parameters():
            parameter.grad_dtype = torch.float32
        for state in engine.basic_optimizer.state.values():
            state["step"].zero_()  # in bf16 DeepSpeed counts an empty first step, which shifts Adam's bias correction
    return engine


def parameter_groups(objective: Any, optim: OptimConfig, new: set[str]) -> list[dict[str, Any]]:
    """Return the trained parameters grouped by learning rate (``lr`` or ``new_lr``) and by whether they decay.

    The parameters ``new`` were untrained at the start. The order of groups and of their parameters is the same after
    every restart.
    """
    groups: dict[tuple[str, bool], dict[str, Any]] = {}
    for name, parameter in objective.named_parameters():
        if not parameter.requires_grad:
            continue
        is_new = optim.new_lr is not None and (is_adapter(name) or name.removeprefix("model.") in new)
        decays = optim.decay == "all" or (parameter.dim() > 1 and "bias" not in name)
        kind = ("new_lr" if is_new else "lr", decays)
        group = groups.setdefault(kind, {"params": [], "rate": kind[0], **({} if decays else {"weight_decay": 0.0})})
        group["params"].append(parameter)
    return [*groups.values()]


def gradient_norm(engine: Any) -> Tensor | None:
    """Return the norm of the summed gradient before an update by a plain optimizer, otherwise None.

    DeepSpeed's own optimizers (for ZeRO and for low precision) have the norm after the update.
    """
    if engine.optimizer is not engine.basic_optimizer or not engine.is_gradient_accumulation_boundary():
        return None
    return torch.nn.utils.get_total_norm(p.grad for p in engine.module.parameters() if p.grad is not None)


class HookOrder:
    """Check in the first ``steps`` steps that gradients become ready in the same order on all ranks.

    ZeRO-2 and ZeRO-3 fill flat buckets in this order and add the buckets of all ranks position by position. If the
    autograd graph depends on the size of a rank's batch, they add gradients of different parameters.
    """

    def __init__(self, engine: Any, steps: int):
        self._steps = steps if distributed.get_world_size() > 1 else 0
        self._ready: list[str] = []
        self._hooks = [
            weight.register_post_accumulate_grad_hook(lambda _, name=name: self._ready.append(name))
            for name, weight in engine.module.named_parameters()
            if self._steps and weight.requires_grad
        ]

    def check(self) -> None:
        """Compare the last step. Every rank calls it after each step; all ranks raise the same UserError, or none."""
        if not self._steps:
            return
        first, *others = from_all_ranks(self._ready)
        for rank, order in enumerate(others, 1):
            for own, its in zip_longest(first, order, fillvalue="nothing"):
                if own != its:
                    raise UserError(
                        f"gradients become ready in different orders: rank 0 has {own}, rank {rank} {its}. The graph "
                        "depends on the size of a batch, so ZeRO-2 and ZeRO-3 would add gradients of other parameters: "
                        "fix the model, or set deepspeed.zero_optimization.stage=1"
                    )
        self._ready.clear()
        self._steps -= 1
        if not self._steps:
            for handle in self._hooks:
                handle.remove()
