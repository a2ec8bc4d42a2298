"""The DeepSpeed engine updates as the papers' Adam does: what no config asks for is not done, at any stage."""

import os
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import distributed

from helpers.small_datasets import write_dataset
from raysum import systems
from raysum.config.sections import Config
from raysum.data.dataset import Dataset
from raysum.errors import UserError
from raysum.runs.folder import Run
from raysum.stream.loader import batches
from raysum.train.engine import build_engine
from raysum.train.group import lone_group
from raysum.train.job_spec import JobSpec, job_spec_of
from raysum.train.metrics_logger import Meter
from raysum.train.optim import check_engine_config
from raysum.train.snapshot import gather_weights, weight_fragments, weight_shapes
from raysum.train.worker import step

STAGES = [0, 2, *(pytest.param(stage, marks=pytest.mark.slow) for stage in (1, 3))]
STEPS, MICRO_BATCHES, RATE = 2, 32, 0.01
SMALL = {"width": 16, "ffn": 32, "heads": 2, "encoder": "L", "decoder": "F", "vocabulary": 200}
DRY = {"dropout": 0.0, "attention_dropout": 0.0, "ffn_dropout": 0.0}


@pytest.fixture(scope="module")
def dataset(tmp_path_factory) -> Dataset:
    return Dataset.open(write_dataset(tmp_path_factory.mktemp("engine") / "data", {"train": 300}))


def brief(dataset: Dataset, folder, optim=None, **deepspeed) -> JobSpec:
    """Of trainings with gradients far above 1, and an epsilon under which Adam's update grows with the gradient."""
    config = Config(
        model=SMALL | DRY,
        train={"steps": STEPS, "batch_tokens": 60, "micro_batches": MICRO_BATCHES, "workers": 0},
        optim={"lr": RATE, "schedule": "constant", "warmup_steps": 0, "eps": 1.0} | (optim or {}),
        deepspeed=deepspeed,
    )
    return job_spec_of(dataset, config, Run(folder), 0)


def start_of(brief: JobSpec, low: bool) -> torch.nn.Module:
    torch.manual_seed(brief.config.train.seed)
    objective = systems.objective(brief.config.model, systems.build(brief.config.model), 0.1)
    return objective.bfloat16() if low else objective


def by_hand(brief: JobSpec, low: bool = False, most: float = torch.inf) -> tuple[torch.Tensor, list[float]]:
    """How far torch's optimizer moves the weights, by fp32 sums of gradients, clipped at ``most``; and their norms."""
    objective, norms, optim = start_of(brief, low), [], brief.config.optim
    weights = list(objective.parameters())
    masters = [weight.detach().float().clone() for weight in weights]
    before = flat(masters)
    update = torch.optim.Adam(masters, lr=RATE, betas=optim.betas, eps=optim.eps)
    if optim.method == "adagrad":
        update = torch.optim.Adagrad(masters, lr=RATE, eps=optim.eps)
    coming = batches(brief.train, 0, 1, 0, STEPS)
    for _ in range(STEPS):
        for master in masters:
            master.grad = torch.zeros_like(master)
        for _ in range(MICRO_BATCHES):
            batch = next(coming)
            loss = objective(brief.train.kind.collate(batch.arrays)) * (batch.real / batch.weight)
            for master, gradient in zip(masters, torch.autograd.grad(loss, weights), strict=True):
                master.grad += gradient.float()
        norms.append(float(torch.nn.utils.clip_grad_norm_(masters, most)))
        for master in masters:  # of weight_decay / 2 times the sum of squares
            master.grad += optim.weight_decay * master
        update.step()
        for weight, master in zip(weights, masters, strict=True):
            weight.data.copy_(master)
    return flat(masters) - before, norms


def by_engine(brief: JobSpec, low: bool = False) -> tuple[torch.Tensor, list[float]]:
    """The same by the training loop's own step."""
    with lone_group():
        return moved(brief, low)


def moved(brief: JobSpec, low: bool = False) -> tuple[torch.Tensor, list[float]]:
    """The change of the weights after the steps, on rank 0, and the norms of gradients, by a rank of a group."""
    before = flat(weight.detach().float() for weight in start_of(brief, low).parameters())
    engine, norms = build_engine(brief, None), []
    coming = batches(brief.train, distributed.get_rank(), distributed.get_world_size(), 0, STEPS)
    meter = Meter(engine.device, {})
    for number in range(STEPS):
        rate = step(engine, brief, number, coming, meter)
        norms.append(meter.line(number + 1, rate)["grad_norm"])
    group = distributed.new_group(backend="gloo")
    weights = gather_weights(weight_fragments(engine), weight_shapes(engine), group)
    distributed.barrier()
    return flat(weights.values()) - before if weights else before, norms


@pytest.mark.parametrize("stage", [0, *(pytest.param(stage, marks=pytest.mark.slow) for stage in (2, 3))])
def test_adagrad_is_that_of_the_formula(dataset, tmp_path, stage):
    """HT's ranker: an update is rate x g / (sqrt of the sum of g^2 + eps), so the first one is g / (|g| + eps)."""
    asked = brief(dataset, tmp_path, {"method": "adagrad"}, zero_optimization={"stage": stage})
    assert apart(by_engine(asked)[0], by_hand(asked)[0]) < 2e-5


