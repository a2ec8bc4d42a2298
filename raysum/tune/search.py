"""Searching a space with Ray Tune: the driver. The best trial becomes what `serve` and `summarize` find."""

import os
import time
from pathlib import Path

import yaml

from raysum.config import Config
from raysum.errors import UserError
from raysum.evaluate.examples import check_readable, read_examples
from raysum.prepare.dataset import Dataset
from raysum.progress import say
from raysum.run import Run, write_json, write_text
from raysum.session import dashboard, ray_session
from raysum.tune.job import Job
from raysum.tune.plots import plot
from raysum.tune.results import SearchResult, Trial, ranked
from raysum.tune.spaces import Space, load_space


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
        say(f"Ray dashboard: {dashboard()} (token: ray get-auth-token); TensorBoard: tensorboard --logdir {job.out}")
        from raysum.tune.tuner import run_trials  # after the session has set what Ray reads when it is imported

        trials = ranked(space.config, run_trials(job))
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
        dataset.split("valid")  # trials are compared by it
        length, workers = config.train.steps, max(1, config.train.workers)
    cores = os.cpu_count() or 1
    at_once = max(1, min(cores // workers, space.num_trials))
    data, out, run = (_absolute(path) if path else "" for path in (config.data, config.out, config.run))
    return Job(space, data, out, run, length, at_once, threads=max(1, cores // at_once))


def _absolute(path: str) -> str:
    return str(Path(path).expanduser().absolute())


def _check_run(space: Space, config: Config, dataset: Dataset) -> None:
    """Whether the run of a decode space is there, reads this dataset and has what the settings need."""
    if not config.run:
        raise UserError(f"the space {space.name} searches the decoding of a trained run; name it with run=RUN")
    run = Run.open(config.run)
    run.best()
    check_readable(run, dataset)
    next(read_examples(dataset, space.config.split))
    tried = [space.resolve(sample, run.decode).decode for sample in space.samples()]
    predicting = any(settings.beta or settings.keep_paragraphs for settings in tried)
    if predicting and not (run.alignment.exists and run.alignment.checkpoints()):
        raise UserError(
            f"{config.run} has no attention predictor, which the space {space.name} needs; "
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
