"""The training loop of one worker: build, restore, step, validate, save."""

import socket
from collections.abc import Callable, Iterator
from contextlib import closing
from typing import Any

import numpy as np
import torch
from torch import distributed

from raysum.models.batch import move
from raysum.runs.folder import Checkpoint
from raysum.stream.loader import MicroBatch, batches
from raysum.stream.stream import plan_of
from raysum.train.checkpoint_writer import CheckpointWriter
from raysum.train.checkpoints import prune
from raysum.train.engine import HookOrder, build_engine, gradient_norm
from raysum.train.engine_state import load, newest, remote_ranks
from raysum.train.group import from_all_ranks, from_rank_0
from raysum.train.job_spec import JobSpec, out_of_patience
from raysum.train.metrics_logger import Meter, Reporter
from raysum.train.optim import precision, rates
from raysum.train.requests import GROW, LEAVE, STOP, Requests


def work(job_spec: JobSpec, read: Callable[[int], Iterator[MicroBatch]], reporter: Reporter, requests: Requests) -> str:
    """Train as one rank of a process group until ``train.steps``, ``train.minutes`` or ``train.patience`` is reached.

    ``read(step)`` yields this rank's micro-batches from step ``step`` (counted from 0) on. If one of the ``requests``
    ends the training earlier, a checkpoint of that step is saved. Return this request, or "".
    """
    settings, run = job_spec.config.train, job_spec.run
    remote = remote_ranks(run, job_spec.token) if settings.workers else frozenset[int]()
    checkpoint = newest(run, remote)
    engine = build_engine(job_spec, checkpoint)
    state = restore_state(engine, job_spec, checkpoint)
    hosts = from_all_ranks(socket.gethostname())
    reporter.start(state["step"], hosts)
    order, meter = HookOrder(engine, settings.check_hook_order), Meter(engine.device, state)
    coming = read(state["step"])
    scores = from_rank_0(run.validation_scores(settings))
    if state["step"] and job_spec.validates_after(state["step"]) and state["step"] not in scores:
        with meter.paused():
            scores[state["step"]] = run_validation(engine, job_spec, state["step"], reporter)
    end = ""
    with closing(CheckpointWriter(run, remote)) as writer:
        for done in range(state["step"] + 1, settings.steps + 1):
            if out_of_patience(settings.patience, scores, done - 1):
                break
            used = step(engine, job_spec, done - 1, coming, meter)
            order.check()
            request = requests.after(done)
            last = done == settings.steps or meter.is_over(settings.minutes)
            validates = job_spec.validates_after(done) or (last and job_spec.valid is not None)
            saves = last or done % settings.save_every == 0 or validates or request in (LEAVE, STOP)
            if last or done % settings.log_every == 0:
                reporter.write(meter.line(done, used))
                if slow := meter.pace.slow_host(hosts):
                    reporter.add_event("slow", done, hosts=[slow[0]], message=slow[1])
                saves = saves or meter.is_save_due(settings.save_minutes)
            if saves:
                with meter.paused():
                    writer.save(engine, state | meter.state() | {"step": done})
                    writer.then(reporter.add_event, "checkpoint", done)
                    meter.saved()
                    if validates:
                        if job_spec.metric:  # it loads the checkpoint
                            writer.wait()
                        scores[done] = run_validation(engine, job_spec, done, reporter)
                    writer.then(reporter.report, dict(reporter.latest))
                    if distributed.get_rank() == 0:
                        writer.then(prune, run, settings.keep)
                        writer.then(writer.push)
            if last or (saves and request in (GROW, LEAVE, STOP)):
                end = "" if last else request
                break
        writer.wait()
    return end


def restore_state(engine: Any, job_spec: JobSpec, checkpoint: Checkpoint | None) -> dict[str, Any]:
    """Load ``checkpoint`` and return its state, or return the state of a new run."""
    world = distributed.get_world_size()
    if checkpoint is not None:
        load(engine, checkpoint)
        return checkpoint.state | {"workers": world}
    return {
        "step": 0,
        "workers": world,
        "stage": engine.zero_optimization_stage(),
        "dtype": precision(job_spec.config, torch.cuda.is_available()),
        "data": job_spec.fingerprints[0],
        "mixed": list(job_spec.fingerprints[1:]),
        "new": job_spec.start.new if job_spec.start else [],
    }


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
        tokens = sum(kind.tokens(batch.arrays)) + kind.padding(batch.arrays)
        with meter.pace.forward(tokens):
            loss = engine(move(kind.collate(batch.arrays), engine.device))
        engine.backward(loss * (batch.real * settings.micro_batches / batch.weight))
        norm = gradient_norm(engine)
        engine.step()
        meter.add(loss.detach(), kind, batch)
    meter.step_done(batch.weight, engine.get_global_grad_norm() if norm is None else norm)
    return used


@torch.no_grad()
def run_validation(engine: Any, job_spec: JobSpec, done: int, reporter: Reporter) -> float:
    """Write the loss of the valid split and the metric of ``train.best_by`` after ``done`` steps; return the score.

    The loss is summed over all ranks and divided once by the number of targets.
    """
    assert job_spec.valid, "the dataset has a valid split"
    kind, epoch = job_spec.valid.kind, plan_of(job_spec.valid).epoch(0)
    total = torch.zeros((), dtype=torch.float64, device=engine.device)
    engine.eval()
    for batch in batches(job_spec.valid, distributed.get_rank(), distributed.get_world_size(), 0, epoch.num_steps):
        total += engine(move(kind.collate(batch.arrays), engine.device)) * batch.real
    engine.train()
    distributed.all_reduce(total)
    line = {"step": done, "valid_loss": float(total) / int(epoch.weights.sum())}
    if job_spec.metric:
        line |= job_spec.metric.figures(job_spec.run, done)
    reporter.write(line)
    return job_spec.config.train.validation_score(line[job_spec.config.train.best_metric])