PENALTY = {"method": "adam_l2", "weight_decay": 20.0}


@pytest.mark.parametrize("stage", STAGES)
def test_the_fused_optimizer_of_gpus_is_adam_at_every_stage(dataset, tmp_path, stage):
    fused = {"optimizer": {"params": {"fused": True}}, "zero_optimization": {"stage": stage}}
    asked = brief(dataset, tmp_path, PENALTY, **fused)
    (found, norms), (expected, known) = by_engine(asked), by_hand(asked)
    assert apart(found, expected) < 2e-5 and norms == pytest.approx(known, rel=1e-5)


@pytest.mark.parametrize("stage", STAGES)
def test_an_l2_penalty_is_added_to_gradients_before_adam_scales_them(dataset, tmp_path, stage):
    """As in Adam's paper, and HIBERT's; AdamW shrinks the weights beside the update."""
    asked = brief(dataset, tmp_path, PENALTY, zero_optimization={"stage": stage})
    (found, norms), (expected, known) = by_engine(asked), by_hand(asked)
    assert apart(found, expected) < 2e-5 and norms == pytest.approx(known, rel=1e-5)
    decoupled = brief(dataset, tmp_path, PENALTY | {"method": "adam"}, zero_optimization={"stage": stage})
    assert apart(by_engine(decoupled)[0], expected) > 0.5


@pytest.mark.slow
def test_two_processes_add_the_penalty_once_at_every_stage(dataset, tmp_path):
    torch.multiprocessing.spawn(train_by_two, (dataset, tmp_path), nprocs=2)
    expected, known = by_hand(brief(dataset, tmp_path, PENALTY))
    for stage in range(4):
        found, norms = torch.load(tmp_path / f"{stage}.pt")
        assert apart(found, expected) < 2e-5, stage
        assert norms == pytest.approx(known, rel=2e-3), stage


def train_by_two(rank: int, dataset: Dataset, folder: Path) -> None:
    """One of two processes, which train at each stage."""
    torch.set_num_threads(1)
    names = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": 2, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": 0}
    os.environ |= {name: str(value) for name, value in names.items()} | {"GLOO_SOCKET_IFNAME": "lo"}
    store = distributed.FileStore(str(folder / "store"), 2)
    distributed.init_process_group("gloo", store=store, rank=rank, world_size=2)
    for stage in range(4):
        found = moved(brief(dataset, folder, PENALTY, zero_optimization={"stage": stage}))
        if rank == 0:
            torch.save(found, folder / f"{stage}.pt")
    distributed.destroy_process_group()


def flat(tensors) -> torch.Tensor:
    return torch.cat([tensor.flatten() for tensor in tensors])


def apart(found: torch.Tensor, expected: torch.Tensor) -> float:
    return float((found - expected).norm() / expected.norm())


@pytest.mark.parametrize("stage", STAGES)
@pytest.mark.parametrize("low", [False, True], ids=["fp32", "bf16"])
def test_an_update_is_adams_by_the_whole_gradient(dataset, tmp_path, stage, low):
    """No clipping, no decay, bias correction from the first step on, and no rounding of what is summed.

    In bf16 what the second step reads is rounded anew, and stage 1 rounds the sum once; sums in bf16 are 0.6 % off.
    """
    asked = brief(dataset, tmp_path, zero_optimization={"stage": stage}, bf16={"enabled": low})
    (found, norms), (expected, known) = by_engine(asked, low), by_hand(asked, low)
    assert min(known) > 1, "clipping at DeepSpeed's 1.0 would not show"
    assert norms == pytest.approx(known, rel=1e-3 if low else 1e-5)
    assert apart(found, expected) < (2e-3 if low else 2e-5)


@pytest.mark.parametrize("stage", [0, 2])
def test_clipping_is_done_where_a_config_asks_for_it(dataset, tmp_path, stage):
    asked = brief(dataset, tmp_path, zero_optimization={"stage": stage}, gradient_clipping=0.5)
    (found, norms), (expected, known) = by_engine(asked), by_hand(asked, most=0.5)
    assert norms == pytest.approx(known, rel=1e-5), "the norm is that before clipping"
    assert apart(found, expected) < 2e-5 and apart(by_hand(asked)[0], expected) > np.log(2)


def test_targets_of_several_segments_are_refused_at_zero_3():
    sizes = {"system": "txl", "segment": 16}
    zero = {"zero_optimization": {"stage": 3}}
    with pytest.raises(UserError, match=r"stage=2.*model.segment=40"):
        check_engine_config(Config(model=sizes, source={"target_tokens": 40}, deepspeed=zero))
    check_engine_config(Config(model=sizes, source={"target_tokens": 16}, deepspeed=zero))


@pytest.mark.parametrize("part", ["offload_optimizer", "offload_param"])
def test_offloading_to_nvme_is_refused(part):
    config = Config(deepspeed={"zero_optimization": {"stage": 3, part: {"device": "nvme", "nvme_path": "/tmp"}}})
    with pytest.raises(UserError, match=rf"{part}.device=nvme .*set it to cpu"):
        check_engine_config(config)
