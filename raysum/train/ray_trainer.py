"""The workers of a training under Ray Train, their failures, and their metrics for Prometheus.

Ray Train's controller loads this module, so imports of torch are local.
"""

import os
import re
import secrets
import shutil
import socket
import threading
from collections.abc import Callable, Sequence
from contextlib import ExitStack, closing, suppress
from dataclasses import replace
from functools import partial
from queue import SimpleQueue
from typing import Any

import ray.data
import ray.exceptions
import ray.train
from ray.train.backend import Backend, BackendConfig
from ray.train.v2.api.callback import UserCallback
from ray.train.v2.api.data_parallel_trainer import DataParallelTrainer
from ray.util.metrics import Gauge

from raysum.config.workers import Workers
from raysum.errors import UserError
from raysum.runs.folder import Run
from raysum.runtime.compat import draining_nodes, is_posted, post
from raysum.runtime.placement import WorkerPlan, requested, reserve, wait_for_answers
from raysum.runtime.processes import configure_process, environment, interruptible, quiet_data, quiet_ray
from raysum.runtime.progress import say
from raysum.runtime.remote import shown, url_of
from raysum.runtime.run_sync import refresh
from raysum.runtime.session import reason
from raysum.runtime.storage import writing
from raysum.runtime.versions import check_versions, own_versions
from raysum.stream.loader import DataError, ray_batches, ray_dataset
from raysum.train.checkpoints import clear
from raysum.train.job_spec import JobSpec
from raysum.train.lines import Line, post_lines
from raysum.train.requests import GROW, LEAVE, STOP, Requests, leave_at_sigterm, stoppable

_FAILURES = 3  # restarts after lost workers; of a range of workers, those without a new checkpoint
_STARTS = 2  # failed attempts to start the workers
_START_TIMEOUT, _ELASTIC_START = "RAY_TRAIN_WORKER_GROUP_START_TIMEOUT_S", "600"  # then fewer workers may start
_WAIT_MINUTES = 24 * 60.0  # for nodes, after the loss of one
_STARTED = "started"
# Name and description of the gauge of each key of a metrics line.
_GAUGES = {
    "step": ("raysum_training_step", "Last step with a metrics line"),
    "loss": ("raysum_training_loss", "Training loss per target token"),
    "lr": ("raysum_training_learning_rate", "Learning rate"),
    "grad_norm": ("raysum_training_gradient_norm", "Norm of the gradient in the last step"),
    "tokens_per_s": ("raysum_training_tokens_per_second", "Source and target tokens per second, all workers"),
    "wait_share": ("raysum_training_data_wait_share", "Share of the workers' time spent waiting for data"),
    "padding_share": ("raysum_training_padding_share", "Share of computed positions without a token"),
    "peak_rss_mb": ("raysum_training_peak_memory_mib", "Peak resident memory of the first worker, in MiB"),
    "valid_loss": ("raysum_validation_loss", "Validation loss per target token"),
    "checkpoint_time": ("raysum_checkpoint_time_seconds", "Time of the last checkpoint, in seconds since 1970"),
}
_METRIC = ("raysum_validation_metric", "A metric of summaries of the valid split")
_VALID = re.compile("valid_(?!loss$|seconds$)")


def train_on_ray(job_spec: JobSpec, callbacks: Sequence[Any]) -> None:
    """Run the training on Ray Train workers of the current session.

    They start again, with another number if ``train.workers`` is a range, after the loss of a worker, before a node
    shuts down, and when nodes for more workers join. A fixed number of workers starts again after any number of losses,
    as long as four in a row leave a new checkpoint. Raises UserError if a worker does, without another attempt.
    """
    settings, run = job_spec.config.train, job_spec.run
    counts = settings.workers.counts(settings.micro_batches)
    failures, failed_at = 0, -1
    with ExitStack() as stack:
        stack.enter_context(stoppable(partial(_ask_to_stop, job_spec.token)))
        plan = reserve(counts, settings.cpus_per_worker, settings.gpus_per_worker, settings.wait_minutes)
        if len(counts) > 1:
            stack.enter_context(requested(counts[0], plan.each))
        while True:
            try:
                request = _run_workers(job_spec, plan, counts, callbacks)
            except ray.train.TrainingFailedError as error:
                with suppress(UserError):  # the store may be unavailable, too
                    refresh(run.path)
                newest = run.latest()
                step = newest.step if newest else 0
                has_progress = step > max(failed_at, 0)
                failures, failed_at = (1 if has_progress else failures + 1), step
                if not (failures <= _FAILURES if len(counts) > 1 else has_progress and _has_lost(error)):
                    raise
                request = LEAVE
                wait_for_answers()
            if request not in (GROW, LEAVE) or is_posted(f"{job_spec.token}-{STOP}"):
                return
            before, plan = plan, reserve(counts, *plan.each, _WAIT_MINUTES)
            say(f"{run.place}: training continues with {plan} (before: {before.workers})")


