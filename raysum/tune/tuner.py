"""Run the trials of a search with Ray Tune: new, unfinished and failed ones."""

import pickle
import shutil
from collections.abc import Callable, Iterator
from itertools import count
from pathlib import Path
from typing import Any

from ray import tune
from ray.exceptions import RayActorError
from ray.tune.result import AUTO_RESULT_KEYS
from ray.tune.schedulers import ASHAScheduler, FIFOScheduler, TrialScheduler
from ray.tune.search import BasicVariantGenerator, SearchAlgorithm, Searcher
from ray.tune.search.optuna import OptunaSearch
from ray.tune.trainable.function_trainable import wrap_function
from ray.util.metrics import Gauge

from raysum.errors import UserError
from raysum.runtime.processes import muted
from raysum.runtime.progress import bar, say
from raysum.runtime.remote import shown
from raysum.tune.decoding import decode_trial, shared_decoder
from raysum.tune.population import population
from raysum.tune.record import RecordWriter
from raysum.tune.spaces import Job, Space
from raysum.tune.state import find_state
from raysum.tune.training import domain, end_training, train_trial
from raysum.tune.trial_trackers import TrialTrackers


def run_trials(job: Job, repeats_failed: bool) -> None:
    """Run the trials that have not ended, with ``repeats_failed`` also failed ones.

    Raises UserError if the state of an earlier search in the folder is damaged.
    """
    with muted("ray.tune"):
        is_begun = find_state(job.out / "tune")
        with shared_decoder(job) as decoder:
            try:
                _tuner(job, decoder, is_begun, repeats_failed).fit()
            except (EOFError, pickle.UnpicklingError):  # of an error.pkl
                raise UserError(
                    f"cannot write {job.out}: the error file of a failed trial is incomplete; free space there"
                ) from None
    for leftover in job.out.glob("trials/*/ray"):  # Ray Train's files of stopped trials
        shutil.rmtree(leftover, ignore_errors=True)


def _tuner(job: Job, decoder: Any, is_begun: bool, repeats_failed: bool) -> tune.Tuner:
    """Return the tuner of a new search, or of the search in the folder, which runs its unfinished trials again."""
    space, folder, decodes = job.space.config, job.out / "tune", job.space.config.kind == "decode"
    # A trial itself runs on the head of the cluster, without which the search ends, and survives the loss of all other
    # nodes. It has no CPUs (but needs some resource): its actors or its worker group have them. Tune does not count the
    # worker group.
    each = job.share._replace(gpus=0.0) if decoder else job.share
    actors = [each.bundle] if decodes else []
    resources = tune.PlacementGroupFactory([{"node:__internal_head__": 0.001}, *actors])
    trial, parameters = (decode_trial, {"decoder": decoder}) if decodes else (train_trial, {})
    trainable = _named(tune.with_resources(tune.with_parameters(trial, job=job, **parameters), resources))
    if is_begun:
        return tune.Tuner.restore(str(folder), trainable, resume_unfinished=True, restart_errored=repeats_failed)
    is_population = space.is_population
    stop = dict(space.stop)
    if space.budget.seconds:
        stop["train_seconds"] = min(space.budget.seconds, stop.get("train_seconds", space.budget.seconds))
    if is_population:  # so that it never perturbs a trial at its last step
        stop["step"] = min(job.length, stop.get("step", job.length))
    return tune.Tuner(
        trainable,
        param_space={key: domain(values) for key, values in space.search.items()} if job.space.drawn_by_tune else {},
        tune_config=tune.TuneConfig(
            metric=space.metric,
            mode=space.goal,
            search_alg=_searcher(job),
            max_concurrent_trials=job.concurrency,
            scheduler=_scheduler(job),
            num_samples=job.space.num_trials,
            # Reuse saves the start of a process with its imports for each trial. But a trial that is stopped while its
            # workers train keeps its process busy, so the next trial there would fail.
            reuse_actors=decodes or is_population or max(job.space.first.train.workers, job.least_workers) == 0,
            trial_name_creator=job.name,
            trial_dirname_creator=job.name,
        ),
        run_config=tune.RunConfig(
            name=folder.name,
            storage_path=str(job.out),
            verbose=0,
            stop=TrialLimits(stop, space.metric if space.goal == "min" else ""),
            failure_config=tune.FailureConfig(max_failures=space.retries),
            callbacks=[TrialProgress(space.metric, job.space.num_trials, job.out), TrialTrackers(job)],
        ),
    )


