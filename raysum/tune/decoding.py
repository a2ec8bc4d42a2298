"""Trials of decode spaces: one actor decodes the split, another scores it, and each loads only its own libraries."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import count, pairwise
from typing import TYPE_CHECKING, Any

import ray

from raysum.data.dataset import Dataset
from raysum.data.rows import Row
from raysum.decode.summary import Summary
from raysum.evaluate.examples import read_examples
from raysum.runtime.placement import share
from raysum.runtime.progress import say
from raysum.tune.spaces import BETA, WHEN, Job

if TYPE_CHECKING:
    import pandas as pd

SCORES = "scores.parquet"  # scores of each example, in the folder of a trial
_FIRST, _CHUNK = 16, 64  # examples before the first report, and between later ones
_LOSSES = 3  # lost actors after which a trial starts again, or the shared decoder


def decode_trial(values: dict[str, Any], job: Job, decoder: Any) -> None:
    """Decode and score the split, and report the mean scores so far to Tune. Scores that are saved are reused.

    After the loss of an actor, such as with its node, both start again, and no report is repeated.
    """
    from ray import tune

    name, examples = tune.get_context().get_trial_name(), 0
    for starts in count(1):
        try:
            actor = name if starts == 1 else f"{name} (start {starts})"  # the first scorer may still have its name
            for metrics in _mean_scores(job, name, values, decoder, actor):
                if metrics["examples"] > examples:
                    examples = metrics["examples"]
                    tune.report(metrics)
            return
        except ray.exceptions.RayActorError as error:
            if error.actor_init_failed or starts > _LOSSES:
                raise
            say(f"{name}: an actor was lost; the trial starts again")


def trial_scores(job: Job, name: str, values: dict[str, Any]) -> "pd.DataFrame":
    """Return the scores of each example in the trial ``name``. If it saved none, decode and score the split now."""
    import pandas as pd

    file = job.folder(name) / SCORES
    if not file.is_file():
        for _ in _mean_scores(job, name, values, None, name):
            pass
    return pd.read_parquet(file)


def _mean_scores(job: Job, name: str, values: dict[str, Any], decoder: Any, actor: str) -> Iterator[dict[str, Any]]:
    """Yield the mean scores so far, chunk by chunk, or only the last ones if the trial has saved its scores before.

    The dashboard shows the scoring actor under the name ``actor``.
    """
    import pandas as pd

    from raysum.evaluate.scorers import means

    if (file := job.folder(name) / SCORES).is_file():
        yield means(pd.read_parquet(file), {job.space.config.metric})
        return
    searched = values if decoder else {}
    options = {"num_cpus": 0, "num_gpus": job.share.gpus}
    decoder = decoder or ray.remote(Decoder).options(**options).remote(job, values)
    scorer: Any = ray.remote(TrialScorer).options(name=actor, num_cpus=job.share.cpus).remote(job, name)
    bounds = sorted({0, min(_FIRST, job.length), *range(_CHUNK, job.length, _CHUNK), job.length})
    for start, stop in pairwise(bounds):
        yield ray.get(scorer.score.remote(start, stop, decoder.decode.remote(start, stop, searched)))


class Decoder:
    """The actor that decodes the split for one trial, or for all trials that differ only in beta and alignment_when."""

    def __init__(self, job: Job, values: dict[str, Any], betas: Sequence[float] | None = None):
        import torch

        from raysum.decode.summarizer import Summarizer

        torch.set_num_threads(job.threads * (job.concurrency if betas else 1))
        assert job.run, "a decode space has a run"
        self.settings = job.space.resolve(values, base=job.run.decode).decode
        self.summarizer = Summarizer.load(job.run.path, **self.settings.model_dump())
        self.betas = list(betas or [self.settings.beta])
        self.rows = scored_rows(job)
        self.done: dict[tuple[int, str], list[list[Summary]]] = {}

    def decode(self, start: int, stop: int, searched: dict[str, Any]) -> list[Summary]:
        """Return the summaries of the rows ``start`` to ``stop`` with the values of BETA and WHEN in ``searched``."""
        when = searched.get(WHEN, self.settings.alignment_when)
        if (start, when) not in self.done:
            settings = self.settings.model_copy(update={"alignment_when": when})
            self.done[start, when] = self.summarizer.summarize_betas(self.rows[start:stop], settings, self.betas)
        return self.done[start, when][self.betas.index(searched.get(BETA, self.betas[0]))]


class TrialScorer:
    """The actor that scores the summaries of one decode trial; it has the name of the trial."""

    def __init__(self, job: Job, name: str):
        self.rows = scored_rows(job)
        self.folder, self.metric = job.folder(name), job.space.config.metric
        self.parts: list[pd.DataFrame] = []

    def score(self, start: int, stop: int, summaries: list[Summary]) -> dict[str, Any]:
        """Return the mean scores so far. After the last rows, save the scores of each example."""
        import pandas as pd

        from raysum.evaluate.scorers import means, score_table, scorers_of

        self.parts.append(score_table(self.rows[start:stop], summaries, scorers_of(None)))
        scores = pd.concat(self.parts, ignore_index=True)
        if len(scores) == len(self.rows):
            self.folder.mkdir(parents=True, exist_ok=True)
            scores.to_parquet(partial := self.folder / f"{SCORES}.partial", index=False)
            partial.replace(self.folder / SCORES)
        return means(scores, {self.metric})  # TensorBoard shows three curves for each metric with an interval


def scored_rows(job: Job) -> list[Row]:
    """Return the rows that a decode search scores."""
    return list(read_examples(Dataset.open(job.data), job.space.config.split, job.length))


@contextmanager
def shared_decoder(job: Job) -> Iterator[Any]:
    """Start one decoder for all trials of a grid over BETA and WHEN, or None for other spaces; end it with the block.

    Without the kill Ray would not end it, because Tune keeps a handle until the driver ends.
    """
    search = job.space.config.search
    if BETA not in search or not search.keys() <= {BETA, WHEN} or search[BETA].grid is None:
        yield None
        return
    betas = search[BETA].listed
    gpus = share("decoder", 1, gpus=job.space.config.resources.gpus).gpus
    options = {"num_cpus": 1, "num_gpus": gpus, "max_restarts": _LOSSES, "max_task_retries": _LOSSES}
    decoder: Any = ray.remote(Decoder).options(**options).remote(job, {BETA: betas[0]}, betas)
    try:
        yield decoder
    finally:
        ray.kill(decoder)
