"""What a trial does: decode a split with one setting, or train one run. Runs in Ray workers."""

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import ray
from ray import tune
from ray.tune.integration.ray_train import TuneReportCallback

from raysum.run import Run
from raysum.tune.spaces import Space

if TYPE_CHECKING:
    import pandas as pd


@dataclass(frozen=True)
class Job:
    """What all trials of a search share. Paths are absolute: a trial works in a folder of its own."""

    space: Space
    data: str
    out: str  # the search folder; a trial's own files go to out/trials/NAME
    run: str  # the run whose decoding is searched; "" where trials train their own
    length: int  # examples scored, or steps trained, in a whole trial
    at_once: int  # trials that run side by side
    threads: int  # of each of them

    def name(self, trial: Any) -> str:
        """What Tune's ``trial``, its actor and its folder are called: ``beta=0.8``."""
        label = self.space.label(trial.config)
        return label if self.space.config.searcher == "grid" else f"{label},{trial.trial_id}"  # draws may repeat

    def folder(self, name: str) -> Path:
        return Path(self.out) / "trials" / name


class Decoder:
    """The actor of one decode trial, named like the trial: the run with the trial's decode settings."""

    def __init__(self, job: Job, values: dict[str, Any], name: str):
        import torch

        from raysum.decode.summarizer import Summarizer
        from raysum.evaluate.scoring import read_examples
        from raysum.evaluate.systems import Trained
        from raysum.prepare.dataset import Dataset

        torch.set_num_threads(job.threads)
        run = Run.open(job.run)
        settings = job.space.resolve(values, base=run.decode).decode
        self.system = Trained(name, Summarizer.load(run.path, **settings.model_dump()), settings)
        self.rows = list(read_examples(Dataset.open(job.data), job.space.config.split, job.length))
        self.size = 4 * settings.batch_examples  # examples between two reports
        self.folder = job.folder(name)
        self.parts: list[pd.DataFrame] = []

    def score_next(self) -> dict[str, Any]:
        """Decode and score the next chunk: the means so far. After the last one the scores of each example are saved."""
        import pandas as pd

        from raysum.evaluate.scoring import means, score

        start = self.size * len(self.parts)
        rows = self.rows[start : start + self.size]
        self.parts.append(score(rows, self.system.summarize(rows, rows)))
        scores = pd.concat(self.parts, ignore_index=True)
        if len(scores) == len(self.rows):
            self.folder.mkdir(parents=True, exist_ok=True)
            scores.to_parquet(self.folder / "scores.parquet", index=False)
        return means(scores) | {"complete": len(scores) == len(self.rows)}


def decode_trial(values: dict[str, Any], job: Job) -> None:
    """Scores the split chunk by chunk, in an actor that the dashboard shows under the trial's name."""
    name = tune.get_context().get_trial_name()
    decoder = ray.remote(Decoder).options(name=name, num_cpus=1).remote(job, values, name)
    complete = False
    while not complete:
        figures = ray.get(decoder.score_next.remote())
        complete = figures.pop("complete")
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
