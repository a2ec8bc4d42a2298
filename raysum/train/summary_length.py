"""How many sentences a run that extracts takes, K: found on the valid split when its training ends."""

from collections.abc import Callable, Sequence
from itertools import chain, islice

import numpy as np

from raysum.config.sections import LoadConfig
from raysum.data.dataset import Dataset
from raysum.data.rows import Row, references
from raysum.decode.sentences import SentenceScorer
from raysum.metrics import rouge
from raysum.prepare.ranking import best_first
from raysum.runs.folder import Run
from raysum.runtime.progress import say

_SPLIT, _MOST_ROWS, _MOST = "valid", 300, 30  # rows scored, sentences tried
_PATIENCE = 2  # lengths in succession that are no better, then the search ends
_MEASURED = ("rouge1", "rouge2", "rougeL")


def choose_length(run: Run, dataset: Dataset) -> None:
    """Write K into ``run``: that of the highest mean F1 of ROUGE-1, 2 and L. Nothing without valid rows."""
    rows = dataset.read(_SPLIT) if _SPLIT in dataset.splits else iter(())
    found = [*islice((row for row in rows if row["summary"].strip()), _MOST_ROWS)]
    if not found:
        say(f"{run.place}: summaries have 100 words, as there is no valid split to find their length on")
        return
    scorer = SentenceScorer(run, LoadConfig())
    orders = [best_first(scorer.scores(row)) for row in found]
    wanted = [references(row) for row in found]
    if told := rouge.unread(chain.from_iterable(wanted)):
        say(f"{run.place}: {told}")
    best, value = best_length(
        lambda count: float(rouge.score(taken(found, orders, count), wanted)[[*_MEASURED]].mean(axis=None))
    )
    run.set_extract({"sentences": best})
    say(f"{run.place} takes {best} sentences: mean ROUGE F1 {value:.2f} on {len(found)} clusters of {_SPLIT}")


def best_length(value: Callable[[int], float]) -> tuple[int, float]:
    """How many sentences are worth most, and their ``value``, which rises with their number and then falls."""
    values: list[float] = []
    for count in range(1, _MOST + 1):
        values.append(value(count))
        if len(values) - np.argmax(values) > _PATIENCE:
            break
    return int(np.argmax(values)) + 1, max(values)


def taken(rows: Sequence[Row], orders: Sequence[np.ndarray], count: int) -> list[str]:
    """The first ``count`` sentences of each row by its order, as they stand in the documents."""
    return [
        "\n".join(" ".join(row["text"][place].split()) for place in sorted(order[:count]))
        for row, order in zip(rows, orders, strict=True)
    ]
