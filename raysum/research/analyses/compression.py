"""Summaries from the paragraphs of most predicted attention alone, beside those from all: the PHT paper's Table 6."""

from collections.abc import Sequence
from itertools import product
from pathlib import Path
from typing import Any

import pandas as pd

from raysum.config.sections import LoadConfig
from raysum.data.dataset import Dataset
from raysum.decode.summarizer import Summarizer
from raysum.evaluate.config import EvaluateConfig
from raysum.evaluate.evaluation import compare_systems
from raysum.evaluate.examples import check_readable
from raysum.evaluate.systems import Trained
from raysum.metrics.statistics import Figure, difference_of, figure_of
from raysum.runs.folder import Run

KEPT = (5, 10, 15, 20, 25)  # of the 30 that the paper's models read
METRICS = ("rouge1", "rouge2", "rougeL")
PARTS = {"f1": "", "precision": "_precision", "recall": "_recall"}  # and what a column of scores ends with


def compression(
    run: str | Path,
    data: str | Path,
    split: str | None = None,
    keep: Sequence[int] = KEPT,
    protocol: str = "pht-paper",
    limit: int | None = None,
    **decode: Any,
) -> pd.DataFrame:
    """ROUGE (0 to 100) of ``run`` over a split of ``data``, reading all paragraphs and ``keep`` of each source.

    Kept are those to which the run's attention predictor gives most (``decode.keep_paragraphs``); ``decode`` are other
    settings, of all alike. Columns: ``keep`` (0: all), ``metric``, ``part`` (f1, precision, recall), ``value``,
    ``low``, ``high``, and, of each ``keep`` beside all, ``difference``, ``difference_low``, ``difference_high`` (paired
    bootstrap) and ``p``. How it was counted is in ``attrs["protocol"]``.
    Raises UserError for a run without a predictor.
    """
    opened, dataset = Run.resolve(run), Dataset.open(data)
    check_readable(opened, dataset)
    summarizer = Summarizer.of(opened.path, LoadConfig(decode=decode))
    settings = {f"keep {most}": summarizer.choose({"keep_paragraphs": most}) for most in keep}
    settings = {"keep 0": summarizer.choose({"keep_paragraphs": None}), **settings}
    systems = [Trained(name, summarizer, chosen) for name, chosen in settings.items()]
    chosen_split = dataset.split(split)
    config = EvaluateConfig(data=dataset.address, split=chosen_split, protocol=protocol, limit=limit, scorers=["rouge"])
    result = compare_systems(systems, dataset, chosen_split, config)
    scores = {int(str(name).split()[1]): part for name, part in result.scores.groupby("system", sort=False)}
    lines = [_line(scores, most, metric, part) for most, metric, part in product(scores, METRICS, PARTS)]
    frame = pd.DataFrame(lines)
    frame.attrs["protocol"] = result.protocol
    return frame


def _line(scores: dict[int, pd.DataFrame], keep: int, metric: str, part: str) -> dict[str, Any]:
    name = metric + PARTS[part]
    ends = ("", "_low", "_high")
    own = figure_of(name, Figure(name, 2), scores[keep])
    line = {"keep": keep, "metric": metric, "part": part}
    line |= {column: own[name + end] for column, end in zip(("value", "low", "high"), ends, strict=True)}
    if keep:
        gap = difference_of(name, Figure(name, 2), scores[keep], scores[0])
        line |= {f"difference{end}": gap[name + end] for end in ends} | {"p": gap[f"{name}_p"]}
    return line


def scaled(paragraphs: int, keep: Sequence[int] = KEPT, of: int = 30) -> list[int]:
    """The numbers ``keep`` of ``of`` in as many ``paragraphs`` as sources have: different ones, at least one.

    >>> scaled(10)
    [2, 3, 5, 7, 8]
    """
    return sorted({max(1, round(most * paragraphs / of)) for most in keep})
