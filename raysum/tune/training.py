"""What a trial of a train space does: it trains one run. Runs in Ray workers.

In population-based training (Jaderberg et al. 2017) trials that fall behind go on from the weights of those ahead.
Tune's checkpoints hold no weights, only where they are: the run of a trial and a step.
"""

import shutil
import tempfile
from functools import partial
from pathlib import Path
from typing import Any

from ray import tune
from ray.tune.integration.ray_train import TuneReportCallback
from ray.tune.schedulers import PopulationBasedTraining
from ray.tune.search.sample import Domain

from raysum.runs.folder import Run
from raysum.runtime.storage import read_json, write_json
from raysum.systems import count_parameters
from raysum.tune.schema import Values
from raysum.tune.spaces import Job

_POINTER = "run.json"


def train_trial(values: dict[str, Any], job: Job) -> None:
    """Trains one run by Ray Train, in a worker group of its own; its validations are what the trial reports."""
    from raysum.train.fit import fit

    run = Run(job.folder(tune.get_context().get_trial_name()))
    config = job.space.resolve(values)
    threads = config.train.threads or max(1, job.threads // max(1, config.train.workers))
    shared = config.train.model_copy(update={"threads": threads})
    config = config.model_copy(update={"data": job.data, "out": str(run.path), "train": shared})
    if job.space.config.scheduler == "pbt":
        inherit(run)
        for steps in _parts(run, shared.steps, shared.validate_every):
            fit(config.model_copy(update={"train": shared.model_copy(update={"steps": steps})}))
            _report_part(run)
        return
    fit(config, callbacks=[ReportValidations(run)])
    tune.report(so_far(run))  # once more, for a run that had ended before the search was stopped


def _parts(run: Run, steps: int, every: int) -> list[int]:
    """Steps at which the parts end that ``run`` has still to be trained: nothing of it runs while Tune decides."""
    newest = run.latest()
    done = newest.step // every * every if newest else 0
    return [min(end, steps) for end in range(done + every, steps + every, every)] or [steps]


class ReportValidations(TuneReportCallback):
    """Reports the lowest validation loss so far, in the process that controls the workers."""

    def __init__(self, run: Run):
        super().__init__()
        self.run = run

    def after_report(self, run_context: Any, metrics: list[dict[str, Any]], checkpoint: Any) -> None:
        if "valid_loss" in metrics[0]:
            super().after_report(run_context, [so_far(self.run)], checkpoint)


def so_far(run: Run) -> dict[str, Any]:
    """The loss of the best checkpoint, and what the run cost: steps, seconds with validations, parameters."""
    losses = run.validations()
    return {
        "valid_loss": losses[run.best().step],
        "step": max(losses),
        "train_seconds": run.checkpoints()[-1].state["seconds"],
        "parameters": count_parameters(run.config.model),
    }


def population(job: Job) -> PopulationBasedTraining:
    """At each validation the worst quarter of the trials takes over weights and settings of one of the best quarter.

    Of the settings each is then drawn anew (one time in four), or moved: a number by a factor of 0.8 or 1.2, a choice
    to the next.
    """
    search = job.space.config.search
    return PopulationBasedTraining(
        time_attr="step",
        perturbation_interval=job.space.first.train.validate_every,
        hyperparam_mutations={key: values.listed or domain(values) for key, values in search.items()},
        custom_explore_fn=partial(_within, search),
        synch=True,  # a trial waits for all to be validated at its step: fair, and it repeats
    )


def _within(search: dict[str, Values], config: dict[str, Any]) -> dict[str, Any]:
    """``config`` with numbers that left their range put back on its bounds."""
    ranges = {key: values.bounds for key, values in search.items() if values.bounds}
    return config | {key: min(max(config[key], low), high) for key, (low, high) in ranges.items()}


def _report_part(run: Run) -> None:
    """Report a part that has ended; what Tune gets as its checkpoint tells where the newest one of ``run`` is."""
    with tempfile.TemporaryDirectory() as folder:
        write_json(Path(folder) / _POINTER, {"run": str(run.path), "step": run.checkpoints()[-1].step})
        tune.report(so_far(run), checkpoint=tune.Checkpoint(folder))


def inherit(run: Run) -> None:
    """Make ``run`` a copy of the run that Tune says to go on from, up to that step, if it is another one.

    Its config is that of its next part, whose settings may be new.
    """
    (run.path / "config.yaml").unlink(missing_ok=True)
    given = tune.get_checkpoint()
    if given is None:
        return
    with given.as_directory() as folder:
        found = read_json(Path(folder) / _POINTER)
    if Path(found["run"]) != run.path:
        copy(Run(found["run"]), found["step"], run)


def copy(donor: Run, step: int, run: Run) -> None:
    """Let ``run`` hold the ``donor``'s checkpoint of ``step``, and its metrics so far, instead of its own.

    Where that checkpoint is gone, the newest counts.
    """
    held = {checkpoint.step: checkpoint for checkpoint in donor.checkpoints() if checkpoint.resumable}
    chosen = held.get(step) or held[max(held)]
    shutil.rmtree(run.path, ignore_errors=True)
    arrived = run.checkpoint_folder / ".partial-inherited"
    shutil.copytree(chosen.path, arrived)
    for file in (donor.metrics, donor.validations_file):
        if file.exists():
            shutil.copyfile(file, run.path / file.name)
    run.rewind(chosen.step)
    arrived.replace(run.checkpoint_path(chosen.step))


def domain(values: Values) -> Domain:
    """What Ray Tune draws a key of a search from."""
    if values.loguniform:
        return tune.loguniform(*values.loguniform)
    return tune.uniform(*values.uniform) if values.uniform else tune.choice(values.listed)
