"""What is seen of a search while it runs: a progress bar on stderr, and a gauge among Ray's metrics."""

from typing import Any

from ray import tune
from ray.util.metrics import Gauge

from raysum.runtime.progress import bar, say


class Watch(tune.Callback):
    """Shows each trial as it ends, and each of its results as the gauge ``raysum_trial_METRIC{trial="beta=0.8"}``."""

    def __init__(self, metric: str, total: int):
        self.metric, self.total = metric, total

    def setup(self, *args: Any, **info: Any) -> None:
        description = f"{self.metric} of each trial of the search, as far as it has come"
        self.gauge = Gauge(f"raysum_trial_{self.metric}", description, tag_keys=("trial",))
        self.bar = bar(total=self.total, label="search", unit="trial")

    def on_trial_result(self, iteration: int, trials: list, trial: Any, result: dict[str, Any], **info: Any) -> None:
        if self.metric in result:
            self.gauge.set(result[self.metric], tags={"trial": str(trial)})

    def on_trial_complete(self, iteration: int, trials: list, trial: Any, **info: Any) -> None:
        say(f"{trial}: {self.metric} {trial.last_result.get(self.metric, float('nan')):.4g}")

    def on_trial_error(self, iteration: int, trials: list, trial: Any, **info: Any) -> None:
        say(f"{trial} failed; the others go on")

    def on_step_begin(self, iteration: int, trials: list, **info: Any) -> None:
        ended = sum(trial.is_finished() for trial in trials)
        self.bar.update(ended - self.bar.n)

    def on_experiment_end(self, trials: list, **info: Any) -> None:
        self.on_step_begin(0, trials)
        self.bar.close()

    def __getstate__(self) -> dict[str, Any]:
        """Tune writes its callbacks to disk: without the bar and the gauge."""
        return {"metric": self.metric, "total": self.total}
