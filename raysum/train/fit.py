"""The driver of a training: checks, the run folder, and the workers: in this process, or under Ray Train."""

import secrets
import shutil
import signal
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import numpy as np

from raysum.config import Config
from raysum.errors import UserError
from raysum.prepare.dataset import Dataset
from raysum.prepare.vocabulary import Vocabulary
from raysum.progress import say
from raysum.run import Run
from raysum.session import quiet, ray_session
from raysum.stream.collate import KINDS
from raysum.stream.loader import Stream, batches, plan_of, ray_batches, ray_dataset
from raysum.stream.plan import PlanSettings
from raysum.train import checkpoints
from raysum.train.group import lone_group, settle, silence
from raysum.train.optim import check_engine_config
from raysum.train.report import Reporter, followed
from raysum.train.worker import Job, work

if TYPE_CHECKING:
    import ray.data

_FAILURES = 3  # restarts of lost workers, before a training that keeps failing is given up
_STARTS = 2  # failed attempts to start the workers at all

# May differ when a run is resumed; everything else must be as it was.
_CHANGEABLE = {"decode", "data", "out", "run"}
_CHANGEABLE_TRAIN = {
    "steps", "workers", "threads", "address", "validate_every", "validate_examples", "save_every", "keep", "log_every",
}  # fmt: skip


def train(config: Config, callbacks: Sequence[Any] = ()) -> Run:
    """Train ``config`` on the dataset ``config.data`` into ``config.out``, or go on with the run that is there.

    ``callbacks``: Ray Train ``UserCallback`` objects. Raises UserError for a wrong config, dataset or run folder.
    """
    for name in ("data", "out"):
        if getattr(config, name) is None:
            raise UserError(f"training needs {name}=; write for example `raysum train pht data=DATA out=RUN`")
    dataset = Dataset.open(config.data)
    if dataset.kind != "summarization":
        raise UserError(f"{config.data} is a dataset of kind {dataset.kind!r}; training needs one made by `raysum prepare`")
    return train_on(dataset, fitted(config, dataset), callbacks)


def fitted(config: Config, dataset: Dataset) -> Config:
    """``config`` with the vocabulary size of the dataset, whatever the preset says."""
    size = len(Vocabulary.load(dataset.vocabulary_path))
    return config.model_copy(update={"model": config.model.model_copy(update={"vocabulary": size})})


def train_on(dataset: Dataset, config: Config, callbacks: Sequence[Any] = ()) -> Run:
    """:func:`train` with an opened dataset of any kind and a model that fits it."""
    run = Run(config.out)
    silence()
    check_engine_config(config)
    check_resumable(run, config, dataset)
    newest = run.latest()
    start = newest.step if newest else 0
    job = job_of(dataset, config, run, start)
    if start >= config.train.steps:
        say(f"{run.path} is trained: {start} steps are done; raise train.steps to go on")
        return run
    run.create(config, dataset.manifest["recipe"], dataset.vocabulary_path)
    if newest:
        say(f"{run.path} goes on from step {start}")
        if checkpoints.needs_conversion(newest, max(config.train.workers, 1)):
            checkpoints.convert(newest)
    with followed(run, config.train.steps, start, f"training {run.path.name}"):
        if config.train.workers:
            _train_on_ray(job, callbacks)
        else:
            _train_here(job)
    return run


def check_resumable(run: Run, config: Config, dataset: Dataset) -> None:
    """Raises UserError where ``run`` exists and was trained with another vocabulary, dataset or config."""
    if not run.exists:
        return
    vocabulary = Vocabulary.load(run.vocabulary)
    if vocabulary.sha256 != dataset.vocabulary_hash:
        raise UserError(f"{run.path} was trained with another vocabulary than {dataset.path} has; choose another out=")
    changed = [name for name in _differences(run.config.model_dump(), config.model_dump()) if not _changeable(name)]
    if changed:
        raise UserError(f"{run.path} was trained with other values of {', '.join(changed)}; keep them, or choose another out=")
    newest = run.latest()
    if newest and newest.state["data"] != dataset.fingerprint:
        raise UserError(f"{run.path} was trained on another dataset than {dataset.path}; choose another out=")


