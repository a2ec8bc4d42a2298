"""Figures of a training for Prometheus, exported by the Ray node of the first worker while the worker lives."""

import re
import time
from typing import Any

from ray.util.metrics import Gauge

from raysum.runs.folder import Run
from raysum.runtime.remote import shown

# Gauges by the key of a metrics line.
GAUGES = {
    "step": ("raysum_training_step", "Last step with a metrics line"),
    "loss": ("raysum_training_loss", "Training loss per target token"),
    "lr": ("raysum_training_learning_rate", "Learning rate"),
    "grad_norm": ("raysum_training_gradient_norm", "Norm of the gradient in the last step"),
    "tokens_per_s": ("raysum_training_tokens_per_second", "Source and target tokens per second, all workers"),
    "wait_share": ("raysum_training_data_wait_share", "Share of the workers' time spent waiting for data"),
    "padding_share": ("raysum_training_padding_share", "Share of computed positions without a token"),
    "peak_rss_mb": ("raysum_training_peak_memory_mib", "Peak resident memory of the first worker, in MiB"),
    "valid_loss": ("raysum_validation_loss", "Validation loss per target token"),
}
CHECKPOINT = ("raysum_checkpoint_time_seconds", "Time of the last checkpoint, in seconds since 1970")
METRIC = ("raysum_validation_metric", "A metric of summaries of the valid split")
TRIAL = ("raysum_trial_metric", "The metric of a search, by trial")
_TAGS = ("run", "trial")
_VALID = re.compile("valid_(?!loss$|seconds$)")


class Gauges:
    """Sets the gauges of one run. The tag ``trial`` is empty unless the run is a trial of a search."""

    def __init__(self, run: Run):
        trial = run.path.name if run.path.parent.name == "trials" else ""
        self._tags = {"run": shown(run.path.parents[1]) if trial else run.place, "trial": trial}
        self._gauges = {key: Gauge(*names, tag_keys=_TAGS) for key, names in GAUGES.items()}
        self._checkpoint = Gauge(*CHECKPOINT, tag_keys=_TAGS)
        self._metric = Gauge(*METRIC, tag_keys=(*_TAGS, "metric"))

    def set(self, line: dict[str, Any]) -> None:
        """Set the gauges of a metrics line."""
        for key, value in line.items():
            if key in self._gauges:
                self._gauges[key].set(value, tags=self._tags)
            elif _VALID.match(key):
                self._metric.set(value, tags=self._tags | {"metric": key.removeprefix("valid_")})

    def saved(self) -> None:
        """Set the time of the last checkpoint to now."""
        self._checkpoint.set(time.time(), tags=self._tags)
