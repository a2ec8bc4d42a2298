"""What the workers of a training are told: the fitted config, and which batches of which dataset."""

from dataclasses import dataclass, replace

import numpy as np

from raysum.config.sections import Config
from raysum.data.dataset import Dataset
from raysum.data.vocabulary import Vocabulary
from raysum.errors import UserError
from raysum.run import Run
from raysum.runtime.progress import say
from raysum.stream.kinds.collate import Kind, kind_of
from raysum.stream.loader import Stream, plan_of
from raysum.stream.plan import PlanSettings


@dataclass(frozen=True)
class Job:
    """All that a worker needs to know, the same for every worker and every restart.

    ``fingerprint`` is the dataset's; ``valid`` is None where it has no valid split.
    """

    out: str
    config: Config
    fingerprint: str
    train: Stream
    valid: Stream | None

    def judges(self, done: int) -> bool:
        """Whether the loss of the valid split is wanted after ``done`` steps."""
        settings = self.config.train
        return self.valid is not None and (done == settings.steps or done % settings.validate_every == 0)


def fitted(config: Config, dataset: Dataset) -> Config:
    """``config`` with the vocabulary size of the dataset, whatever the preset says."""
    size = len(Vocabulary.load(dataset.vocabulary_path))
    return config.model_copy(update={"model": config.model.model_copy(update={"vocabulary": size})})


def job_of(dataset: Dataset, config: Config, run: Run, start: int) -> Job:
    """The job of a training that goes on at step ``start``.

    Raises UserError where no row can be trained on, or the rows lack what the model reads.
    """
    settings, kind = config.train, kind_of(dataset, config.model)
    batching = PlanSettings(settings.batch_tokens, settings.micro_batches, settings.window, settings.seed)
    stream = Stream(str(dataset.path), dataset.split("train"), config.source, batching, kind)
    usable = _usable(dataset, stream.split, config, kind)
    if not usable.any():
        raise UserError(f"no row of {dataset.path}, split train, has a summary; prepare a dataset with summaries")
    unused = int((~usable).sum())
    if unused:
        say(f"{unused} of {len(usable)} rows have no summary and are not trained on")
    epoch, place = plan_of(stream).locate(start)
    valid = None
    if "valid" in dataset.splits and _usable(dataset, "valid", config, kind).any():
        valid = replace(stream, split="valid", examples=settings.validate_examples)
    return Job(
        out=str(run.path),
        config=config,
        fingerprint=dataset.fingerprint,
        train=replace(stream, origin=(epoch, start - place)),
        valid=valid,
    )


def _usable(dataset: Dataset, split: str, config: Config, kind: Kind) -> np.ndarray:
    """[rows] true where a row has something to learn from."""
    _, weights = kind.costs(dataset.lengths(split), config.source)
    return weights > 0