def _run_workers(job_spec: JobSpec, plan: WorkerPlan, counts: Sequence[int], callbacks: Sequence[Any]) -> str:
    """Run the workers of a plan; return the request that has ended them, or "" if the training is done.

    Raises UserError if a worker does, and TrainingFailedError if too many were lost: of a range of ``counts``, one.
    """
    run, folder = job_spec.run, job_spec.run.path / "ray"
    settings = job_spec.config.train.model_copy(update={"workers": Workers(plan.workers)})
    job_spec = replace(job_spec, config=job_spec.config.model_copy(update={"train": settings}))
    in_order = ray.data.ExecutionOptions(preserve_order=True)
    limits: dict[str, Any] = {"max_failures": _FAILURES, "controller_failure_limit": _STARTS}
    if len(counts) > 1:
        limits = dict.fromkeys(limits, 0)
    larger = [workers for workers in counts if workers > plan.workers]
    trainer = DataParallelTrainer(  # TorchTrainer would load torch into all processes of Ray Train
        _worker,
        train_loop_config={"job_spec": job_spec, "versions": own_versions(), "plan": plan, "larger": larger},
        backend_config=WorkerSetup(),
        scaling_config=ray.train.ScalingConfig(
            num_workers=plan.workers,
            use_gpu=bool(plan.each.gpus),
            resources_per_worker=plan.each.bundle,
            placement_strategy=settings.placement.upper(),
        ),
        datasets={"train": lambda: _remaining(job_spec)},
        dataset_config=ray.train.DataConfig(execution_options=in_order, enable_shard_locality=False),
        run_config=ray.train.RunConfig(
            name=f"{run.path.name}-{secrets.token_hex(3)}",
            storage_path=str(folder),
            failure_config=ray.train.FailureConfig(**limits),
            callbacks=[FailureRecord(run), *callbacks],  # type: ignore[list-item]
        ),
    )
    is_main = threading.current_thread() is threading.main_thread()  # there Ray Train delays Ctrl-C by a minute
    try:
        with writing(run.path), environment({_START_TIMEOUT: _ELASTIC_START} if len(counts) > 1 else {}):
            result: Any = interruptible(trainer.fit) if is_main else trainer.fit()
        message, request = result.return_value
    except ray.train.TrainingFailedError as error:
        _, has_data_error, details = str(error).partition(f"{DataError.__name__}: ")
        if not has_data_error:
            raise
        message = details.splitlines()[0]
    except (ray.exceptions.RayActorError, ray.exceptions.RaySystemError) as error:  # of Ray Train's controller
        message = f"Ray has stopped ({reason(error)}); start the same command again: it resumes from a checkpoint"
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    if message:
        raise UserError(message)
    return request


def _has_lost(error: ray.train.TrainingFailedError) -> bool:
    """Return whether Ray has lost a worker, such as with its node, in contrast to an exception of a worker."""
    failures = error.worker_failures.values() if isinstance(error, ray.train.WorkerGroupError) else ()
    causes = (getattr(failure, "health_check_failure", failure) for failure in failures)
    return any(isinstance(cause, ray.exceptions.RayActorError) for cause in causes)


def _ask_to_stop(token: str) -> bool:
    """Ask the workers to save and stop; return whether they have started."""
    post(f"{token}-{STOP}")
    return is_posted(f"{token}-{_STARTED}")


