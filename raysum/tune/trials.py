"""What a trial does: decode a split with one setting, or train one run. Runs in Ray workers."""

from typing import TYPE_CHECKING, Any

import ray
from ray import tune
from ray.tune.integration.ray_train import TuneReportCallback

from raysum.run import Run
from raysum.tune.job import Job

if TYPE_CHECKING:
    import pandas as pd


class Decoder:
    """The actor of one decode trial, named like the trial: the run with the trial's decode settings."""

    def __init__(self, job: Job, values: dict[str, Any], name: str):
        import torch

        from raysum.decode.summarizer import Summarizer
        from raysum.evaluate.examples import read_examples
        from raysum.evaluate.systems import Trained
        from raysum.prepare.dataset import Dataset

        torch.set_num_threads(job.threads)
        run = Run.open(job.run)
        settings = job.space.resolve(values, base=run.decode).decode
        self.system = Trained(name, Summarizer.load(run.path, **settings.model_dump()), settings)
        self.rows = list(read_examples(Dataset.open(job.data), job.space.config.split, job.length))
        self.size = 4 * settings.batch_examples  # examples between two reports
        self.folder, self.metric = job.folder(name), job.space.config.metric
        self.parts: list[pd.DataFrame] = []

    def score_next(self) -> dict[str, Any]:
        """Decode and score the next chunk: the means so far. After the last, the scores of each example are saved."""
        import pandas as pd

        from raysum.evaluate.scoring import means, score

        start = self.size * len(self.parts)
        rows = self.rows[start : start + self.size]
        self.parts.append(score(rows, self.system.summarize(rows, rows)))
        scores = pd.concat(self.parts, ignore_index=True)
        if len(scores) == len(self.rows):
            self.folder.mkdir(parents=True, exist_ok=True)
            scores.to_parquet(self.folder / "scores.parquet", index=False)
        return {name: value for name, value in means(scores).items() if self._is_shown(name)}

    def num_examples(self) -> int:
        return len(self.rows)

    def _is_shown(self, figure: str) -> bool:
        """Of intervals only the one of the metric, or TensorBoard would show three curves for each."""
        return not figure.endswith(("_low", "_high")) or figure.rpartition("_")[0] == self.metric


def decode_trial(values: dict[str, Any], job: Job) -> None:
    """Scores the split chunk by chunk, in an actor that the dashboard shows under the trial's name."""
    name = tune.get_context().get_trial_name()
    decoder: Any = ray.remote(Decoder).options(name=name, num_cpus=1).remote(job, values, name)
    examples, scored = ray.get(decoder.num_examples.remote()), 0
    while scored < examples:
        figures = ray.get(decoder.score_next.remote())
        scored = figures["examples"]
        tune.report(figures)


def train_trial(values: dict[str, Any], job: Job) -> None:
    """Trains one run by Ray Train, in a worker group of its own; its validations are what the trial reports."""
    from raysum.train.fit import train

    run = Run(job.folder(tune.get_context().get_trial_name()))
    config = job.space.resolve(values).model_copy(update={"data": job.data, "out": str(run.path)})
    train(config, callbacks=[ReportValidations(run)])
    tune.report(_so_far(run))  # once more, for a run that had ended before the search was stopped


class ReportValidations(TuneReportCallback):
    """Reports the lowest validation loss so far, in the process that controls the workers."""

    def __init__(self, run: Run):
        super().__init__()
        self.run = run

    def after_report(self, run_context: Any, metrics: list[dict[str, Any]], checkpoint: Any) -> None:
        if "valid_loss" in metrics[0]:
            super().after_report(run_context, [_so_far(self.run)], checkpoint)


def _so_far(run: Run) -> dict[str, Any]:
    losses = run.validations()
    return {"valid_loss": min(losses.values()), "step": max(losses)}
