"""The training loop of one worker: build, restore, step, save, validate."""

import socket
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import torch
from torch import distributed

from raysum.models.batch import move
from raysum.runs.folder import Checkpoint
from raysum.runtime.run_sync import push_so_far
from raysum.stream.loader import batches
from raysum.stream.reader import MicroBatch
from raysum.stream.stream import plan_of
from raysum.train import checkpoints
from raysum.train.engine import HookOrder, build_engine, gradient_norm
from raysum.train.job_spec import JobSpec, out_of_patience
from raysum.train.metrics_logger import Meter, Reporter
from raysum.train.optim import precision, rates


def work(job_spec: JobSpec, load: Callable[[int], Iterator[MicroBatch]], reporter: Reporter) -> None:
    """Train as one rank of a process group until ``train.steps``, ``train.minutes`` or ``train.patience`` is reached.

    ``load(step)`` yields this rank's micro-batches from step ``step`` (counted from 0) on.
    """
    settings, run = job_spec.config.train, job_spec.run
    remote = checkpoints.remote_ranks(run, job_spec.token) if settings.workers else frozenset[int]()
    checkpoint = checkpoints.newest(run, remote)
    engine = build_engine(job_spec, checkpoint)
    state = resume(engine, job_spec, checkpoint)
    order = HookOrder(engine, settings.check_hook_order)
    reporter.resume(state["step"])
    hosts: list[str] = [""] * distributed.get_world_size()
    distributed.all_gather_object(hosts, socket.gethostname())
    reporter.add_event("start", step=state["step"], hosts=hosts)
    coming, meter = load(state["step"]), Meter(engine.device, state)
    scores = _from_rank_0(run.validation_scores(settings))

    def validate(step: int) -> None:
        line = {"step": step, "valid_loss": validation_loss(engine, job_spec)}
        if job_spec.metric:
            line |= job_spec.metric.figures(run, step)
        reporter.write(line)
        scores[step] = settings.validation_score(line[settings.best_metric])

    if state["step"] and job_spec.validates_after(state["step"]) and state["step"] not in scores:
        with meter.paused():
            validate(state["step"])
    for done in range(state["step"] + 1, settings.steps + 1):
        if out_of_patience(settings.patience, scores, done - 1):
            break
        used = step(engine, job_spec, done - 1, coming, meter)
        order.check()
        last = done == settings.steps or meter.is_over(settings.minutes)
        validates = job_spec.validates_after(done) or (last and job_spec.valid is not None)
        saves = last or done % settings.save_every == 0 or validates
        if last or done % settings.log_every == 0:
            reporter.write(meter.line(done, used))
            saves = saves or meter.is_save_due(settings.save_minutes)
        if saves:
            with meter.paused():
                checkpoints.save(engine, run, state | meter.state() | {"step": done}, remote)
                meter.saved()
                reporter.add_event("checkpoint", step=done)
                if validates:
                    validate(done)
                reporter.report(reporter.latest)
                if distributed.get_rank() == 0:
                    checkpoints.prune(run, settings.keep)
                    push_so_far(run.path)
        if last:
            break


def _from_rank_0(value: Any) -> Any:
    """Return rank 0's ``value`` on every rank: all ranks must take the same decisions."""
    values = [value]
    distributed.broadcast_object_list(values, src=0)
    return values[0]


def resume(engine: Any, job_spec: JobSpec, checkpoint: Checkpoint | None) -> dict[str, Any]:
    """Load ``checkpoint`` and return its state, or return the state of a new run."""
    state = {
        "step": 0,
        "workers": distributed.get_world_size(),
        "stage": engine.zero_optimization_stage(),
        "dtype": precision(job_spec.config, torch.cuda.is_available()),
        "data": job_spec.fingerprints[0],
        "mixed": list(job_spec.fingerprints[1:]),
        "new": job_spec.start.new if job_spec.start else [],
    }
    if checkpoint is None:
        return state
    checkpoints.load(engine, checkpoint, state["workers"])
    return checkpoint.state | {"workers": state["workers"]}


def step(engine: Any, job_spec: JobSpec, number: int, coming: Iterator[MicroBatch], meter: Meter) -> dict[str, float]:
    """Train on this rank's share of the plan's step ``number`` (counted from 0); return the learning rates.

    The loss is summed over all ranks and micro-batches and divided once by the number of targets of the step. DeepSpeed
    divides by the micro-batches of a rank and averages over ranks; the factor ``micro_batches`` undoes both.
    """
    settings, kind = job_spec.config.train, job_spec.train.kind
    rank, world = distributed.get_rank(), distributed.get_world_size()
    used = rates(job_spec.config, number + 1)
    for group in engine.optimizer.param_groups:
        group["lr"] = used[group.get("rate", "lr")]
    for index in range(rank, settings.micro_batches, world):
        batch = meter.next_batch(coming)
        position = (batch.step, batch.index, batch.rank)
        assert position == (number, index, rank), f"the stream is at {position}, training at {(number, index, rank)}"
        seed = np.random.SeedSequence([settings.seed, number, index])  # dropout does not depend on the rank
        torch.manual_seed(int(seed.generate_state(1, np.uint64)[0] >> 1))
        loss = engine(move(kind.collate(batch.arrays), engine.device))
        engine.backward(loss * (batch.real * settings.micro_batches / batch.weight))
        norm = gradient_norm(engine)
        engine.step()
        meter.add(loss.detach(), kind, batch)
    meter.step_done(batch.weight, engine.get_global_grad_norm() if norm is None else norm)
    return used


@torch.no_grad()
def validation_loss(engine: Any, job_spec: JobSpec) -> float:
    """Return the loss of the valid split: summed over all ranks, divided once by the number of targets."""
    assert job_spec.valid, "the dataset has a valid split"
    kind, epoch = job_spec.valid.kind, plan_of(job_spec.valid).epoch(0)
    total = torch.zeros((), dtype=torch.float64, device=engine.device)
    engine.eval()
    for batch in batches(job_spec.valid, distributed.get_rank(), distributed.get_world_size(), 0, epoch.num_steps):
        total += engine(move(kind.collate(batch.arrays), engine.device)) * batch.real
    engine.train()
    distributed.all_reduce(total)
    return float(total) / int(epoch.weights.sum())
