"""Searching a space with Ray Tune: the driver. The best trial becomes what `serve` and `summarize` find."""

import os
import time
from dataclasses import replace
from typing import Any

import yaml

from raysum.config.loading import merge, pairs, parse_yaml, read_text
from raysum.config.sections import Config
from raysum.config.signatures import with_settings
from raysum.data.dataset import Dataset
from raysum.errors import UserError
from raysum.evaluate.examples import check_readable, read_examples
from raysum.runs.folder import Run
from raysum.runtime.compat import dashboard
from raysum.runtime.lock import LOCK, folder_lock
from raysum.runtime.placement import Capacity
from raysum.runtime.processes import cores
from raysum.runtime.progress import say
from raysum.runtime.remote import local
from raysum.runtime.run_sync import added_to, sync_up
from raysum.runtime.session import is_joined, make_ready, ray_session
from raysum.runtime.storage import check_own, write_json, write_text, writing
from raysum.tokenizers.loading import load_tokenizer
from raysum.tune.adoption import Adoption, adoption
from raysum.tune.live import paged
from raysum.tune.plots import plot
from raysum.tune.record import Record
from raysum.tune.results import SearchResult, Trial, ranked
from raysum.tune.schema import SpaceConfig
from raysum.tune.spaces import Job, Space, load_space

_CLAIM = "search.yaml"  # says which search a folder belongs to
_FORMAT = 2  # of that file and of what Tune keeps beside it


@with_settings(SpaceConfig, Config, without=("about", "kind", "search"))
def tune(name: str, *overrides: str, **values: Any) -> SearchResult:
    """Search the space ``name`` (of the package, or a file) on ``data`` into ``out``.

    Settings and ``key=value`` ``overrides`` are keys of the space, config keys for all trials, and ``run`` for a
    decode space. The same search on the same folder goes on where it stopped, and tries failed trials
    again. The best settings become the run's (RUN/decode.yaml), or the best run the search's (SEARCH/best.json); of
    equal ones the smaller values. A beta becomes the run's only if it gains over beta 0 beyond noise. A space with
    ``then`` goes on with that run's attention predictor and decoding.
    Raises UserError for a wrong space, key, run or dataset, and where every trial failed.

    >>> raysum.tune("beta", run="runs/pht", data="data", out="runs/beta", examples=50).to_pandas()
    """
    started = time.monotonic()
    job = _check(load_space(name, [*pairs(values), *overrides]))
    read = job.run.path if job.run else job.out
    with folder_lock(job.out, job.out / LOCK), writing(job.out), sync_up(job.out), added_to(read):
        return _search(job, started)


def _search(job: Job, started: float) -> SearchResult:
    """:func:`tune` for a checked job in a folder of its own, begun at the time ``started``."""
    space, settings = job.space, job.space.first.train
    purpose = "decode" if job.run else "search"
    make_ready(purpose, settings.address)
    _claim(job)
    if (space.config.trials or 0) > space.num_trials:
        told = f"trials={space.config.trials} are more than the space {space.name} has points"
        say(f"{told}: each of {space.num_trials} is tried once")
    Record().add(job.out, begun=space.num_trials)
    with paged(job.out) as page, ray_session(settings.address, job.at_once * (settings.workers + 2), purpose):
        if is_joined(settings.address):
            job = replace(job, at_once=_at_once(space, Capacity.of_cluster()))
        say(f"Trials: {page}; TensorBoard: tensorboard --logdir {job.out}")
        say(f"Ray dashboard: {dashboard()} (token: ray get-auth-token)")
        from raysum.tune.tuner import run_trials  # after the session has set what Ray reads when it is imported

        # What follows belongs to one best run: once it has begun, no failed trial is tried again that might be better.
        again = not (space.then and (job.out / space.then.name / _CLAIM).is_file())
        trials = ranked(space.config, run_trials(job, again))
        best = trials[0]
        if best.error:
            raise UserError(
                f"every trial failed, {best.name} with {best.error!r}; see {job.out}/tune/{best.name}/error.txt"
            )
        plot(space.config, [trial for trial in trials if not trial.error], job.out / "search.png")
        run = job.run or Run.open(job.folder(best.name))
        then = _follow(job, run, space.then) if space.then else None
        adopted = adoption(job, trials, run.decode) if job.run else None
        _adopt(job, best, run, adopted)
    return SearchResult(space.config, trials, run, time.monotonic() - started, then, adopted)


