"""The driver of a search with Ray Tune. `serve` and `summarize` use the best trial."""

import os
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import yaml

from raysum.config.base import with_settings
from raysum.config.loading import merge, pairs, parse_yaml, read_text
from raysum.config.problems import validate
from raysum.config.sections import Config
from raysum.data.dataset import Dataset
from raysum.errors import UserError
from raysum.evaluate.examples import check_readable, read_examples
from raysum.pages import charts
from raysum.runs.folder import Run
from raysum.runs.trackers import check_trackers
from raysum.runtime.compat import dashboard
from raysum.runtime.lock import LOCK, folder_lock
from raysum.runtime.placement import Capacity
from raysum.runtime.processes import cores
from raysum.runtime.progress import logged_run, say
from raysum.runtime.remote import local, shown
from raysum.runtime.run_sync import added_to, push_so_far, refresh, sync_up
from raysum.runtime.session import is_joined, make_ready, ray_session
from raysum.runtime.storage import check_own, write_json, write_text, writing
from raysum.tokenizers.loading import load_tokenizer
from raysum.tune.objective import check_measurable
from raysum.tune.page import live_page, result_charts
from raysum.tune.record import RecordWriter, read_search, searched_space
from raysum.tune.results import Adoption, SearchResult, Trial, decide_adoption
from raysum.tune.schema import SpaceConfig
from raysum.tune.spaces import Job, Space, load_space
from raysum.tune.state import FORMAT, set_aside

_CLAIM = "search.yaml"  # identifies the search of a folder


@with_settings(SpaceConfig, Config, without=("about", "kind", "search"))
def tune(name: str, *overrides: str, **values: Any) -> SearchResult:
    """Search the space ``name`` (a name or a file) on ``data`` into ``out``.

    Settings and ``key=value`` ``overrides`` are keys of the space, config keys for all trials, and ``run`` for a
    decode space. The same call resumes a search, and repeats failed trials.

    A decode space writes the best settings into the run (RUN/decode.yaml), a train space the best run into
    SEARCH/best.json; ties prefer smaller values. The run adopts a beta only if it is significantly better than beta 0.
    A space with ``then`` also trains the attention predictor of the best run and searches its decoding.
    Raises UserError for a wrong space, key, run or dataset, or if every trial failed.

    >>> raysum.tune("beta", run="runs/pht", data="data", out="runs/beta", examples=50).to_pandas()
    """
    started = time.monotonic()
    job = _check(load_space(name, [*pairs(values), *overrides]))
    read = job.run.path if job.run else job.out
    with (
        logged_run(shown(job.out)),
        folder_lock(job.out, job.out / LOCK),
        writing(job.out),
        sync_up(job.out),
        added_to(read),
    ):
        return _search(job, started)


def _search(job: Job, started: float) -> SearchResult:
    """Run a checked search that began at the time ``started``."""
    space, settings = job.space, job.space.first.train
    purpose = "decode" if job.run else "search"
    make_ready(purpose, settings.address)
    _claim(job)
    RecordWriter().add(job.out, begun=space.num_trials)
    with live_page(job.out) as page, ray_session(settings.address, _session_cpus(job), purpose):
        if is_joined(settings.address):
            capacity = Capacity.of_cluster()
            _check_resources(space, capacity)
            job = replace(job, concurrency=_concurrency(space, capacity), least_workers=1)
        say(f"Trials: {page}; TensorBoard: tensorboard --logdir {job.out}")
        say(f"Ray dashboard: {dashboard()} (token: ray get-auth-token)")
        # the session sets variables that Ray Tune reads at import
        from raysum.tune.training import record_ends
        from raysum.tune.tuner import run_trials

        # The search after this one belongs to the best run. Once it exists, a repeated trial must not become the best.
        repeats_failed = not (space.then and (job.out / space.then.name / _CLAIM).is_file())
        run_trials(job, repeats_failed)
        push_so_far(job.out)  # trials may have run on the head of the cluster
        refresh(job.out)
        found = read_search(job.out, running=False)
        if space.config.kind == "train" and not found.ended:  # later, trials may have been trained further
            record_ends(job, found.trials)
            found = read_search(job.out, running=False)
        trials = found.trials
        best = trials[0]
        if best.error:
            raise UserError(
                f"every trial failed, {best.name} with {best.error!r}; see {job.out}/tune/{best.name}/error.txt"
            )
        scored = [trial for trial in trials if not trial.error]
        charts.save(job.out / "search.png", space.config.about, result_charts(space.config, scored))
        run = job.run or Run.open(job.folder(best.name))
        then = _search_then(job, run, space.then) if space.then else None
        adopted = decide_adoption(job, trials, run.decode) if job.run else None
        _write_best(job, best, run, adopted)
    return SearchResult(space.config, trials, run, time.monotonic() - started, then, adopted)


