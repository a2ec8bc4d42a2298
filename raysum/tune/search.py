"""Searching a space with Ray Tune: the driver. The best trial becomes what `serve` and `summarize` find."""

import os
import time
from pathlib import Path
from typing import Any

import yaml
from ray import tune
from ray.tune import Result
from ray.tune.result import AUTO_RESULT_KEYS
from ray.tune.schedulers import ASHAScheduler, FIFOScheduler, TrialScheduler
from ray.tune.search import BasicVariantGenerator, SearchAlgorithm, Searcher
from ray.tune.search.optuna import OptunaSearch

from raysum.config import Config
from raysum.errors import UserError
from raysum.evaluate.scoring import check_vocabulary
from raysum.prepare.dataset import Dataset
from raysum.progress import say
from raysum.run import Run, write_json, write_text
from raysum.session import dashboard, ray_session
from raysum.tune.plots import plot
from raysum.tune.results import SearchResult, Trial, ranked
from raysum.tune.spaces import Space, SpaceConfig, Values, load_space
from raysum.tune.trials import Job, decode_trial, train_trial
from raysum.tune.watch import Watch, silence


def search(name: str, overrides: list[str] | None = None) -> SearchResult:
    """Search the space ``name`` (of the package, or a file) on ``data=DATA`` into ``out=SEARCH``.

    ``overrides`` also hold ``run=RUN`` for a decode space, config keys for all trials, and keys of the space itself.
    The same search on the same folder goes on where it stopped; failed trials are tried again. The settings of the best
    trial become the run's (RUN/decode.yaml), or its run the search's; SEARCH/best.json says which. On equal metrics the
    smaller values win. Raises UserError for a wrong space, key, run or dataset, and where every trial failed.
    """
    started = time.monotonic()
    space = load_space(name, overrides)
    config = space.resolve(next(space.samples()))
    job = _check(space, config)
    _claim(Path(job.out), space, config)
    with ray_session(config.train.address, cpus=job.at_once * (config.train.workers + 2)):
        say(f"Ray dashboard: {dashboard()}; TensorBoard: tensorboard --logdir {job.out}")
        trials = ranked(space.config, _run_trials(job))
    run = _adopt(job, trials[0])
    plot(space.config, [trial for trial in trials if not trial.error], Path(job.out) / "search.png")
    return SearchResult(space.config, trials, run, time.monotonic() - started)


