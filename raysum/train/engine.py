"""The DeepSpeed engine of a training, with fp32 sums of gradients, and the norm of the gradient at every stage."""

from typing import Any

import torch
from torch import Tensor, distributed

from raysum import systems
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
    objective = systems.objective(brief.config.model, model, brief.config.train.label_smoothing)
    config = engine_config(brief.config, world, torch.cuda.is_available(), universal)
    engine, *_ = deepspeed.initialize(model=objective, model_parameters=objective.parameters(), config=config)
    if engine.zero_optimization_stage() < 2:
        # Stage 0 has no `grad_accum_dtype`; at stage 1 DeepSpeed 0.19 then tells a wrong norm of the first step.
        for parameter in engine.module.parameters():
            parameter.grad_dtype = torch.float32
    if engine.zero_optimization_stage() == 0:
        for state in engine.basic_optimizer.state.values():
            state["step"].zero_()  # in bf16 DeepSpeed has counted an empty step: a bias correction too late
    return engine


def gradient_norm(engine: Any) -> Tensor | None:
    """The norm of the summed gradient before an update by a plain optimizer; None where DeepSpeed tells it itself.

    Its wrapped optimizers do (all of ZeRO and of low precision), after the update.
    """
    if hasattr(engine.optimizer, "_global_grad_norm") or not engine.is_gradient_accumulation_boundary():
        return None
    return torch.nn.utils.get_total_norm(p.grad for p in engine.module.parameters() if p.grad is not None)
