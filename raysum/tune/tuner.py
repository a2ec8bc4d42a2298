"""Running the trials of a search by Ray Tune: what is new, unfinished or failed in its folder."""

import pickle
import shutil
from collections.abc import Iterator
from itertools import count
from pathlib import Path
from typing import Any

from ray import tune
from ray.tune import Result
from ray.tune.result import AUTO_RESULT_KEYS
from ray.tune.schedulers import ASHAScheduler, FIFOScheduler, TrialScheduler
from ray.tune.search import BasicVariantGenerator, SearchAlgorithm, Searcher
from ray.tune.search.optuna import OptunaSearch
from ray.util.metrics import Gauge

from raysum.errors import UserError
from raysum.runtime.log_filters import muted
from raysum.runtime.placement import share
from raysum.runtime.progress import bar, say
from raysum.tune.decoding import decode_trial, shared_decoder
from raysum.tune.record import Record, figures
from raysum.tune.results import Trial
from raysum.tune.spaces import Job, Space, label
from raysum.tune.training import domain, population, train_trial


def run_trials(job: Job, again: bool) -> list[Trial]:
    """Run the trials that have not ended yet, failed ones ``again``; what all trials of the search gave.

    Raises UserError where the folder holds a search that does not read.
    """
    with muted("ray.tune"):
        begun = find_state(job.out / "tune")
        with shared_decoder(job) as decoder:
            try:
                grid = _tuner(job, decoder, begun, again).fit()
            except (EOFError, pickle.UnpicklingError):  # of an error.pkl
                raise UserError(
                    f"cannot write {job.out}: what a failed trial wrote there is torn; free space there"
                ) from None
    for leftover in job.out.glob("trials/*/ray"):  # Ray Train's own files, of trials that were stopped
        shutil.rmtree(leftover, ignore_errors=True)
    return [_trial(job, grid[number]) for number in range(len(grid))]


def find_state(folder: Path) -> bool:
    """Whether ``folder`` holds a state of a search: without one, or from a damaged one, Tune would try one trial only.

    Each time that the search goes on Tune writes states of a new name. Newer ones than the first that reads are set
    aside. Raises UserError where none reads.
    """
    damages: list[str] = []
    newer: list[Path] = []
    for state in sorted(folder.glob("experiment_state-*.json"), reverse=True):
        parts = sorted(folder.glob(f"*{state.stem.removeprefix('experiment_state')}.*"))
        if not (damage := _damage(state, [folder / "tuner.pkl", *parts])):
            for part in newer:
                part.rename(part.with_name(f"damaged-{part.name}"))
            for told in damages:
                say(f"{told}. An older state is gone on from: trials that ended since are run again")
            return True
        newer += parts
        damages.append(damage)
    if damages:
        raise UserError(
            f"{damages[0]}, so that the search cannot go on; remove {folder} and repeat the command: it begins again, "
            f"a grid with what its trials have in {folder.parent}/trials, where all stays"
        )
    return False


def _damage(state: Path, files: list[Path]) -> str | None:
    """What is wrong with a ``state`` that Tune wrote in ``files``."""
    if not any(file.name.startswith(("searcher-state", "basic-variant-state")) for file in files):
        return f"{state} is incomplete: the state of the searcher is missing"
    for file in files:
        try:
            tune.ExperimentAnalysis(str(file)) if file == state else pickle.loads(file.read_bytes())
        except Exception as error:  # damaged pickles raise anything
            return f"{file} is damaged ({type(error).__name__}: {error})"
    return None


def _tuner(job: Job, decoder: Any, begun: bool, again: bool) -> tune.Tuner:
    """A new search, or the one that has ``begun`` in the folder, with its unfinished trials to be run again."""
    space = job.space.config
    folder = job.out / "tune"
    decode = space.kind == "decode"
    # A trial holds almost no CPU itself (0 is refused): its actor does, or its worker group, which Tune does not count.
    actors = [{"CPU": 1.0} if decoder else share("decoder", job.at_once).bundle] if decode else []
    resources = tune.PlacementGroupFactory([{"CPU": 0.01}, *actors])
    trial, given = (decode_trial, {"decoder": decoder}) if decode else (train_trial, {})
    trainable = tune.with_resources(tune.with_parameters(trial, job=job, **given), resources)
    if begun:
        return tune.Tuner.restore(str(folder), trainable, resume_unfinished=True, restart_errored=again)
    return tune.Tuner(
        trainable,
        param_space={key: domain(values) for key, values in space.search.items()} if job.space.drawn_by_tune else {},
        tune_config=tune.TuneConfig(
            metric=space.metric,
            mode=space.mode,
            search_alg=_searcher(job),
            max_concurrent_trials=job.at_once,
            scheduler=_scheduler(job),
            num_samples=job.space.num_trials,
            # Importing Tune costs each process 2 seconds. But a trial that is stopped while its workers train cannot
            # leave its process, and the next trial there would fail.
            reuse_actors=decode or space.scheduler == "pbt",
            trial_name_creator=job.name,
            trial_dirname_creator=job.name,
        ),
        run_config=tune.RunConfig(
            name=folder.name,
            storage_path=str(job.out),
            verbose=0,
            stop=_ends(job),
            callbacks=[TrialProgress(space.metric, job.space.num_trials)],
        ),
    )


