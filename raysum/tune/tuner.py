"""Running the trials of a search by Ray Tune: what is new, unfinished or failed in its folder."""

import logging
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from ray import tune
from ray.tune import Result
from ray.tune.result import AUTO_RESULT_KEYS
from ray.tune.schedulers import ASHAScheduler, FIFOScheduler, TrialScheduler
from ray.tune.search import BasicVariantGenerator, ConcurrencyLimiter, SearchAlgorithm, Searcher

from raysum.tune.decoding import shared_decoder
from raysum.tune.job import Job
from raysum.tune.population import population
from raysum.tune.results import Trial
from raysum.tune.searchers import Drawn, Listed, domain
from raysum.tune.training import train_trial
from raysum.tune.trials import decode_trial
from raysum.tune.watch import Watch


def run_trials(job: Job, again: bool = True) -> list[Trial]:
    """Run the trials that have not ended yet, failed ones ``again``; what all trials of the search gave."""
    with _silence(), shared_decoder(job) as decoder:
        grid = _tuner(job, decoder, again).fit()
    for leftover in Path(job.out).glob("trials/*/ray"):  # Ray Train's own files, of trials that were stopped
        shutil.rmtree(leftover, ignore_errors=True)
    return [_trial(grid[number]) for number in range(len(grid))]


def _tuner(job: Job, decoder: Any, again: bool) -> tune.Tuner:
    """A new search, or the one that the folder holds, with its unfinished trials to be run again."""
    space = job.space.config
    folder = Path(job.out) / "tune"
    decode = space.kind == "decode"
    # A trial holds almost no CPU itself (0 is refused): its actor does, or its worker group, which Tune does not count.
    resources = tune.PlacementGroupFactory([{"CPU": 0.01}, {"CPU": 1}] if decode else [{"CPU": 0.01}])
    with_job = (
        tune.with_parameters(decode_trial, job=job, decoder=decoder)
        if decode
        else tune.with_parameters(train_trial, job=job)
    )
    trainable = tune.with_resources(with_job, resources)
    if tune.Tuner.can_restore(folder):
        return tune.Tuner.restore(str(folder), trainable, resume_unfinished=True, restart_errored=again)
    drawn = space.searcher == "optuna" or space.scheduler == "pbt"  # by Tune, else by us
    return tune.Tuner(
        trainable,
        param_space={key: domain(values) for key, values in space.search.items()} if drawn else {},
        tune_config=tune.TuneConfig(
            metric=space.metric,
            mode=space.mode,
            search_alg=_searcher(job),
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
            storage_path=job.out,
            verbose=0,
            stop=_ends(job),
            callbacks=[Watch(space.metric, job.space.num_trials)],
        ),
    )


def _searcher(job: Job) -> SearchAlgorithm | Searcher:
    space = job.space.config
    if space.scheduler == "pbt":  # takes no other, and needs all trials at once
        return BasicVariantGenerator(random_state=space.seed)
    if space.searcher == "optuna":
        optuna = Drawn(job.space.fits, metric=space.metric, mode=space.mode, seed=space.seed)
        return ConcurrencyLimiter(optuna, max_concurrent=job.at_once)
    return ConcurrencyLimiter(Listed(job.space.points), max_concurrent=job.at_once)


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
    ends: dict[str, float] = {"train_seconds": space.budget.seconds} if space.budget.seconds else {}
    if space.scheduler == "pbt":
        ends["step"] = job.length  # before the scheduler looks at a trial that has nothing left to train
    return ends or None


def _trial(result: Result) -> Trial:
    """Tune's ``result`` in our words."""
    name, config, found = Path(result.path).name, result.config or {}, result.metrics or {}
    if result.error:
        return Trial(name, config, {}, 0.0, str(result.error).strip().splitlines()[-1])
    reported = {key: value for key, value in found.items() if key not in AUTO_RESULT_KEYS}
    metrics = {key: value for key, value in reported.items() if type(value) in (int, float)}
    return Trial(name, config, metrics, found["time_total_s"])


@contextmanager
def _silence() -> Iterator[None]:
    """Without Tune's own log lines, such as the traceback of a failed trial: `SearchResult` says what failed."""
    logger = logging.getLogger("ray.tune")
    level = logger.level
    logger.setLevel(logging.CRITICAL)
    try:
        yield
    finally:
        logger.setLevel(level)