def job_of(dataset: Dataset, config: Config, run: Run, start: int) -> Job:
    """The job of a training that goes on at step ``start``. Raises UserError where no row can be trained on."""
    settings = config.train
    batching = PlanSettings(settings.batch_tokens, settings.micro_batches, settings.window, settings.seed)
    stream = Stream(str(dataset.path), dataset.split("train"), config.source, batching)
    usable = _usable(dataset, stream.split, config)
    if not usable.any():
        raise UserError(f"no row of {dataset.path}, split train, has a summary; prepare a dataset with summaries")
    unused = int((~usable).sum())
    if unused:
        say(f"{unused} of {len(usable)} rows have no summary and are not trained on")
    epoch, place = plan_of(stream).locate(start)
    valid = None
    if "valid" in dataset.splits and _usable(dataset, "valid", config).any():
        valid = Stream(stream.path, "valid", config.source, batching, settings.validate_examples)
    return Job(
        out=str(run.path),
        config=config,
        kind=dataset.kind,
        fingerprint=dataset.fingerprint,
        train=Stream(stream.path, stream.split, config.source, batching, origin=(epoch, start - place)),
        valid=valid,
    )


def _usable(dataset: Dataset, split: str, config: Config) -> np.ndarray:
    """[rows] true where a row has something to learn from."""
    _, weights = KINDS[dataset.kind].costs(dataset.lengths(split), config.source)
    return weights > 0


def _train_here(job: Job) -> None:
    settle(job.config.train.threads, neighbours=1)
    with lone_group():
        work(job, lambda start: batches(job.train, 0, 1, start, job.config.train.steps), Reporter(Run(job.out), True))


def _train_on_ray(job: Job, callbacks: Sequence[Any]) -> None:
    from ray.train import DataConfig, FailureConfig, RunConfig, ScalingConfig
    from ray.train.torch import TorchTrainer

    workers, folder = job.config.train.workers, Run(job.out).path / "ray"
    with ray_session(job.config.train.address, cpus=workers + 1), _sigint_kept():
        import ray

        offered = ray.cluster_resources()
        cuda = offered.get("GPU", 0) >= workers
        # Half of the CPUs is left to Ray Data's readers; on a small machine the workers' shares are fractions.
        share = min(1.0, offered["CPU"] / 2 / workers)
        trainer = TorchTrainer(
            _ray_worker,
            train_loop_config={"job": job},
            scaling_config=ScalingConfig(num_workers=workers, use_gpu=cuda, resources_per_worker=_each(share, cuda)),
            datasets={"train": lambda: _remaining(job)},
            dataset_config=DataConfig(execution_options=_ordered(), enable_shard_locality=False),
            run_config=RunConfig(
                name=f"{Run(job.out).path.name}-{secrets.token_hex(3)}",
                storage_path=str(folder),
                failure_config=FailureConfig(max_failures=_FAILURES, controller_failure_limit=_STARTS),
                callbacks=list(callbacks),
            ),
        )
        try:
            mistake = trainer.fit().return_value
        finally:
            shutil.rmtree(folder, ignore_errors=True)
    if mistake:
        raise UserError(mistake)


def _ray_worker(settings: dict[str, Any]) -> str | None:
    """One worker under Ray Train; returns the message of a UserError, which another attempt would only repeat."""
    import ray.train

    job, context = settings["job"], ray.train.get_context()
    settle(job.config.train.threads, neighbours=context.get_local_world_size())
    quiet()
    shard = ray.train.get_dataset_shard("train")
    reporter = Reporter(Run(job.out), context.get_world_rank() == 0, share=ray.train.report)
    tables = shard.iter_batches(batch_size=None, batch_format="pyarrow", prefetch_batches=1)
    try:
        work(job, lambda start: ray_batches(iter(tables)), reporter)
    except UserError as error:
        return str(error)
    return None


def _remaining(job: Job) -> "ray.data.Dataset":
    """The batches after the newest checkpoint: evaluated by Ray Train at every start of the workers."""
    quiet()
    newest = Run(job.out).latest()
    return ray_dataset(job.train, job.config.train.workers, newest.step if newest else 0, job.config.train.steps)


def _ordered() -> Any:
    from ray.data import ExecutionOptions

    return ExecutionOptions(preserve_order=True)


def _each(share: float, cuda: bool) -> dict[str, float]:
    return {"CPU": share, "GPU": 1} if cuda else {"CPU": share}


@contextmanager
def _sigint_kept() -> Iterator[None]:
    """Ray Train takes the handler of Ctrl-C and does not give it back."""
    handler = signal.getsignal(signal.SIGINT)
    try:
        yield
    finally:
        if threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGINT, handler)


def _differences(old: Any, new: Any, prefix: str = "") -> list[str]:
    """Dotted names of what differs between two nested dicts."""
    if not (isinstance(old, dict) and isinstance(new, dict)):
        return [] if old == new else [prefix.removesuffix(".")]
    names = [*old, *(name for name in new if name not in old)]
    return [found for name in names for found in _differences(old.get(name), new.get(name), f"{prefix}{name}.")]


def _changeable(name: str) -> bool:
    section, _, key = name.partition(".")
    return section in _CHANGEABLE or (section == "train" and key in _CHANGEABLE_TRAIN)
