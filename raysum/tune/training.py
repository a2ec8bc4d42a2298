"""Trials of train spaces: each trains one run, in Ray workers.

In population-based training (Jaderberg et al. 2017) and PB2 (Parker-Holder et al. 2020), the worst trials copy the
weights of the best ones. Tune's checkpoints contain only the run and step of the weights.
"""

import math
import shutil
import tempfile
import threading
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from ray import tune
from ray.tune.integration.ray_train import TuneReportCallback
from ray.tune.search.sample import Domain
from ray.util.queue import Empty

from raysum.config.workers import Workers
from raysum.errors import UserError
from raysum.runs.folder import Run
from raysum.runtime.run_sync import refresh
from raysum.runtime.storage import read_json, read_lines, write_json
from raysum.systems import count_parameters
from raysum.train.requests import stop_trainings
from raysum.tune.objective import LOGGED
from raysum.tune.record import RecordWriter
from raysum.tune.results import Trial
from raysum.tune.schema import Values
from raysum.tune.spaces import Job

_POINTER = "run.json"
_training = threading.Lock()  # held while this process drives a training
_reporting = list["ReportValidations"]()  # of that training


def train_trial(values: dict[str, Any], job: Job) -> None:
    """Train one run with Ray Train in its own worker group, and report its validations to Tune."""
    from raysum.train.fit import fit

    run = Run(job.folder(tune.get_context().get_trial_name()))
    config, metric = job.space.resolve(values), job.space.config.metric
    workers = Workers(max(config.train.workers, job.least_workers))
    threads = config.train.threads or max(1, job.threads // max(1, workers))
    every = math.gcd(config.train.log_every, config.train.validate_every)  # so that each report has logged metrics
    own = {"workers": workers, "threads": threads, "trackers": [], "log_every": every}
    resources = job.space.config.resources.model_dump(exclude_none=True)  # of a trial, in equal parts for its workers
    own |= {f"{name}_per_worker": amount / workers for name, amount in resources.items() if workers}
    if not workers and (seconds := job.space.config.budget.seconds):  # Tune cannot stop a training in this process
        own["minutes"] = min(config.train.minutes or math.inf, seconds / 60)
    shared = config.train.model_copy(update=own)
    config = config.model_copy(update={"data": job.data, "out": str(run.path), "train": shared})
    refresh(run.path)  # the trial may have run on another host before
    if not job.space.config.is_population:
        if run.exists and run.latest() and run.best().step in run.validations():
            tune.report(best_so_far(run, metric))  # of a former state of the search, whose limits it may have reached
        _reporting[:] = [ReportValidations(run, metric)]
        with _training:
            fit(config, callbacks=_reporting)
        tune.report(best_so_far(run, metric))  # again, for a run that had ended before the search was stopped
        return
    inherit(run)
    newest, every = run.latest(), shared.validate_every
    done = newest.step // every * every if newest else 0
    ends = range(done + every, shared.steps + every, every) or [shared.steps]
    for end in ends:  # no training runs while Tune decides
        fit(config.model_copy(update={"train": shared.model_copy(update={"steps": min(end, shared.steps)})}))
        with tempfile.TemporaryDirectory() as folder:
            write_json(Path(folder) / _POINTER, {"run": str(run.path), "step": run.checkpoints()[-1].step})
            tune.report(best_so_far(run, metric), checkpoint=tune.Checkpoint(folder))


def end_training() -> None:
    """End the training of this process, if any, with a checkpoint.

    Otherwise its workers would write into the run and keep their CPUs for some time after a scheduler has stopped the
    trial, and without an end if Ray Train's clean-up fails.
    """
    stop_trainings()
    while not _training.acquire(timeout=0.2):
        for reports in _reporting:
            reports.drop()
    _training.release()


def record_ends(job: Job, trials: Sequence[Trial]) -> None:
    """Record what ``trials`` reached between the last report that Tune read and the end of their training."""
    for trial in trials:
        if "step" not in trial.metrics:
            continue  # it failed
        with suppress(UserError):  # a folder that was removed or damaged
            metrics = best_so_far(Run.open(job.folder(trial.name)), job.space.config.metric)
            if metrics["step"] > trial.metrics["step"]:
                RecordWriter().add(job.out, trial=trial.name, state="ended", seconds=trial.seconds, metrics=metrics)


class ReportValidations(TuneReportCallback):
    """Report the best validation so far, in the process that controls the workers."""

    def __init__(self, run: Run, metric: str):
        super().__init__()
        self.run, self.metric = run, metric

    def after_report(self, run_context: Any, metrics: list[dict[str, Any]], checkpoint: Any) -> None:
        if "valid_loss" in metrics[0]:
            super().after_report(run_context, [best_so_far(self.run, self.metric)], checkpoint)

    def drop(self) -> None:
        """Drop a report that Tune has not read. Ray Train's controller waits until the one before is read."""
        with suppress(Empty):
            self._training_actor_item_queue.get_nowait()


def best_so_far(run: Run, metric: str) -> dict[str, Any]:
    """Return the loss of the best checkpoint, its ``metric`` of summaries if it was measured, the last logged metrics,
    and the costs: steps, seconds with validations, parameters.
    """
    best = run.best()
    losses = run.validations()  # read after the best one: the training may add a better one in between
    measured = run.validations(f"valid_{metric}")
    line: dict[str, Any] = [{}, *(each for each in read_lines(run.metrics) if "loss" in each)][-1]
    return {
        **({metric: measured[best.step]} if best.step in measured else {}),
        **{name: line[name] for name in LOGGED if name in line},
        "valid_loss": losses[best.step],
        "step": max(losses),
        "train_seconds": run.checkpoints()[-1].state["seconds"],
        "parameters": count_parameters(run.config.model),
    }


def inherit(run: Run) -> None:
    """Replace ``run`` by the run and step in Tune's checkpoint, if that is another run.

    The newest checkpoint of that run is copied if the one of the step is gone. The old config is removed, because Tune
    may have changed the settings.
    """
    (run.path / "config.yaml").unlink(missing_ok=True)
    pointer_file = tune.get_checkpoint()
    if pointer_file is None:
        return
    with pointer_file.as_directory() as folder:
        pointer = read_json(Path(folder) / _POINTER)
    donor = Run(pointer["run"])
    if donor.path == run.path:
        return
    by_step = {checkpoint.step: checkpoint for checkpoint in donor.checkpoints() if checkpoint.resumable}
    checkpoint = by_step.get(pointer["step"]) or by_step[max(by_step)]
    shutil.rmtree(run.path, ignore_errors=True)
    unfinished = run.checkpoint_folder / ".partial-inherited"
    shutil.copytree(checkpoint.path, unfinished)
    for file in (donor.metrics, donor.validations_file):
        if file.exists():
            shutil.copyfile(file, run.path / file.name)
    run.rewind(checkpoint.step)
    unfinished.replace(run.checkpoint_path(checkpoint.step))


def domain(values: Values) -> Domain:
    """Return the distribution that Ray Tune draws a searched key from."""
    if values.loguniform:
        return tune.loguniform(*values.loguniform)
    return tune.uniform(*values.uniform) if values.uniform else tune.choice(values.listed)
