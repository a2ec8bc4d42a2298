"""What the workers of a training are told: the fitted config, and which batches of which dataset."""

from dataclasses import dataclass, replace

import numpy as np

from raysum.config.sections import Config
from raysum.data.dataset import Dataset
from raysum.errors import UserError
from raysum.restore import Start
from raysum.run import Run
from raysum.runtime.progress import say
from raysum.stream.kinds.base import Kind, kind_of
from raysum.stream.loader import Stream, plan_of
from raysum.stream.plan import PlanSettings


@dataclass(frozen=True)
class Brief:
    """All that a worker needs to know, the same for every worker and every restart.

    ``fingerprint`` is the dataset's; ``valid`` is None where it has no valid split; ``start`` is None where the model
    begins with weights of its own.
    """

    out: str
    config: Config
    fingerprint: str
    train: Stream
    valid: Stream | None
    start: Start | None = None

    def judges(self, done: int) -> bool:
        """Whether the loss of the valid split is wanted after ``done`` steps."""
        settings = self.config.train
        return self.valid is not None and (done == settings.steps or done % settings.validate_every == 0)


def brief_of(dataset: Dataset, config: Config, run: Run, done: int) -> Brief:
    """For a training that goes on after ``done`` steps.

    Raises UserError where no row can be trained on, or the rows lack what the model reads.
    """
    settings, kind = config.train, kind_of(config.model, dataset)
    batching = PlanSettings(settings.batch_tokens, settings.micro_batches, settings.window, settings.seed)
    stream = Stream(str(dataset.path), dataset.split("train"), config.source, batching, kind)
    usable = _usable(dataset, stream.split, config, kind)
    if not usable.any():
        raise UserError(f"no row of {dataset.path}, split train, has a summary; prepare a dataset with summaries")
    unused = int((~usable).sum())
    if unused:
        say(f"{unused} of {len(usable)} rows have no summary and are not trained on")
    epoch, place = plan_of(stream).locate(done)
    valid = None
    if "valid" in dataset.splits and _usable(dataset, "valid", config, kind).any():
        valid = replace(stream, split="valid", examples=settings.validate_examples)
    origin = config.train.start if done == 0 else None
    return Brief(
        out=str(run.path),
        config=config,
        fingerprint=dataset.fingerprint,
        train=replace(stream, origin=(epoch, done - place)),
        valid=valid,
        start=Start.of(origin, config.model, dataset.vocabulary_hash) if origin else None,
    )


def _usable(dataset: Dataset, split: str, config: Config, kind: Kind) -> np.ndarray:
    """[rows] true where a row has something to learn from."""
    _, weights = kind.costs(dataset.lengths(split), config.source)
    return weights > 0