def _look(token: str, plan: WorkerPlan, larger: Sequence[int], nodes: set[str], lines: "SimpleQueue[Line]") -> str:
    """Return a request to the workers of a plan, which run on ``nodes``, or "". Rank 0 calls it every second.

    It also posts the ``lines`` that the driver shows.
    """
    post(f"{token}-{_STARTED}")
    post_lines(token, lines)
    if is_posted(f"{token}-{STOP}"):
        return STOP
    if nodes & draining_nodes():
        return LEAVE
    return GROW if any(map(plan.can_grow, larger)) else ""


class _Setup(Backend):
    share_cuda_visible_devices = True

    def on_start(self, worker_group: Any, backend_config: BackendConfig) -> None:
        worker_group.execute(leave_at_sigterm)


class WorkerSetup(BackendConfig):
    """Each worker sees the GPUs of all workers, as NCCL needs, makes its own process group, and saves at SIGTERM."""

    @property
    def backend_cls(self) -> type[Backend]:
        return _Setup


class FailureRecord(UserCallback):
    """Adds each failure of a worker to the events of ``run``. Ray Train's controller calls it."""

    def __init__(self, run: Run):
        self._run = run

    def after_exception(self, run_context: Any, worker_exceptions: dict[int, Exception]) -> None:
        for rank, error in worker_exceptions.items():
            with suppress(OSError):  # a full disk, or a head without the run folder
                self._run.add_event("failure", message=f"worker {rank}: {reason(error)}")


def gauge_setter(run: Run) -> Callable[[Line], None]:
    """Return a function that sets the gauges of a metrics line. Their tag ``trial`` is empty unless ``run`` is one."""
    tags = {"run": shown(run.search) if run.search else run.place, "trial": run.path.name if run.search else ""}
    gauges = {key: Gauge(*names, tag_keys=tuple(tags)) for key, names in _GAUGES.items()}
    metric = Gauge(*_METRIC, tag_keys=(*tags, "metric"))

    def set_gauges(line: Line) -> None:
        for key, value in line.items():
            if key in gauges:
                gauges[key].set(value, tags=tags)
            elif _VALID.match(key):
                metric.set(value, tags=tags | {"metric": key.removeprefix("valid_")})

    return set_gauges


def _worker(settings: dict[str, Any]) -> tuple[str, str]:
    """Run one worker; return the message of a UserError, and the request that has ended the worker."""
    from raysum.train.group import from_all_ranks, ray_group
    from raysum.train.metrics_logger import Reporter
    from raysum.train.worker import work

    job_spec, context = settings["job_spec"], ray.train.get_context()
    configure_process(job_spec.config.train.threads, neighbours=context.get_local_world_size())
    quiet_ray()
    if not ray.get_gpu_ids():  # Ray hides GPUs only from workers that reserve one
        os.environ["CUDA_VISIBLE_DEVICES"] = ""
    if context.get_local_rank() == 0:
        clear(job_spec.run)  # of an earlier attempt on this host
    shard = ray.train.get_dataset_shard("train")
    tables = shard.iter_batches(batch_size=None, batch_format="pyarrow", prefetch_batches=1)
    lines = SimpleQueue[Line]()
    is_first = context.get_world_rank() == 0
    watch: list[Callable[[Line], None]] = [gauge_setter(job_spec.run)] if is_first else []
    if is_first and url_of(job_spec.run.path):
        watch.append(lines.put)
    reporter = Reporter(job_spec.run, is_first, ray.train.report, watch)
    try:
        check_versions(settings["versions"], socket.gethostname(), own_versions())  # the node may have joined later
        with ray_group(), closing(reporter):
            nodes = {*from_all_ranks(ray.get_runtime_context().get_node_id())}
            look = partial(_look, job_spec.token, settings["plan"], settings["larger"], nodes, lines)
            with closing(Requests(look if is_first else None)) as requests:
                return "", work(job_spec, lambda start: ray_batches(tables), reporter, requests)
    except UserError as error:
        return str(error), ""


def _remaining(job_spec: JobSpec) -> ray.data.Dataset:
    """Return the batches after the newest checkpoint. Ray Train calls it at every start of the workers."""
    quiet_data()
    refresh(job_spec.run.path)
    newest, settings = job_spec.run.latest(), job_spec.config.train
    return ray_dataset(job_spec.train, settings.workers, newest.step if newest else 0, settings.steps)
