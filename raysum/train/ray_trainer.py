"""The workers of a training under Ray Train. Imports of torch are local, so Ray Train's controller does not load it."""

import secrets
import shutil
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from contextlib import closing
from typing import TYPE_CHECKING, Any

from raysum.errors import UserError
from raysum.runtime.placement import check_fits, share
from raysum.runtime.processes import configure_process, quiet_data, quiet_ray
from raysum.runtime.run_sync import refresh
from raysum.runtime.session import ray_session
from raysum.runtime.storage import writing
from raysum.stream.loader import DataError, ray_batches, ray_dataset
from raysum.train.job_spec import JobSpec

if TYPE_CHECKING:
    import ray.data

_FAILURES = 3  # restarts after lost workers
_STARTS = 2  # failed attempts to start the workers


def train_on_ray(job_spec: JobSpec, callbacks: Sequence[Any]) -> None:
    """Run the training on Ray Train workers. Raises UserError if a worker does, without another attempt."""
    workers, folder = job_spec.config.train.workers, job_spec.run.path / "ray"
    with ray_session(job_spec.config.train.address, workers + 1, "train"):
        from ray.data import ExecutionOptions
        from ray.train import DataConfig, FailureConfig, RunConfig, ScalingConfig, TrainingFailedError
        from ray.train.v2.api.data_parallel_trainer import DataParallelTrainer

        from raysum.train.backend import FailureRecord, SharedDevices

        each, in_order = share("worker", workers), ExecutionOptions(preserve_order=True)
        check_fits(workers, each)
        trainer = DataParallelTrainer(  # TorchTrainer would load torch into all processes of Ray Train
            _worker,
            train_loop_config={"job_spec": job_spec},
            backend_config=SharedDevices(),
            scaling_config=ScalingConfig(
                num_workers=workers,
                use_gpu=bool(each.gpus),
                resources_per_worker=each.bundle,
                placement_strategy=job_spec.config.train.placement.upper(),
            ),
            datasets={"train": lambda: _remaining(job_spec)},
            dataset_config=DataConfig(execution_options=in_order, enable_shard_locality=False),
            run_config=RunConfig(
                name=f"{job_spec.run.path.name}-{secrets.token_hex(3)}",
                storage_path=str(folder),
                failure_config=FailureConfig(max_failures=_FAILURES, controller_failure_limit=_STARTS),  # type: ignore[call-arg]
                callbacks=[FailureRecord(job_spec.run.path), *callbacks],  # type: ignore[list-item]
            ),
        )
        try:
            with writing(job_spec.run.path):
                message = _interruptible(trainer.fit).return_value
        except TrainingFailedError as error:
            _, has_data_error, details = str(error).partition(f"{DataError.__name__}: ")
            if not has_data_error:
                raise
            message = details.splitlines()[0]
        finally:
            shutil.rmtree(folder, ignore_errors=True)
    if message:
        raise UserError(message)


def _worker(settings: dict[str, Any]) -> str | None:
    """Run one worker; return the message of a UserError."""
    import ray.train

    from raysum.train.checkpoints import clear
    from raysum.train.gauges import Gauges
    from raysum.train.group import ray_group
    from raysum.train.metrics_logger import Reporter
    from raysum.train.worker import work

    job_spec, context = settings["job_spec"], ray.train.get_context()
    configure_process(job_spec.config.train.threads, neighbours=context.get_local_world_size())
    quiet_ray()
    if context.get_local_rank() == 0:
        clear(job_spec.run)  # of an earlier attempt on this host
    shard = ray.train.get_dataset_shard("train")
    tables = shard.iter_batches(batch_size=None, batch_format="pyarrow", prefetch_batches=1)
    first = context.get_world_rank() == 0
    reporter = Reporter(job_spec.run, first, ray.train.report, Gauges(job_spec.run) if first else None)
    try:
        with ray_group(), closing(reporter):
            work(job_spec, lambda start: ray_batches(tables), reporter)
    except UserError as error:
        return str(error)
    return None


def _remaining(job_spec: JobSpec) -> "ray.data.Dataset":
    """Return the batches after the newest checkpoint. Ray Train calls it at every start of the workers."""
    quiet_data()
    refresh(job_spec.run.path)
    newest = job_spec.run.latest()
    return ray_dataset(
        job_spec.train, job_spec.config.train.workers, newest.step if newest else 0, job_spec.config.train.steps
    )


def _interruptible(work: Callable[[], Any]) -> Any:
    """Return the result of ``work``, run in another thread, so that Ctrl-C ends the training at once.

    In the main thread Ray Train would handle Ctrl-C itself, and wait up to a minute for its workers.
    """
    if threading.current_thread() is not threading.main_thread():
        return work()
    done: Future[Any] = Future()

    def run() -> None:
        try:
            done.set_result(work())
        except BaseException as error:
            done.set_exception(error)

    threading.Thread(target=run, daemon=True).start()
    return done.result()
