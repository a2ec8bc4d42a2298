"""`raysum train auto`: choose, train, compare."""

from typing import Any

from raysum.auto.choice import NAME, chosen
from raysum.auto.comparison import AutoResult, compared
from raysum.config.loading import load_config, merge
from raysum.data.dataset import Dataset
from raysum.errors import UserError
from raysum.runs.folder import Run
from raysum.runtime.run_sync import added_to, sync_down
from raysum.train import fit


def train(*overrides: str, **values: Any) -> AutoResult:
    """Train on ``data`` into ``out`` for ``train.minutes``, or go on with the run that is there, and compare.

    What ``overrides`` and ``values`` leave open is chosen, once, as :func:`chosen` says.
    Raises UserError for a wrong config, dataset or run, or where the dataset has no valid split to compare by.

    >>> raysum.train("auto", data="data", out="runs/auto", train={"minutes": 30})
    """
    asked = load_config(NAME, overrides, values)
    if not asked.data or not asked.out:
        raise UserError("write `raysum train auto data=DATA out=RUN train.minutes=30`")
    dataset = Dataset.open(asked.data)
    if dataset.kind != "summarization" or "valid" not in dataset.splits or not dataset.references("valid"):
        raise UserError(
            f"{dataset.place} has no valid split with summaries, by which systems are compared; "
            "prepare it with --valid 0.1"
        )
    run = Run(sync_down(asked.out))
    if run.exists and not fit.is_untrained(run):
        config = load_config(None, overrides, merge(run.config.model_dump(), values))
    else:
        config = chosen(dataset, overrides, values)
    trained = fit.train(None, **config.model_dump()).run
    with added_to(trained.path):
        return compared(trained, dataset)
