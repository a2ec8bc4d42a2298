"""Searching a space with Ray Tune: the driver. The best trial becomes what `serve` and `summarize` find."""

import os
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml

from raysum.config import Config, load_config, parse_yaml
from raysum.errors import UserError
from raysum.evaluate.data import check_vocabulary
from raysum.prepare.dataset import Dataset
from raysum.progress import say
from raysum.run import Run, write_json, write_text
from raysum.session import dashboard, ray_session
from raysum.tune.plots import plot
from raysum.tune.spaces import Space, SpaceConfig, load_space
from raysum.tune.trials import Job, decode_trial, train_trial

if TYPE_CHECKING:
    from ray.tune import Tuner
    from rich.table import Table


@dataclass(frozen=True)
class Trial:
    """One trial: the dotted keys it tried, its metrics, and what went wrong, if anything did."""

    name: str
    config: dict[str, Any]
    metrics: dict[str, float]
    seconds: float
    error: str | None = None


@dataclass(frozen=True)
class SearchResult:
    """All trials of a search, best first, failed ones last; ``run`` is what `serve` hosts."""

    space: SpaceConfig
    trials: list[Trial]
    run: Run
    seconds: float

    @property
    def best(self) -> Trial:
        return self.trials[0]

    def to_dict(self) -> dict[str, Any]:
        """``best`` (config, metrics, run), ``trials``, ``seconds``."""
        best = {"config": self.best.config, "metrics": self.best.metrics, "run": str(self.run.path)}
        return {"best": best, "trials": [asdict(trial) for trial in self.trials], "seconds": round(self.seconds, 1)}

    def table(self) -> "Table":
        from rich.table import Table

        metrics = [name for name in self.best.metrics if not name.endswith(("_low", "_high"))]
        caption = f"best: {self.best.name}, used by {self.run.path} ({self.seconds:.0f} s in all)"
        table = Table(title=self.space.about, caption=caption)
        table.add_column("trial")
        for name in (*metrics, "seconds"):
            table.add_column(name, justify="right")
        for trial in self.trials:
            label = f"{trial.name} failed: {trial.error}" if trial.error else trial.name
            table.add_row(label, *(_cell(trial.metrics, name) for name in metrics), f"{trial.seconds:.0f}")
        return table


def search(name: str, overrides: list[str] | None = None) -> SearchResult:
    """Search the space ``name`` (of the package, or a file) on ``data=DATA`` into ``out=SEARCH``.

    ``overrides`` also hold ``run=RUN`` for a decode space, config keys for all trials, and keys of the space itself.
    The same search on the same folder goes on where it stopped; failed trials are tried again. The best trial's settings
    become the run's (RUN/decode.yaml), or its run the search's; SEARCH/best.json says which. On equal metrics the
    smaller values win. Raises UserError for a wrong space, key, run or dataset, and where every trial failed.
    """
    started = time.monotonic()
    space = load_space(name, overrides)
    config = space.resolve(next(space.samples()))
    job = _check(space, config)
    _claim(Path(job.out), space, config)
    with ray_session(config.train.address, cpus=job.at_once * (config.train.workers + 2)):
        say(f"Ray dashboard {dashboard()}; trials in TensorBoard: tensorboard --logdir {job.out}")
        trials = _ranked(space, _run_trials(job))
    run = _adopt(job, trials[0])
    result = SearchResult(space.config, trials, run, time.monotonic() - started)
    plot(space, trials, Path(job.out) / "search.png")
    return result


def _check(space: Space, config: Config) -> Job:
    """All that can be wrong before the first trial."""
    if not config.data or not config.out:
        raise UserError(f"a search needs data=DATA and out=SEARCH; write `raysum tune {space.name} data=DATA out=SEARCH`")
    dataset = Dataset.open(config.data)
    if space.config.kind == "train":
        if config.run:
            raise UserError(f"the space {space.name} trains a run for each trial; leave run= out")
    else:
        dataset.split(space.config.split)
        if not config.run:
            raise UserError(f"the space {space.name} searches the decoding of a run; name it: run=RUN")
        run = Run.open(config.run)
        run.best()
        check_vocabulary(run, dataset)
        if any(space.resolve(sample, run.decode).decode.beta for sample in space.samples()) and not run.alignment.exists:
            raise UserError(
                f"{config.run} has no attention predictor, which beta needs; "
                f"train it with `raysum train alignment run={config.run} data={config.data}`"
            )
    cores = os.cpu_count() or 1
    at_once = max(1, min(cores // max(1, config.train.workers), space.num_trials))
    absolute = [str(Path(path).expanduser().absolute()) for path in (config.data, config.out, config.run or ".")]
    return Job(space, *absolute, at_once=at_once, threads=max(1, cores // at_once))


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
    from raysum.tune.watch import silence

    with silence():
        results = list(_tuner(job).fit())
    ended = [result for result in results if result.error or (result.metrics or {}).get("done")]
    if len(ended) < job.space.num_trials:
        raise KeyboardInterrupt
    return [_trial(job.space.config, result) for result in results]


def _tuner(job: Job) -> "Tuner":
    """A new search, or the one that the folder holds, with its failed and unfinished trials to be run again."""
    from ray import tune

    from raysum.tune.watch import Watch

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
