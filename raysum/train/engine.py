"""The DeepSpeed engine of a training, with fp32 sums of gradients, and the norm of the gradient at every stage."""

from typing import Any

import torch
from torch import Tensor, distributed

from raysum import systems
from raysum.config.sections import OptimConfig
from raysum.models.adapters import adapt, is_adapter
from raysum.models.recomputing import recompute_layers
from raysum.run import Checkpoint
from raysum.runtime.private import load_deepspeed
from raysum.train import checkpoints
from raysum.train.brief import Brief
from raysum.train.optim import engine_config


def build_engine(brief: Brief, checkpoint: Checkpoint | None) -> Any:
    """The engine around the objective around the model, with the same weights on every rank."""
    load_deepspeed()
    import deepspeed

    world = distributed.get_world_size()
    universal = checkpoint is not None and checkpoints.needs_conversion(checkpoint, world)
    torch.manual_seed(brief.config.train.seed)
    model = systems.build(brief.config.model)
    if brief.start and checkpoint is None:
        brief.start.apply(model)
    new = new_ones(brief, checkpoint)
    if brief.config.adapters.rank:
        adapt(model, brief.config.adapters, new)
    if brief.config.train.recompute:
        recompute_layers(model)
    objective = systems.objective(brief.config.model, model, brief.config.train.label_smoothing)
    config = engine_config(brief.config, world, torch.cuda.is_available(), universal)
    groups = parameter_groups(objective, brief.config.optim, new)
    engine, *_ = deepspeed.initialize(model=objective, model_parameters=groups, config=config)
    if engine.zero_optimization_stage() < 2:
        # Stage 0 has no `grad_accum_dtype`; at stage 1 DeepSpeed 0.19 then tells a wrong norm of the first step.
        for parameter in engine.module.parameters():
            parameter.grad_dtype = torch.float32
    if engine.zero_optimization_stage() == 0:
        for state in engine.basic_optimizer.state.values():
            state["step"].zero_()  # in bf16 DeepSpeed has counted an empty step: a bias correction too late
    return engine


def new_ones(brief: Brief, checkpoint: Checkpoint | None) -> set[str]:
    """The parameters that had learned nothing at the start. A run that goes on is told by its ``checkpoint``."""
    if checkpoint is not None:
        return {*checkpoint.state.get("new", [])}
    return {*brief.start.new} if brief.start else set()


def parameter_groups(objective: Any, optim: OptimConfig, new: set[str]) -> list[dict[str, Any]]:
    """What is trained, apart by learning rate (``lr`` or ``new_lr``, see ``optim.rates``) and by whether it decays.

    Their order, and that of the parameters in each, is the same after any restart.
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
    """The norm of the summed gradient before an update by a plain optimizer; None where DeepSpeed tells it itself.

    Its wrapped optimizers do (all of ZeRO and of low precision), after the update.
    """
    if hasattr(engine.optimizer, "_global_grad_norm") or not engine.is_gradient_accumulation_boundary():
        return None
    return torch.nn.utils.get_total_norm(p.grad for p in engine.module.parameters() if p.grad is not None)
