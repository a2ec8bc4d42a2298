"""Running the trials of a search by Ray Tune: what is new, unfinished or failed in its folder."""

import logging
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from ray import tune
from ray.tune import Result
from ray.tune.result import AUTO_RESULT_KEYS
from ray.tune.schedulers import ASHAScheduler, FIFOScheduler, TrialScheduler
from ray.tune.search import BasicVariantGenerator, ConcurrencyLimiter, SearchAlgorithm, Searcher
from ray.tune.search.optuna import OptunaSearch
from ray.tune.search.sample import Domain

from raysum.tune.job import Job
from raysum.tune.results import Trial
from raysum.tune.spaces import Values
from raysum.tune.trials import decode_trial, shared_decoder, train_trial
from raysum.tune.watch import Watch


def run_trials(job: Job) -> list[Trial]:
    """Run the trials that have not ended yet; what all trials of the search gave."""
    with _silence(), shared_decoder(job) as decoder:
        grid = _tuner(job, decoder).fit()
    return [_trial(grid[number]) for number in range(len(grid))]


def _tuner(job: Job, decoder: Any) -> tune.Tuner:
    """A new search, or the one that the folder holds, with its failed and unfinished trials to be run again."""
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
        return tune.Tuner.restore(str(folder), trainable, resume_unfinished=True, restart_errored=True)
    return tune.Tuner(
        trainable,
        param_space={key: _domain(values) for key, values in space.search.items()},
        tune_config=tune.TuneConfig(
            metric=space.metric,
            mode=space.mode,
            search_alg=_searcher(job),
            scheduler=_scheduler(job),
            num_samples=space.trials or 1,
            reuse_actors=True,  # of trials one after the other: importing Tune costs each process 2 seconds
            trial_name_creator=job.name,
            trial_dirname_creator=job.name,
        ),
        run_config=tune.RunConfig(
            name=folder.name, storage_path=job.out, verbose=0, callbacks=[Watch(space.metric, job.space.num_trials)]
        ),
    )


def _domain(values: Values) -> Domain | dict[str, Iterable[Any]]:
    if values.grid:
        return tune.grid_search(values.grid)
    if values.choice:
        return tune.choice(values.choice)
    if values.uniform:
        return tune.uniform(*values.uniform)
    assert values.loguniform
    return tune.loguniform(*values.loguniform)


def _searcher(job: Job) -> SearchAlgorithm | Searcher:
    space = job.space.config
    if space.searcher == "optuna":
        optuna = OptunaSearch(metric=space.metric, mode=space.mode, seed=space.seed)
        return ConcurrencyLimiter(optuna, max_concurrent=job.at_once)
    return BasicVariantGenerator(max_concurrent=job.at_once, random_state=space.seed)


def _scheduler(job: Job) -> TrialScheduler:
    """ASHA looks first after an eighth of a trial; a third of the trials goes on, and so again at three times that."""
    space = job.space.config
    if space.scheduler == "fifo":
        return FIFOScheduler()
    unit = "step" if space.kind == "train" else "examples"
    # Above the whole length, so that no trial is ended at its last report, before it has cleaned up.
    return ASHAScheduler(time_attr=unit, max_t=job.length + 1, grace_period=max(1, job.length // 8), reduction_factor=3)


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
