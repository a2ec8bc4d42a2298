"""What is usual for a model's summaries, learned by decoding some clusters of the valid split once it is trained."""

import time
from contextlib import suppress
from itertools import islice

from raysum.data.dataset import Dataset
from raysum.decode.domain_shift import FEWEST, SPLIT, figures, learn
from raysum.decode.summarizer import Summarizer
from raysum.errors import UserError
from raysum.runs.folder import Run

_CLUSTERS, _READ = 100, 1000  # so many, spread over this many from the first
_FASTER = 4  # a batch of many may be than the first one alone, by so much
_SHORTEST = 0.5  # seconds in which too little is decoded to learn from


def rehearse(run: Run, dataset: Dataset, seconds: float) -> None:
    """Decode up to 100 clusters of the valid split in ``seconds`` at most, and learn of their summaries.

    Nothing where that is too short for as many as are needed, the split is missing, or the run's settings need what it
    does not have yet.
    """
    if seconds < _SHORTEST or SPLIT not in dataset.splits:
        return
    rows = list(islice(dataset.read(SPLIT), _READ))
    rows = rows[:: max(1, len(rows) // _CLUSTERS)][:_CLUSTERS]
    found: list[dict[str, float]] = []
    with suppress(UserError):
        summarizer, size = Summarizer.load(run.path), 1
        end = time.monotonic() + seconds
        while size and len(found) < len(rows):
            some, left = rows[len(found) : len(found) + size], end - time.monotonic()
            made = summarizer.summarize_rows(some, is_cancelled=lambda _: time.monotonic() > end)
            if (now := time.monotonic()) > end:  # they were broken off
                break
            found += [figures(one.support, one.attention) for one in made]
            possible = int((end - now) * len(some) / (left - (end - now)))  # as fast as these
            if len(found) + possible * _FASTER < FEWEST:
                break
            size = min(possible, summarizer.settings.batch_examples)
    learn(run, dataset, found)