def _searcher(job: Job) -> SearchAlgorithm | Searcher:
    space = job.space.config
    if space.scheduler == "pbt":  # takes no other, and needs all trials at once
        return BasicVariantGenerator(random_state=space.seed)
    if space.searcher == "optuna":
        return Drawn(job.space, metric=space.metric, mode=space.mode, seed=space.seed)
    return Listed(job.space.points)


def _scheduler(job: Job) -> TrialScheduler:
    """ASHA looks first after an eighth of a trial; a third of the trials goes on, and so again at three times that."""
    space = job.space.config
    if space.scheduler == "fifo":
        return FIFOScheduler()
    if space.scheduler == "pbt":
        return population(job)
    unit, length = "step" if space.kind == "train" else "examples", job.length
    if space.budget.seconds:
        unit, length = "train_seconds", int(space.budget.seconds)
    # Above the whole length, so that no trial is ended at its last report, before it has cleaned up.
    return ASHAScheduler(time_attr=unit, max_t=length + 1, grace_period=max(1, length // 8), reduction_factor=3)


def _ends(job: Job) -> dict[str, float] | None:
    """Metrics at which a trial ends that would go on."""
    space = job.space.config
    last = job.length if space.scheduler == "pbt" else None  # then the scheduler sees none with nothing left to train
    ends = {"train_seconds": space.budget.seconds, "step": last}
    return {name: most for name, most in ends.items() if most} or None


def _trial(job: Job, result: Result) -> Trial:
    """Tune's ``result`` in our words. Where a trial is tried again, Tune adds something to the name of its folder."""
    config, found = result.config or {}, result.metrics or {}
    name = label(config) if job.space.config.searcher == "grid" else Path(result.path).name
    if result.error:
        return Trial(name, config, {}, 0.0, str(result.error).strip().splitlines()[-1])
    own = found.keys() - AUTO_RESULT_KEYS
    metrics = {key: value for key, value in found.items() if key in own and type(value) in (int, float)}
    return Trial(name, config, metrics, found["time_total_s"])


class Listed(Searcher):
    """The ``points`` of a grid or a random search, one after the other."""

    def __init__(self, points: list[dict[str, Any]]):
        super().__init__()
        self.points, self.given = points, 0

    def suggest(self, trial_id: str) -> Any:
        if self.given >= len(self.points):
            return Searcher.FINISHED
        self.given += 1
        return self.points[self.given - 1]

    def on_trial_complete(self, trial_id: str, result: dict[str, Any] | None = None, error: bool = False) -> None:
        """The list does not depend on results."""

    def save(self, checkpoint_path: str) -> None:
        Path(checkpoint_path).write_bytes(pickle.dumps(self.given))  # Tune names it .pkl, and takes the newest such

    def restore(self, checkpoint_path: str) -> None:
        self.given = pickle.loads(Path(checkpoint_path).read_bytes())


class Drawn(OptunaSearch):
    """Optuna's draws; those that do not ``fit`` the budget are told to it as failed, and drawn again."""

    def __init__(self, space: Space, **settings: Any):
        super().__init__(**settings)
        self.space = space
        self.draws: dict[str, str] = {}  # by trial: the name of the draw that it tries

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
    """Shows each trial as it ends, and each of its results as the gauge ``raysum_trial_METRIC{trial="beta=0.8"}``;
    keeps the record of the search, from which its page is made."""

    def __init__(self, metric: str, total: int):
        self.metric, self.total = metric, total

    def setup(self, *args: Any, **info: Any) -> None:
        description = f"{self.metric} of each trial of the search, as far as it has come"
        self.gauge = Gauge(f"raysum_trial_{self.metric}", description, tag_keys=("trial",))
        self.bar = bar(total=self.total, label="search", unit="trial")
        self.record = Record()

    def on_trial_start(self, iteration: int, trials: list, trial: Any, **info: Any) -> None:
        self._tell(trial, config=trial.config)

    def on_trial_result(self, iteration: int, trials: list, trial: Any, result: dict[str, Any], **info: Any) -> None:
        if self.metric in result:
            self.gauge.set(result[self.metric], tags={"trial": str(trial)})
            self._tell(trial, config=trial.config, metrics=figures(result), seconds=result["time_total_s"])

    def on_trial_complete(self, iteration: int, trials: list, trial: Any, **info: Any) -> None:
        self._tell(trial, state="ended")
        say(f"{trial}: {self.metric} {trial.last_result.get(self.metric, float('nan')):.4g}")

    def on_trial_error(self, iteration: int, trials: list, trial: Any, **info: Any) -> None:
        lines = Path(trial.error_file).read_text(errors="replace").strip().splitlines() if trial.error_file else []
        self._tell(trial, state="failed", error=lines[-1] if lines else None)
        say(f"{trial} failed; the others go on")

    def _tell(self, trial: Any, **told: Any) -> None:
        self.record.add(Path(trial.storage.storage_fs_path), trial=str(trial), **told)

    def on_step_begin(self, iteration: int, trials: list, **info: Any) -> None:
        ended = sum(trial.is_finished() for trial in trials)
        self.bar.update(ended - self.bar.n)

    def on_experiment_end(self, trials: list, **info: Any) -> None:
        self.on_step_begin(0, trials)
        self.bar.close()

    def __getstate__(self) -> dict[str, Any]:
        """Tune writes its callbacks to disk: without the bar and the gauge."""
        return {"metric": self.metric, "total": self.total}