def _check(space: Space, config: Config) -> Job:
    """All that can be wrong before the first trial."""
    if not config.data or not config.out:
        raise UserError(f"a search needs a dataset and a folder: `raysum tune {space.name} data=DATA out=SEARCH`")
    dataset = Dataset.open(config.data)
    if space.config.kind == "decode":
        _check_run(space, config, dataset)
        rows = dataset.rows(space.config.split)
        length, workers = min(rows, space.config.examples or rows), 1
    else:
        if config.run:
            raise UserError(f"the space {space.name} trains a run for each trial; leave run= out")
        length, workers = config.train.steps, max(1, config.train.workers)
    cores = os.cpu_count() or 1
    at_once = max(1, min(cores // workers, space.num_trials))
    paths = (str(Path(path).expanduser().absolute()) if path else "" for path in (config.data, config.out, config.run))
    return Job(space, *paths, length=length, at_once=at_once, threads=max(1, cores // at_once))


def _check_run(space: Space, config: Config, dataset: Dataset) -> None:
    if not config.run:
        raise UserError(f"the space {space.name} searches the decoding of a trained run; name it with run=RUN")
    run = Run.open(config.run)
    run.best()
    check_vocabulary(run, dataset)
    aligned = any(space.resolve(sample, run.decode).decode.beta for sample in space.samples())
    if aligned and not (run.alignment.exists and run.alignment.checkpoints()):
        raise UserError(
            f"{config.run} has no attention predictor, which beta needs; "
            f"train it with `raysum train alignment run={config.run} data={config.data}`"
        )


def _claim(out: Path, space: Space, config: Config) -> None:
    """Write what is searched into the folder, or find the same search there."""
    wanted = yaml.safe_dump(
        {"name": space.name, "space": space.config.model_dump(mode="json"), "config": config.model_dump(mode="json")},
        sort_keys=False,
    )
    file = out / "search.yaml"
    if file.is_file():
        if file.read_text(encoding="utf-8") != wanted:
            raise UserError(f"{out} holds another search (see {file}); repeat its command, or choose another out=")
        return
    if out.exists() and any(out.iterdir()):
        raise UserError(f"{out} is not empty and no search; choose another out=")
    try:
        out.mkdir(parents=True, exist_ok=True)
        write_text(file, wanted)
    except OSError as error:
        raise UserError(f"cannot write the search folder {out}: {error.strerror}; choose another out=") from None


def _run_trials(job: Job) -> list[Trial]:
    """Run the trials that have not ended yet. Raises KeyboardInterrupt if the user stopped the search."""
    with silence():
        results = list(_tuner(job).fit())
    ended = [result for result in results if result.error or (result.metrics or {}).get("done")]
    if len(ended) < job.space.num_trials:
        raise KeyboardInterrupt
    return [_trial(result) for result in results]


def _adopt(job: Job, best: Trial) -> Run:
    """Make the best trial what `serve` and `summarize` use: its settings the run's, or its run the search's."""
    if best.error:
        raise UserError(
            f"every trial failed, {best.name} with {best.error!r}; see {job.out}/tune/{best.name}/error.txt"
        )
    run = Run.open(job.run or job.folder(best.name))
    if job.run:
        found = job.space.resolve(best.config, base=run.decode).decode.model_dump(mode="json")
        trained_with = run.config.decode.model_dump(mode="json")
        searched = {key.rpartition(".")[2] for key in best.config}
        run.set_decode({key: value for key, value in found.items() if key in searched or value != trained_with[key]})
    path = job.run or os.path.relpath(run.path, job.out)
    write_json(Path(job.out) / "best.json", {"config": best.config, "metrics": best.metrics, "run": path})
    return run


def _trial(result: Result) -> Trial:
    """Tune's ``result`` in our words."""
    if result.error:
        return Trial(Path(result.path).name, result.config, {}, 0.0, str(result.error).strip().splitlines()[-1])
    reported = {name: value for name, value in result.metrics.items() if name not in AUTO_RESULT_KEYS}
    metrics = {name: value for name, value in reported.items() if type(value) in (int, float)}
    return Trial(Path(result.path).name, result.config, metrics, result.metrics["time_total_s"])


def _tuner(job: Job) -> tune.Tuner:
    """A new search, or the one that the folder holds, with its failed and unfinished trials to be run again."""
    space = job.space.config
    folder = Path(job.out) / "tune"
    decode = space.kind == "decode"
    # A trial holds almost no CPU itself (0 is refused): its actor does, or its worker group, which Tune does not count.
    resources = tune.PlacementGroupFactory([{"CPU": 0.01}, {"CPU": 1}] if decode else [{"CPU": 0.01}])
    trainable = tune.with_resources(tune.with_parameters(decode_trial if decode else train_trial, job=job), resources)
    if tune.Tuner.can_restore(folder):
        return tune.Tuner.restore(str(folder), trainable, resume_unfinished=True, restart_errored=True)
    return tune.Tuner(
        trainable,
        param_space={key: _domain(values) for key, values in space.search.items()},
        tune_config=tune.TuneConfig(
            metric=space.metric,
            mode=space.mode,
            search_alg=_searcher(space),
            scheduler=_scheduler(job),
            num_samples=space.trials or 1,
            max_concurrent_trials=job.at_once,
            trial_name_creator=job.name,
            trial_dirname_creator=job.name,
        ),
        run_config=tune.RunConfig(
            name=folder.name, storage_path=job.out, verbose=0, callbacks=[Watch(space.metric, job.space.num_trials)]
        ),
    )


def _domain(values: Values) -> Any:
    if values.grid:
        return tune.grid_search(values.grid)
    if values.choice:
        return tune.choice(values.choice)
    return tune.uniform(*values.uniform) if values.uniform else tune.loguniform(*values.loguniform)


def _searcher(space: SpaceConfig) -> SearchAlgorithm | Searcher:
    if space.searcher == "optuna":
        return OptunaSearch(metric=space.metric, mode=space.mode, seed=space.seed)
    return BasicVariantGenerator(random_state=space.seed)


def _scheduler(job: Job) -> TrialScheduler:
    """ASHA looks first after an eighth of a trial; a third of the trials goes on, and so again at three times that."""
    space = job.space.config
    if space.scheduler == "fifo":
        return FIFOScheduler()
    unit = "step" if space.kind == "train" else "examples"
    # Above the whole length, so that no trial is ended at its last report, before it has cleaned up.
    return ASHAScheduler(time_attr=unit, max_t=job.length + 1, grace_period=max(1, job.length // 8), reduction_factor=3)
