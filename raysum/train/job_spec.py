"""The job specification that every training worker receives: the config and the batches of each dataset."""

import secrets
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from raysum.config.problems import did_you_mean
from raysum.config.sections import Config
from raysum.data.dataset import Dataset
from raysum.errors import UserError
from raysum.runs.folder import Run
from raysum.runs.restore import Start
from raysum.runtime.progress import say
from raysum.stream.collators.base import kind_of
from raysum.stream.loader import Stream, plan_of, rows_with_targets
from raysum.stream.plan import PlanSettings
from raysum.train.mixture import mixed, shares

if TYPE_CHECKING:
    from raysum.train.validation_metric import ValidationMetric

_PASSES, _FEWER = 100, 10  # over the data: more are told of; what is named in their place


@dataclass(frozen=True)
class JobSpec:
    """The job specification, the same for every worker and every restart."""

    run: Run
    config: Config
    fingerprints: tuple[str, ...]  # of the datasets, the one that others are mixed into first
    train: Stream
    valid: Stream | None  # where the dataset has such a split
    start: Start | None  # where the model does not begin with weights of its own
    metric: "ValidationMetric | None"  # where the best checkpoint is not that of the lowest loss
    token: str = field(default_factory=lambda: f".token-{secrets.token_hex(16)}")  # see ``checkpoints.hosts_apart``

    def validates_after(self, done: int) -> bool:
        """Return whether training validates after ``done`` steps."""
        settings = self.config.train
        return self.valid is not None and (done == settings.steps or done % settings.validate_every == 0)

    def out_of_patience(self, validation_scores: Mapping[int, float], done: int) -> bool:
        """Return whether none of the last ``train.patience`` validations up to step ``done`` beats the best before.

        ``validation_scores`` come from ``Run.validation_scores``, so the result is the same after any restart.
        """
        return out_of_patience(self.config.train.patience, validation_scores, done)


def overlong(job_spec: JobSpec) -> str | None:
    """Return a warning if only ``train.steps`` ends the training and they are over 100 passes over the data."""
    settings = job_spec.config.train
    if settings.minutes or settings.patience:
        return None
    each = plan_of(job_spec.train).epoch(0).num_steps
    if settings.steps <= _PASSES * each:
        return None
    rows = sum(len(rows_with_targets(part)) for part in job_spec.train.parts)
    told = f"train.steps={settings.steps} are {settings.steps / each:,.0f} passes over the {rows} rows"
    ends = ", and train.patience=3 ends a training that gets no better" if job_spec.valid else ""
    return f"{told}: train.steps={_FEWER * each} are {_FEWER}{ends}"


def out_of_patience(patience: int | None, validation_scores: Mapping[int, float], done: int) -> bool:
    """As :meth:`JobSpec.out_of_patience` says, for a ``patience``."""
    found = [worth for step, worth in sorted(validation_scores.items()) if step <= done]
    return patience is not None and len(found) > patience and max(found[-patience:]) <= max(found[:-patience])


def job_spec_of(dataset: Dataset, config: Config, run: Run, done: int) -> JobSpec:
    """For a training that goes on after ``done`` steps.

    Raises UserError where no row can be trained on, the rows lack what the model reads, or none is there to validate by
    although the config has patience.
    """
    settings, kind = config.train, kind_of(config.model, dataset)
    batching = PlanSettings(settings.batch_tokens, settings.micro_batches, settings.window, settings.seed)
    others = mixed(config, dataset)
    for other in others:
        kind.check(other)
    train = Stream(dataset.address, dataset.split("train"), config.source, batching, kind)
    valid = replace(train, split="valid", examples=settings.validate_examples)
    train = replace(train, mixed=tuple(other.address for other in others))
    rows = [_used(part, each) for part, each in zip(train.parts, (dataset, *others), strict=True)]
    if others:
        train = replace(train, shares=shares(config.data_weights, rows))
    has_valid = "valid" in dataset.splits and len(rows_with_targets(valid)) > 0
    if settings.patience and not has_valid:
        raise UserError(f"train.patience needs summaries to validate by; prepare {dataset.place} with --valid 0.1")
    metric = None
    if settings.best_by != "loss":
        _check_metric(config, dataset, has_valid)
        from raysum.train.validation_metric import ValidationMetric  # loads torch

        metric = ValidationMetric(settings.best_by.removeprefix("-"), dataset.address, settings.validate_examples)
    epoch, place = plan_of(train).locate(done)
    return JobSpec(
        run,
        config,
        tuple(each.fingerprint for each in (dataset, *others)),
        train=replace(train, origin=(epoch, done - place)),
        valid=valid if has_valid else None,
        start=Start.of(settings.start, config.model, dataset.vocabulary_hash) if settings.start and not done else None,
        metric=metric,
    )


def _used(train: Stream, dataset: Dataset) -> int:
    """Rows that are trained on. Raises UserError where there is none."""
    rows, used = dataset.rows(train.split), len(rows_with_targets(train))
    if not used:
        raise UserError(f"no row of {dataset.place}, split train, has a summary; prepare a dataset with summaries")
    if used < rows:
        say(f"{rows - used} of {rows} rows of {dataset.place} have no summary and are not trained on")
    return used


def _check_metric(config: Config, dataset: Dataset, has_valid: bool) -> None:
    """Raises UserError if the metric that ``train.best_by`` names cannot be measured."""
    from raysum.evaluate.scorers import scorer_of, selectable  # loads torch

    metric = config.train.best_by.removeprefix("-")
    wanted, spec, scorer = f"train.best_by={config.train.best_by}", config.model, scorer_of(metric)
    if scorer is None:
        raise UserError(
            f"{wanted} is no metric; {did_you_mean(metric, selectable())}use loss or {', '.join(selectable())}"
        )
    if not spec.summarizes and not (spec.extracts and dataset.kind == "extraction"):
        raise UserError(f"{wanted} is of summaries, and this {spec.system} makes none of such rows: leave it out")
    if not has_valid:
        raise UserError(f"{wanted} needs summaries to validate by; prepare {dataset.place} with --valid 0.1")
    if spec.extracts and not metric.startswith("rouge"):
        raise UserError(f"{wanted} does not apply to a {spec.system}, which takes sentences; use a ROUGE metric")
    if problem := scorer.problem(dataset):
        raise UserError(f"{wanted} cannot be measured: {problem}; use a ROUGE metric")
