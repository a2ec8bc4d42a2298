"""What a trial of a train space does: it trains one run. Runs in Ray workers."""

from typing import Any

from ray import tune
from ray.tune.integration.ray_train import TuneReportCallback

from raysum.models.parameters import count_parameters
from raysum.run import Run
from raysum.tune.job import Job
from raysum.tune.population import inherit, pointer


def train_trial(values: dict[str, Any], job: Job) -> None:
    """Trains one run by Ray Train, in a worker group of its own; its validations are what the trial reports."""
    from raysum.train.fit import train

    run = Run(job.folder(tune.get_context().get_trial_name()))
    config = job.space.resolve(values)
    shared = config.train.model_copy(
        update={"threads": config.train.threads or max(1, job.threads // max(1, config.train.workers))}
    )
    config = config.model_copy(update={"data": job.data, "out": str(run.path), "train": shared})
    if job.space.config.scheduler == "pbt":
        inherit(run)
        for steps in _parts(run, shared.steps, shared.validate_every):
            train(config.model_copy(update={"train": shared.model_copy(update={"steps": steps})}))
            with pointer(run) as checkpoint:
                tune.report(so_far(run), checkpoint=checkpoint)
        return
    train(config, callbacks=[ReportValidations(run)])
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
