"""The experiment trackers of a search: one run for each trial, with its settings and its reports."""

from typing import Any

from ray.tune.logger import LoggerCallback
from ray.tune.result import AUTO_RESULT_KEYS

from raysum.runs.trackers import Trackers
from raysum.tune.spaces import Job


class TrialTrackers(LoggerCallback):
    """Logs each trial to ``train.trackers`` by its steps or scored examples; the name of the search groups the trials.

    Ray's MLflowLoggerCallback and WandbLoggerCallback are not used: they count reports instead of steps, an error of
    their server ends the search, and the second starts two processes for each trial.
    """

    def __init__(self, job: Job):
        self.job = job

    def setup(self, *args: Any, **info: Any) -> None:
        self.trackers = Trackers(self.job.space.first.train.trackers, self.job.out)

    def log_trial_start(self, trial: Any) -> None:
        run = self.job.run
        settings = self.job.space.resolve(trial.config, base=run.decode if run else None).model_dump(mode="json")
        if run:
            settings = {"decode": settings["decode"], "run": run.place, "data": settings["data"]}
        self.trackers.start(str(trial), settings, self.job.out.name)

    def log_trial_result(self, iteration: int, trial: Any, result: dict[str, Any]) -> None:
        metrics = {key: result[key] for key in result.keys() - AUTO_RESULT_KEYS}
        if self.job.space.config.is_population:  # its settings change
            metrics |= trial.config
        self.trackers.log(str(trial), int(metrics.get("examples", metrics.get("step", iteration))), metrics)

    def log_trial_end(self, trial: Any, failed: bool = False) -> None:
        self.trackers.end(str(trial), "failed" if failed else "ended")

    def on_experiment_end(self, trials: list, **info: Any) -> None:
        self.trackers.close()

    def __getstate__(self) -> dict[str, Any]:
        """Return the state that Tune writes to disk, without the connections."""
        return {"job": self.job}
