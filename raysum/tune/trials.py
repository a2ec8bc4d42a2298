"""What a trial does: decode a split with one setting, or train one run. Runs in Ray workers."""

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from raysum.run import Run
from raysum.tune.spaces import Space

if TYPE_CHECKING:
    import pandas as pd


@dataclass(frozen=True)
class Job:
    """What all trials of a search share."""

    space: Space
    data: str
    out: str  # the search folder; a trial's own files go to out/trials/NAME
    run: str | None  # the run whose decoding is searched
    threads: int  # of each trial

    def folder(self, trial: str) -> Path:
        return Path(self.out) / "trials" / trial


class Decoder:
    """The actor of one decode trial, named like the trial: one loaded run with its decode settings."""

    def __init__(self, job: Job, values: dict[str, Any]):
        import torch

        from raysum.decode.summarizer import Summarizer
        from raysum.evaluate.systems import Trained
        from raysum.prepare.dataset import Dataset

        assert job.run is not None
        torch.set_num_threads(job.threads)
        run = Run.open(job.run)
        settings = job.space.resolve(values, base=run.decode).decode
        self.system = Trained("trial", Summarizer.load(run.path, **settings.model_dump()))
        self.rows = list(Dataset.open(job.data).read(job.space.config.split, stop=job.space.config.examples))
        self.step = 4 * settings.batch_examples  # examples between two reports

    def chunks(self) -> int:
        return -(-len(self.rows) // self.step)

    def score(self, chunk: int) -> "pd.DataFrame":
        """Scores of one chunk of the split, a row an example."""
        from raysum.evaluate.scoring import score

        rows = self.rows[chunk * self.step : (chunk + 1) * self.step]
        return score(self.system, rows, rows)


def decode_trial(values: dict[str, Any], job: Job) -> None:
    """Scores the split chunk by chunk, reports the means so far; at the end writes a Parquet of scores by example."""
    import pandas as pd
    import ray
    from ray import tune

    from raysum.evaluate.scoring import summarize

    name = tune.get_context().get_trial_name()
    decoder = ray.remote(Decoder).options(name=name, num_cpus=1).remote(job, values)
    scores: list[pd.DataFrame] = []
    for chunk in range(ray.get(decoder.chunks.remote())):
        scores.append(ray.get(decoder.score.remote(chunk)))
        tune.report(summarize(pd.concat(scores)))
    job.folder(name).mkdir(parents=True, exist_ok=True)
    pd.concat(scores).to_parquet(job.folder(name) / "scores.parquet", index=False)


def train_trial(values: dict[str, Any], job: Job) -> None:
    """Trains one run by Ray Train, in a worker group of its own; its validations are the trial's reports."""
    from ray import tune
    from ray.tune.integration.ray_train import TuneReportCallback

    from raysum.train.fit import train

    folder = job.folder(tune.get_context().get_trial_name())
    config = job.space.resolve(values).model_copy(update={"data": job.data, "out": str(folder)})
    train(config, callbacks=[TuneReportCallback()])