def _named(function: Callable[..., None]) -> type[tune.Trainable]:
    """Return the trainable of a function, whose actor has the name of its first trial in Ray's dashboard.

    A trial that is stopped ends its training. Tune kills the actor 10 minutes later, at the end of the search after 10
    seconds.

    A lost actor of a trial is an error of another type: for RayActorError Tune believes that the trial's own actor is
    lost, and does not save that the trial failed.
    """

    class Trial(wrap_function(function)):  # type: ignore[misc]
        def train(self) -> Any:
            try:
                return super().train()
            except RayActorError as error:
                raise RuntimeError(str(error)) from None

        def cleanup(self) -> None:
            try:
                end_training()
            finally:
                super().cleanup()

        def __repr__(self) -> str:
            return str(self.trial_name)

    return Trial


def _searcher(job: Job) -> SearchAlgorithm | Searcher:
    space = job.space.config
    if space.is_population:  # accepts only this searcher, and needs all trials at once
        return BasicVariantGenerator(random_state=space.seed)
    if space.searcher == "optuna":
        return Drawn(job.space, metric=space.metric, mode=space.goal, seed=space.seed)
    return Listed(job.space.points)


def _scheduler(job: Job) -> TrialScheduler:
    """Return the scheduler. ASHA keeps the best third of the trials after 1/8 of a trial, and again after 3/8.

    Hyperband is asynchronous (Li et al. 2018): each trial draws one of four brackets, which keep their best third after
    1/27, 1/9 and 1/3 of a trial, from 1/9 on, from 1/3 on, or keep all trials. Ray's synchronous HyperBandScheduler
    pauses trials, which would stop and start their workers each time.
    """
    space = job.space.config
    if space.scheduler == "fifo":
        return FIFOScheduler()
    if space.is_population:
        return population(job)
    unit, length = "step" if space.kind == "train" else "examples", job.length
    if space.budget.seconds:
        unit, length = "train_seconds", int(space.budget.seconds)
    first, brackets = (max(1, length // 8), 1) if space.scheduler == "asha" else (length // 27 + 1, 4)
    # One more than the whole length, so that no trial is stopped at its last report, before its cleanup.
    return ASHAScheduler(time_attr=unit, max_t=length + 1, grace_period=first, reduction_factor=3, brackets=brackets)


class TrialLimits(tune.Stopper):
    """Ends a trial when a metric reaches its value in ``stop``.

    A loss and the ``minimized`` metric reach it at or below it, others at or above it.
    """

    minimized = ""  # in states of earlier versions

    def __init__(self, stop: dict[str, float], minimized: str = ""):
        self.stop, self.minimized = stop, minimized

    def __call__(self, trial_id: str, result: dict[str, Any]) -> bool:
        return any(name in result and self._is_reached(name, result[name]) for name in self.stop)

    def _is_reached(self, name: str, value: float) -> bool:
        is_lower = name.endswith("loss") or name == self.minimized
        return value <= self.stop[name] if is_lower else value >= self.stop[name]

    def stop_all(self) -> bool:
        return False


class Listed(Searcher):
    """A searcher that suggests the ``points`` of a grid or a random search in order."""

    def __init__(self, points: list[dict[str, Any]]):
        super().__init__()
        self.points, self.given = points, 0  # the number of points given to trials

    def suggest(self, trial_id: str) -> Any:
        if self.given >= len(self.points):
            return Searcher.FINISHED
        self.given += 1
        return self.points[self.given - 1]

    def on_trial_complete(self, trial_id: str, result: dict[str, Any] | None = None, error: bool = False) -> None:
        """Do nothing: the list does not depend on results."""

    def save(self, checkpoint_path: str) -> None:
        Path(checkpoint_path).write_bytes(pickle.dumps(self.given))  # Tune restores from its newest .pkl file

    def restore(self, checkpoint_path: str) -> None:
        self.given = pickle.loads(Path(checkpoint_path).read_bytes())


class Drawn(OptunaSearch):
    """Optuna's searcher, which reports draws above the budget to Optuna as failed and draws again."""

    def __init__(self, space: Space, **settings: Any):
        super().__init__(**settings)
        self.space = space
        self.draws: dict[str, str] = {}  # the name of the current draw by trial

    def suggest(self, trial_id: str) -> dict[str, Any]:
        return self.space.first_fit(self._drawn(trial_id))

    def _drawn(self, trial_id: str) -> Iterator[Any]:
        for number in count():
            self.draws[trial_id] = f"{trial_id}-{number}"
            yield super().suggest(self.draws[trial_id])
            self.on_trial_complete(trial_id, error=True)

    def on_trial_result(self, trial_id: str, result: dict[str, Any]) -> None:
        super().on_trial_result(self.draws[trial_id], result)

    def on_trial_complete(self, trial_id: str, result: dict[str, Any] | None = None, error: bool = False) -> None:
        super().on_trial_complete(self.draws[trial_id], result, error)


class TrialProgress(tune.Callback):
    """Show each ended trial and a progress bar, export results as metrics, and write the record of the search.

    Each result is a value of the gauge ``raysum_trial_metric``. The page of the search reads the record.
    """

    def __init__(self, metric: str, total: int, out: Path):
        self.metric, self.total, self.search = metric, total, shown(out)

    def setup(self, *args: Any, **info: Any) -> None:
        tags = ("run", "trial", "metric")
        self.gauge = Gauge("raysum_trial_metric", "The metric of a search, by trial", tag_keys=tags)
        self.bar = bar(total=self.total, label="search", unit="trial")
        self.record = RecordWriter()

    def on_trial_start(self, iteration: int, trials: list, trial: Any, **info: Any) -> None:
        self._write(trial, config=trial.config)

    def on_trial_result(self, iteration: int, trials: list, trial: Any, result: dict[str, Any], **info: Any) -> None:
        if self.metric in result:
            tags = {"run": self.search, "trial": str(trial), "metric": self.metric}
            self.gauge.set(result[self.metric], tags=tags)
            numbers = {key: value for key, value in result.items() if type(value) in (int, float)}
            metrics = {key: numbers[key] for key in numbers.keys() - AUTO_RESULT_KEYS}
            self._write(trial, config=trial.config, metrics=metrics, seconds=result["time_total_s"])

    def on_trial_complete(self, iteration: int, trials: list, trial: Any, **info: Any) -> None:
        self._write(trial, state="ended")
        say(f"{trial}: {self.metric} {trial.last_result.get(self.metric, float('nan')):.4g}")

    def on_trial_recover(self, iteration: int, trials: list, trial: Any, **info: Any) -> None:
        say(f"{trial} failed and runs again")

    def on_trial_error(self, iteration: int, trials: list, trial: Any, **info: Any) -> None:
        lines = Path(trial.error_file).read_text(errors="replace").strip().splitlines() if trial.error_file else []
        reason = lines[-1].removeprefix(f"{UserError.__module__}.{UserError.__name__}: ") if lines else None
        self._write(trial, state="failed", error=reason)
        say(f"{trial} failed; the search continues")

    def _write(self, trial: Any, **values: Any) -> None:
        self.record.add(Path(trial.storage.storage_fs_path), trial=str(trial), **values)

    def on_step_begin(self, iteration: int, trials: list, **info: Any) -> None:
        ended = sum(trial.is_finished() for trial in trials)
        self.bar.update(ended - self.bar.n)

    def on_experiment_end(self, trials: list, **info: Any) -> None:
        self.on_step_begin(0, trials)
        self.bar.close()

    def __getstate__(self) -> dict[str, Any]:
        """Return the state that Tune writes to disk, without the bar and the gauge."""
        return {"metric": self.metric, "total": self.total, "search": self.search}
