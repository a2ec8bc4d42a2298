"""What a trial of a decode space does: actors decode the split and score it; none loads more than it uses."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import ray

from raysum.data.dataset import Dataset
from raysum.data.rows import Row
from raysum.decode.summary import Summary
from raysum.evaluate.examples import read_examples
from raysum.runtime.placement import share
from raysum.tune.spaces import BETA, WHEN, Job

if TYPE_CHECKING:
    import pandas as pd

SCORES = "scores.parquet"  # of each example, in the folder of a trial
_FIRST, _CHUNK = 16, 64  # examples before the first report, and between others: something is seen soon


def decode_trial(values: dict[str, Any], job: Job, decoder: Any) -> None:
    """Reports the means of what :func:`_scored` scores."""
    from ray import tune

    for found in _scored(job, tune.get_context().get_trial_name(), values, decoder):
        tune.report(found)


def trial_scores(job: Job, name: str, values: dict[str, Any]) -> "pd.DataFrame":
    """The scores of each example that the trial ``name`` has saved; decoded and scored now where there are none."""
    import pandas as pd

    file = job.folder(name) / SCORES
    if not file.is_file():
        for _ in _scored(job, name, values, None):
            pass
    return pd.read_parquet(file)


def _scored(job: Job, name: str, values: dict[str, Any], decoder: Any) -> Iterator[dict[str, Any]]:
    """Scores the split chunk by chunk, in an actor that the dashboard shows under the trial's name."""
    tried = values if decoder else {}
    own = {"num_cpus": 0, "num_gpus": share("decoder", job.at_once).gpus}
    decoder = decoder or ray.remote(Decoder).options(**own).remote(job, values)
    scorer: Any = ray.remote(TrialScorer).options(name=name, num_cpus=1).remote(job, name)
    bounds = sorted({0, min(_FIRST, job.length), *range(_CHUNK, job.length, _CHUNK), job.length})
    for start, stop in pairwise(bounds):
        yield ray.get(scorer.score.remote(start, stop, decoder.decode.remote(start, stop, tried)))


class Decoder:
    """The actor that decodes the split: for one trial, or for all that differ in ``betas`` and where they act only."""

    def __init__(self, job: Job, values: dict[str, Any], betas: Sequence[float] | None = None):
        import torch

        from raysum.decode.summarizer import Summarizer

        torch.set_num_threads(job.threads * (job.at_once if betas else 1))
        assert job.run, "a decode space has a run"
        self.settings = job.space.resolve(values, base=job.run.decode).decode
        self.summarizer = Summarizer.load(job.run.path, **self.settings.model_dump())
        self.betas = list(betas or [self.settings.beta])
        self.rows = scored_rows(job)
        self.done: dict[tuple[int, str], list[list[Summary]]] = {}

    def decode(self, start: int, stop: int, tried: dict[str, Any]) -> list[Summary]:
        """What the rows ``start`` to ``stop`` give with the values ``tried`` of BETA and WHEN, where they are tried."""
        when = tried.get(WHEN, self.settings.alignment_when)
        if (start, when) not in self.done:
            settings = self.settings.model_copy(update={"alignment_when": when})
            self.done[start, when] = self.summarizer.summarize_betas(self.rows[start:stop], settings, self.betas)
        return self.done[start, when][self.betas.index(tried.get(BETA, self.betas[0]))]


class TrialScorer:
    """The actor of one decode trial, named like the trial: it scores what the decoder gives."""

    def __init__(self, job: Job, name: str):
        self.rows = scored_rows(job)
        self.folder, self.metric = job.folder(name), job.space.config.metric
        self.parts: list[pd.DataFrame] = []

    def score(self, start: int, stop: int, summaries: list[Summary]) -> dict[str, Any]:
        """The means so far. After the last rows, the scores of each example are saved."""
        import pandas as pd

        from raysum.evaluate.scorers import means, score, scorers_of

        self.parts.append(score(self.rows[start:stop], summaries, scorers_of(None)))
        scores = pd.concat(self.parts, ignore_index=True)
        if len(scores) == len(self.rows):
            self.folder.mkdir(parents=True, exist_ok=True)
            scores.to_parquet(self.folder / SCORES, index=False)
        return means(scores, {self.metric})  # with more intervals TensorBoard would show three curves for each


def scored_rows(job: Job) -> list[Row]:
    """The rows that a decode search scores."""
    return list(read_examples(Dataset.open(job.data), job.space.config.split, job.length))


@contextmanager
def shared_decoder(job: Job) -> Iterator[Any]:
    """One decoder for all trials of a grid of betas and where they act, None for other spaces. It ends with the search.

    Tune keeps a handle of it for as long as the driver lives, so that Ray would not end it.
    """
    search = job.space.config.search
    if BETA not in search or not search.keys() <= {BETA, WHEN} or search[BETA].grid is None:
        yield None
        return
    betas = search[BETA].listed
    place = {"num_cpus": 1, "num_gpus": share("decoder", 1).gpus, "max_restarts": 1, "max_task_retries": 1}
    decoder: Any = ray.remote(Decoder).options(**place).remote(job, {BETA: betas[0]}, betas)
    try:
        yield decoder
    finally:
        ray.kill(decoder)