def _session_cpus(job: Job) -> float:
    """Return the CPUs of a private session: those of all trials, and one for each beside its workers."""
    train, resources = job.space.first.train, job.space.config.resources
    return job.concurrency * (max(train.workers * max(train.cpus_per_worker or 1, 1), resources.cpus or 1) + 2)


def _check(space: Space) -> Job:
    """Return the job of a space. Raises UserError for everything that can be checked before the first trial."""
    config, run = space.first, None
    check_trackers(config.train.trackers)
    if not config.data or not config.out:
        raise UserError(f"a search needs a dataset and a folder: `raysum tune {space.name} data=DATA out=SEARCH`")
    dataset, out = Dataset.open(config.data), local(config.out)
    if space.config.kind == "decode":
        run = _check_run(space, dataset)
        references = dataset.references(space.config.split)
        length = min(references, space.config.examples or references)
    else:
        space = _check_training(space, dataset)
        length = max(space.resolve(sample).train.steps for sample in space.samples())
    capacity = Capacity.of_machine()
    if not is_joined(config.train.address):
        _check_resources(space, capacity)
    concurrency = _concurrency(space, capacity)
    threads = max(1, int(space.config.resources.cpus or cores() // concurrency))
    return Job(space, dataset.address, out, run, length, concurrency, threads)


def _concurrency(space: Space, capacity: Capacity) -> int:
    """Return the number of concurrent trials: a whole population, one decoding a CPU, or all trainings that fit."""
    if space.config.is_population:
        return space.num_trials
    return max(1, min(_fitting(space, capacity), space.num_trials, space.config.max_concurrent or space.num_trials))


def _fitting(space: Space, capacity: Capacity) -> int:
    """Return the number of trials whose resources fit at once."""
    resources, train = space.config.resources, space.first.train
    workers = max(1, train.workers)
    decodes = space.config.kind == "decode"
    if resources.cpus is None and resources.gpus is None:
        return capacity.cpus if decodes else capacity.trainings(workers, train.cpus_per_worker, train.gpus_per_worker)
    return capacity.trials(resources.cpus or (1 if decodes else workers), resources.gpus or 0)


def _check_resources(space: Space, capacity: Capacity) -> None:
    """Raises UserError if the resources that the space sets for a trial never fit."""
    resources, workers = space.config.resources, space.first.train.workers
    values = resources.model_dump(exclude_none=True)
    if values and _fitting(space, capacity) < 1:
        given = ", ".join(f"resources.{name}={amount:g}" for name, amount in values.items())
        raise UserError(
            f"a trial with {given} does not fit on {capacity.cpus} CPUs and {capacity.gpus} GPUs; lower them"
        )
    if space.config.kind == "train" and workers > 1 and resources.gpus not in (None, 0, workers):
        raise UserError(
            f"resources.gpus={resources.gpus:g} does not fit train.workers={workers}: each worker needs a whole GPU; "
            f"use resources.gpus={workers}, or train.workers=1 for a fraction"
        )


def _check_training(space: Space, dataset: Dataset) -> Space:
    """Return the train space with the vocabulary size of the dataset. Raises UserError if no trial can be trained."""
    config = space.first
    if config.run:
        raise UserError(f"the space {space.name} trains a run for each trial; leave run= out")
    if config.train.workers.is_range:
        workers = config.train.workers
        raise UserError(f"all trials of a search have the same number of workers: set train.workers={workers}")
    if not config.model.summarizes and (space.then or not config.model.extracts):
        raise UserError(f"model.system={config.model.system} writes no summaries; search a system that does")
    if space.config.is_population and config.optim.schedule not in ("noam", "constant"):
        raise UserError(
            f"scheduler {space.config.scheduler} trains in parts, but optim.schedule={config.optim.schedule} needs the "
            "total number of steps; use noam or constant"
        )
    dataset.split("valid")  # its loss compares the trials
    check_measurable(space.config, config.model, dataset)
    if space.then:
        next(read_examples(dataset, space.then.config.split))
    pieces = len(load_tokenizer(dataset.vocabulary_path))
    fitted = replace(space, overrides=(*space.overrides, f"model.vocabulary={pieces}"))
    fitted.check_budget()
    return fitted


def _check_run(space: Space, dataset: Dataset) -> Run:
    """Return the run of a decode space. Raises UserError if it does not fit the dataset or lacks a predictor."""
    config = space.first
    if not config.run:
        raise UserError(f"the space {space.name} searches the decoding of a trained run; name it with run=RUN")
    run = Run.open(config.run)
    run.best()
    if not run.config.model.summarizes:
        raise UserError(f"{config.run} writes no summaries, so its decoding cannot be searched; name another run")
    check_readable(run, dataset)
    check_measurable(space.config, run.config.model, dataset)
    next(read_examples(dataset, space.config.split))
    samples = [space.resolve(sample, run.decode).decode for sample in space.samples()]
    needs_predictor = any(settings.beta or settings.keep_paragraphs for settings in samples)
    if needs_predictor and not (run.alignment.exists and run.alignment.checkpoints()):
        raise UserError(
            f"{config.run} has no attention predictor, which the space {space.name} needs; "
            f"train it with `raysum train alignment run={config.run} data={config.data}`"
        )
    return run


def _claim(job: Job) -> None:
    """Write the search into an empty folder. Raises UserError if the folder has other files or another search."""
    space, out, file = job.space, job.out, job.out / _CLAIM
    values = {"space": space.config.model_dump(mode="json"), "config": space.first.model_dump(mode="json")}
    search = {"format": FORMAT, "name": space.name, **values}
    if file.is_file():
        existing, locations = parse_yaml(read_text(file), str(file))
        if _identity(existing, locations, file) != _identity(search, {}, file):
            raise UserError(
                f"{out} contains another search, or one by another version (see {file}); repeat its command, or choose "
                "another out= (serve, evaluate and summarize accept it if it has ended)"
            )
        if existing.get("format") == FORMAT:
            check_own(out / "tune")  # Tune unpickles it
            return
        set_aside(out / "tune")
    elif any(item.name != LOCK for item in out.iterdir()):
        raise UserError(f"{out} is not empty and no search; choose another out=")
    write_text(file, yaml.safe_dump(search, sort_keys=False))


def _identity(search: dict[str, Any], locations: dict[str, str], file: Path) -> dict[str, Any]:
    """Return the settings that two equal searches share: all except the address and the threads.

    Settings of a former version get their current names, and the defaults of settings that it did not have.
    """
    space = searched_space(search, locations, file).model_dump(mode="json")
    config = validate(Config.with_current_names(search.get("config", {})), {}, Config).model_dump(mode="json")
    values = {"name": search.get("name"), "space": space, "config": config}
    return merge(values, {"config": {"train": dict.fromkeys(("address", "threads"))}})


def _search_then(job: Job, run: Run, then: Space) -> SearchResult:
    """Train the attention predictor of the best ``run``, then search its decoding. Both can be resumed."""
    from raysum.train.fit import fit

    paths, out = {"data": job.data, "run": str(run.path)}, str(job.out / then.name)
    say(f"the best run is {run.path}; its attention predictor is trained next")
    fit(job.space.predictor.model_copy(update=paths))
    say(f"{then.name} is searched next, into {out}")
    return tune(str(job.space.config.then), *job.space.then_overrides, **paths, out=out)


def _write_best(job: Job, best: Trial, run: Run, adopted: Adoption | None) -> None:
    """Write best.json for `serve` and `summarize`, and the ``adopted`` settings into the run."""
    content: dict[str, Any] = {"config": best.config, "metrics": best.metrics}
    if adopted:
        values = job.space.resolve(adopted.settings, base=run.decode).decode.model_dump(mode="json")
        searched = {key.rpartition(".")[2] for key in adopted.settings}
        trained_with, before = (each.model_dump(mode="json") for each in (run.config.decode, run.decode))
        earlier = {key: value for key, value in before.items() if value != trained_with[key]}
        run.set_decode(earlier | {key: values[key] for key in values if key in searched})
        content["adopted"] = adopted.to_dict()
    path = run.place if job.run else os.path.relpath(run.path, job.out)
    write_json(job.out / "best.json", {**content, "run": path})
