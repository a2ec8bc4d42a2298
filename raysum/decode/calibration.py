"""The reference range of a model's summaries, learned from some clusters of the valid split after training."""

import time
from contextlib import suppress
from itertools import islice

from raysum.data.dataset import Dataset
from raysum.decode.domain_shift import FEWEST, SPLIT, figures, learn
from raysum.decode.summarizer import Summarizer
from raysum.errors import UserError
from raysum.runs.folder import Run

_CLUSTERS, _READ = 100, 1000  # so many, spread over this many from the first
_FASTER = 4  # assumed speed-up of a full batch over the first cluster alone
_SHORTEST = 0.5  # seconds; less time decodes too few summaries


def rehearse(run: Run, dataset: Dataset, seconds: float) -> None:
    """Decode up to 100 clusters of the valid split within ``seconds``, and learn their reference range.

    Does nothing if the time is too short for enough summaries, if the split is missing, or if the run lacks a model
    that its settings need.
    """
    if seconds < _SHORTEST or SPLIT not in dataset.splits:
        return
    rows = list(islice(dataset.read(SPLIT), _READ))
    rows = rows[:: max(1, len(rows) // _CLUSTERS)][:_CLUSTERS]
    values: list[dict[str, float]] = []
    with suppress(UserError):
        summarizer, size = Summarizer.load(run.path), 1
        end = time.monotonic() + seconds
        while size and len(values) < len(rows):
            batch, left = rows[len(values) : len(values) + size], end - time.monotonic()
            made = summarizer.summarize_rows(batch, is_cancelled=lambda _: time.monotonic() > end)
            if (now := time.monotonic()) > end:  # these were cancelled
                break
            values += [figures(summary.support, summary.attention) for summary in made]
            possible = int((end - now) * len(batch) / (left - (end - now)))  # as fast as these
            if len(values) + possible * _FASTER < FEWEST:
                break
            size = min(possible, summarizer.settings.batch_examples)
    learn(run, dataset, values)
