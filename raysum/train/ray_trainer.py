"""The workers of a training under Ray Train, their failures, and their metrics for Prometheus.

Ray Train's controller loads this module, so imports of torch are local.
"""

import os
import re
import secrets
import shutil
import socket
import threading
from collections.abc import Sequence
from contextlib import closing, suppress
from typing import Any

import ray.data
import ray.train
from ray.train.backend import Backend, BackendConfig
from ray.train.v2.api.callback import UserCallback
from ray.train.v2.api.data_parallel_trainer import DataParallelTrainer
from ray.util.metrics import Gauge

from raysum.errors import UserError
from raysum.runs.folder import Run
from raysum.runtime.placement import reserve
from raysum.runtime.processes import configure_process, interruptible, quiet_data, quiet_ray
from raysum.runtime.remote import shown
from raysum.runtime.run_sync import refresh
from raysum.runtime.session import reason
from raysum.runtime.storage import writing
from raysum.runtime.versions import check_versions, own_versions
from raysum.stream.loader import DataError, ray_batches, ray_dataset
from raysum.train.checkpoints import clear
from raysum.train.job_spec import JobSpec

_FAILURES = 3  # restarts after lost workers
_STARTS = 2  # failed attempts to start the workers
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

    Raises UserError if a worker does, without another attempt.
    """
    settings, run = job_spec.config.train, job_spec.run
    workers, folder = settings.workers, run.path / "ray"
    each = reserve(workers, settings.cpus_per_worker, settings.gpus_per_worker, settings.wait_minutes)
    in_order = ray.data.ExecutionOptions(preserve_order=True)
    failures: dict[str, Any] = {"max_failures": _FAILURES, "controller_failure_limit": _STARTS}
    trainer = DataParallelTrainer(  # TorchTrainer would load torch into all processes of Ray Train
        _worker,
        train_loop_config={"job_spec": job_spec, "versions": own_versions()},
        backend_config=SharedDevices(),
        scaling_config=ray.train.ScalingConfig(
            num_workers=workers,
            use_gpu=bool(each.gpus),
            resources_per_worker=each.bundle,
            placement_strategy=settings.placement.upper(),
        ),
        datasets={"train": lambda: _remaining(job_spec)},
        dataset_config=ray.train.DataConfig(execution_options=in_order, enable_shard_locality=False),
        run_config=ray.train.RunConfig(
            name=f"{run.path.name}-{secrets.token_hex(3)}",
            storage_path=str(folder),
            failure_config=ray.train.FailureConfig(**failures),
            callbacks=[FailureRecord(run), *callbacks],  # type: ignore[list-item]
        ),
    )
    is_main = threading.current_thread() is threading.main_thread()  # there Ray Train delays Ctrl-C by a minute
    try:
        with writing(run.path):
            result: Any = interruptible(trainer.fit) if is_main else trainer.fit()
        message = result.return_value
    except ray.train.TrainingFailedError as error:
        _, has_data_error, details = str(error).partition(f"{DataError.__name__}: ")
        if not has_data_error:
            raise
        message = details.splitlines()[0]
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    if message:
        raise UserError(message)


class _SharedDevices(Backend):
    share_cuda_visible_devices = True


class SharedDevices(BackendConfig):
    """Each worker sees the GPUs of all workers, as NCCL needs, and makes its own process group."""

    @property
    def backend_cls(self) -> type[Backend]:
        return _SharedDevices


class FailureRecord(UserCallback):
    """Adds each failure of a worker to the events of ``run``. Ray Train's controller calls it."""

    def __init__(self, run: Run):
        self._run = run

    def after_exception(self, run_context: Any, worker_exceptions: dict[int, Exception]) -> None:
        for rank, error in worker_exceptions.items():
            with suppress(OSError):  # a full disk, or a head without the run folder
                self._run.add_event("failure", message=f"worker {rank}: {reason(error)}")


class Gauges:
    """Sets the gauges of one run. The tag ``trial`` is empty unless the run is a trial of a search."""

    def __init__(self, run: Run):
        trial = run.path.name if run.path.parent.name == "trials" else ""
        self._tags = {"run": shown(run.path.parents[1]) if trial else run.place, "trial": trial}
        self._gauges = {key: Gauge(*names, tag_keys=tuple(self._tags)) for key, names in _GAUGES.items()}
        self._metric = Gauge(*_METRIC, tag_keys=(*self._tags, "metric"))

    def set(self, line: dict[str, Any]) -> None:
        """Set the gauges of a metrics line."""
        for key, value in line.items():
            if key in self._gauges:
                self._gauges[key].set(value, tags=self._tags)
            elif _VALID.match(key):
                self._metric.set(value, tags=self._tags | {"metric": key.removeprefix("valid_")})


def _worker(settings: dict[str, Any]) -> str | None:
    """Run one worker; return the message of a UserError."""
    from raysum.train.group import ray_group
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
    watch = [Gauges(job_spec.run).set] if context.get_world_rank() == 0 else []
    reporter = Reporter(job_spec.run, context.get_world_rank() == 0, ray.train.report, *watch)
    try:
        check_versions(settings["versions"], socket.gethostname(), own_versions())  # the node may have joined later
        with ray_group(), closing(reporter):
            work(job_spec, lambda start: ray_batches(tables), reporter)
    except UserError as error:
        return str(error)
    return None


def _remaining(job_spec: JobSpec) -> ray.data.Dataset:
    """Return the batches after the newest checkpoint. Ray Train calls it at every start of the workers."""
    quiet_data()
    refresh(job_spec.run.path)
    newest, settings = job_spec.run.latest(), job_spec.config.train
    return ray_dataset(job_spec.train, settings.workers, newest.step if newest else 0, settings.steps)
