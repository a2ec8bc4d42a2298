"""What is usual for a model's summaries, learned by decoding some clusters of the valid split once it is trained."""

import time
from contextlib import suppress
from itertools import islice

from raysum.data.dataset import Dataset
from raysum.data.familiar import SPLIT, figures, learn
from raysum.decode.summarizer import Summarizer
from raysum.errors import UserError
from raysum.run import Run

_CLUSTERS, _READ = 100, 1000  # so many, spread over this many from the first
_SHORTEST = 0.5  # seconds in which too little is decoded to learn from


def rehearse(run: Run, dataset: Dataset, seconds: float) -> None:
    """Decode up to 100 clusters of the valid split in about ``seconds``, and learn of their summaries.

    Nothing where that is too short, the split is missing, or the run's settings need what it does not have yet.
    """
    if seconds < _SHORTEST or SPLIT not in dataset.splits:
        return
    end, size = time.monotonic() + seconds, 1
    rows = list(islice(dataset.read(SPLIT), _READ))
    rows = rows[:: max(1, len(rows) // _CLUSTERS)][:_CLUSTERS]
    found: list[dict[str, float]] = []
    with suppress(UserError):
        summarizer = Summarizer.load(run.path)
        while size > 0 and len(found) < len(rows):
            some, began = rows[len(found) : len(found) + size], time.monotonic()
            found += [figures(one.support, one.attention) for one in summarizer.summarize_rows(some)]
            now = time.monotonic()
            size = min(int((end - now) * len(some) / (now - began)), summarizer.settings.batch_examples)
        learn(run, dataset, found)
