"""The examples of a dataset that are evaluated, and the check that a run can read them."""

import statistics
from collections.abc import Iterator, Sequence
from itertools import islice
from math import ceil

from raysum.data.dataset import Dataset
from raysum.data.rows import Row
from raysum.errors import UserError
from raysum.runs.folder import Run
from raysum.stream.collators.base import kind_of
from raysum.text.tfidf import count_words


def check_readable(run: Run, dataset: Dataset) -> None:
    """Raises UserError if the dataset has another vocabulary than the run, or lacks the graph that it reads."""
    if run.config.model.TRAINER:
        return  # it reads texts
    if run.recipe.get("vocabulary_sha256") != dataset.vocabulary_hash:
        raise UserError(
            f"{dataset.place} is written in another vocabulary than {run.place} was trained with; "
            f"prepare it with --vocab {run.vocabulary}"
        )
    kind_of(run.config.model, dataset)


def read_examples(
    dataset: Dataset, split: str, limit: int | None = None, columns: Sequence[str] | None = None
) -> Iterator[Row]:
    """Yield the first ``limit`` rows of a split that have a reference summary, with ``columns`` (None: all).

    Raises UserError if there is none.
    """
    if dataset.kind not in ("summarization", "ranking", "extraction"):
        raise UserError(f"{dataset.place} is a {dataset.kind} dataset, without summaries to compare with")
    rows = islice((row for row in dataset.read(split, columns) if row["summary"].strip()), limit)
    first = next(rows, None)
    if first is None:
        raise UserError(f"split {split!r} of {dataset.place} has no example with a reference summary to compare with")
    yield first
    yield from rows


def usual_words(dataset: Dataset, split: str) -> int:
    """Return the mean words of the first 1,000 summaries of the train split, or of ``split`` if that has none.

    Raises UserError if both have none.
    """
    known = "train" if "train" in dataset.splits and dataset.references("train") else split
    rows = read_examples(dataset, known, 1000, ["summary"])
    return ceil(statistics.fmean(count_words(row["summary"]) for row in rows))