def _check(space: Space) -> Job:
    """All that can be wrong before the first trial."""
    config, run = space.first, None
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
    at_once = _at_once(space, Capacity.of_machine())
    return Job(space, dataset.address, out, run, length, at_once, threads=max(1, cores() // at_once))


def _at_once(space: Space, capacity: Capacity) -> int:
    """How many trials run side by side: all of a population, one decoding a CPU, or as many trainings as fit."""
    if space.config.scheduler == "pbt":
        return space.num_trials
    decodes = space.config.kind == "decode"
    fitting = capacity.cpus if decodes else capacity.trainings(max(1, space.first.train.workers))
    return max(1, min(fitting, space.num_trials))


def _check_training(space: Space, dataset: Dataset) -> Space:
    """The train space for models of the dataset's vocabulary, once it is known that something of it can be trained."""
    config = space.first
    if config.run:
        raise UserError(f"the space {space.name} trains a run for each trial; leave run= out")
    if not config.model.summarizes and (space.then or not config.model.extracts):
        raise UserError(f"model.system={config.model.system} writes no summaries; a search trains models that do")
    if space.config.scheduler == "pbt" and config.optim.schedule not in ("noam", "constant"):
        raise UserError(
            f"scheduler pbt trains in parts, and optim.schedule={config.optim.schedule} needs the whole; use noam or "
            "constant"
        )
    dataset.split("valid")  # trials are compared by it
    if space.then:
        next(read_examples(dataset, space.then.config.split))
    pieces = len(load_tokenizer(dataset.vocabulary_path))
    fitted = replace(space, overrides=(*space.overrides, f"model.vocabulary={pieces}"))
    fitted.check_budget()
    return fitted


def _check_run(space: Space, dataset: Dataset) -> Run:
    """The run of a decode space, once it is known that it reads this dataset and has what the settings need."""
    config = space.first
    if not config.run:
        raise UserError(f"the space {space.name} searches the decoding of a trained run; name it with run=RUN")
    run = Run.open(config.run)
    run.best()
    if not run.config.model.summarizes:
        raise UserError(f"{config.run} writes no summaries, so there is no decoding of it to search")
    check_readable(run, dataset)
    next(read_examples(dataset, space.config.split))
    tried = [space.resolve(sample, run.decode).decode for sample in space.samples()]
    predicting = any(settings.beta or settings.keep_paragraphs for settings in tried)
    if predicting and not (run.alignment.exists and run.alignment.checkpoints()):
        raise UserError(
            f"{config.run} has no attention predictor, which the space {space.name} needs; "
            f"train it with `raysum train alignment run={config.run} data={config.data}`"
        )
    return run


def _claim(job: Job) -> None:
    """Write what is searched into the folder, or find the same search there."""
    space, out, file = job.space, job.out, job.out / _CLAIM
    values = {"space": space.config.model_dump(mode="json"), "config": space.first.model_dump(mode="json")}
    wanted = {"format": _FORMAT, "name": space.name, **values}
    if file.is_file():
        found, _ = parse_yaml(read_text(file), str(file))
        if found.get("format") != _FORMAT:
            raise UserError(
                f"{out} was searched by another version of raysum, whose trials cannot go on; choose another out= "
                "(serve, evaluate and summarize still take it where it has ended)"
            )
        if _identity(found) != _identity(wanted):
            raise UserError(f"{out} holds another search (see {file}); repeat its command, or choose another out=")
        check_own(out / "tune")  # Tune unpickles it
        return
    if any(item.name != LOCK for item in out.iterdir()):
        raise UserError(f"{out} is not empty and no search; choose another out=")
    try:
        write_text(file, yaml.safe_dump(wanted, sort_keys=False))
    except OSError as error:
        raise UserError(f"cannot write the search folder {out}: {error.strerror}; choose another out=") from None


def _identity(search: dict[str, Any]) -> dict[str, Any]:
    """What makes two searches the same: all but where and on how many threads they run."""
    return merge(search, {"config": {"train": dict.fromkeys(("address", "threads"))}})


def _follow(job: Job, run: Run, then: Space) -> SearchResult:
    """Train the attention predictor of the best ``run``, then search its decoding: each goes on where it was."""
    from raysum.train.fit import fit

    given, out = {"data": job.data, "run": str(run.path)}, str(job.out / then.name)
    say(f"the best run is {run.path}; its attention predictor is trained next")
    fit(job.space.predictor.model_copy(update=given))
    say(f"{then.name} is searched next, into {out}")
    return tune(str(job.space.config.then), *job.space.passed_on, **given, out=out)


def _adopt(job: Job, best: Trial, run: Run, adopted: Adoption | None) -> None:
    """Make what was found what `serve` and `summarize` use: ``adopted`` settings the run's, or its run the search's."""
    told: dict[str, Any] = {"config": best.config, "metrics": best.metrics}
    if adopted:
        found = job.space.resolve(adopted.settings, base=run.decode).decode.model_dump(mode="json")
        searched = {key.rpartition(".")[2] for key in adopted.settings}
        trained_with, before = (each.model_dump(mode="json") for each in (run.config.decode, run.decode))
        kept = {key: value for key, value in before.items() if value != trained_with[key]}
        run.set_decode(kept | {key: found[key] for key in found if key in searched})
        told["adopted"] = adopted.to_dict()
    path = run.place if job.run else os.path.relpath(run.path, job.out)
    write_json(job.out / "best.json", {**told, "run": path})
