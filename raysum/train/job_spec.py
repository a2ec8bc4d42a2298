"""The job specification that every training worker receives: the config and the batches of each dataset."""

import secrets
from collections.abc import Mapping, Sequence
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
from raysum.stream.plan import PlanSettings
from raysum.stream.stream import Stream, plan_of, rows_with_targets
from raysum.tokenizers.loading import load_tokenizer

if TYPE_CHECKING:
    from raysum.train.validation_metric import ValidationMetric

_MANY_EPOCHS, _SUGGESTED_EPOCHS = 100, 10  # more epochs raise a warning, which suggests the second number


@dataclass(frozen=True)
class JobSpec:
    """The job specification, the same for every worker and every restart."""

    run: Run
    config: Config
    fingerprints: tuple[str, ...]  # of ``data`` first, then of the datasets mixed into it
    train: Stream
    valid: Stream | None  # None if the dataset has no valid split with summaries
    start: Start | None  # the weights to start from; None initializes the model randomly
    metric: "ValidationMetric | None"  # selects the best checkpoint; None selects by the lowest loss
    token: str = field(default_factory=lambda: secrets.token_hex(16))  # see ``engine_state.remote_ranks``

    def validates_after(self, done: int) -> bool:
        """Return whether training validates after ``done`` steps."""
        settings = self.config.train
        return self.valid is not None and (done == settings.steps or done % settings.validate_every == 0)


def out_of_patience(patience: int | None, validation_scores: Mapping[int, float], done: int) -> bool:
    """Return whether none of the last ``patience`` validations up to step ``done`` beats the best one before them.

    ``validation_scores`` come from ``Run.validation_scores``, so the result is the same after any restart.
    """
    scores = [score for step, score in sorted(validation_scores.items()) if step <= done]
    return patience is not None and len(scores) > patience and max(scores[-patience:]) <= max(scores[:-patience])


def epochs_warning(job_spec: JobSpec) -> str | None:
    """Return a warning if only ``train.steps`` ends the training and they are more than 100 epochs."""
    settings, epoch = job_spec.config.train, plan_of(job_spec.train).epoch(0).num_steps
    if settings.minutes or settings.patience or settings.steps <= _MANY_EPOCHS * epoch:
        return None
    rows = sum(len(rows_with_targets(part)) for part in job_spec.train.parts)
    ends = ", and train.patience=3 ends a training that no longer improves" if job_spec.valid else ""
    passes = f"train.steps={settings.steps} are {settings.steps / epoch:,.0f} passes over the {rows} rows"
    return f"{passes}: train.steps={_SUGGESTED_EPOCHS * epoch} are {_SUGGESTED_EPOCHS}{ends}"


def job_spec_of(dataset: Dataset, config: Config, run: Run, done: int) -> JobSpec:
    """Return the specification of a training that starts, or resumes, after ``done`` steps.

    Its config has the vocabulary of ``dataset``. Raises UserError if no row can be trained on, the rows lack a column
    that the model reads, or the config validates and the dataset has no row for it.
    """
    model = config.model.with_tokenizer(load_tokenizer(dataset.vocabulary_path))
    config = _with_batch_tokens(config.model_copy(update={"model": model}), run)
    settings, kind = config.train, kind_of(model, dataset)
    batching = PlanSettings(settings.most_tokens, settings.micro_batches, settings.window, settings.seed)
    datasets = [dataset, *map(Dataset.open, config.mixed)]
    for number, other in enumerate(datasets[1:], 1):
        _check_mixed(other, datasets[:number])
        kind.check(other)
    train = Stream(dataset.address, dataset.split("train"), config.source, batching, kind)
    valid = replace(train, split="valid", examples=settings.validate_examples)
    train = replace(train, mixed=tuple(other.address for other in datasets[1:]))
    rows = [_count_rows(part, each) for part, each in zip(train.parts, datasets, strict=True)]
    if config.mixed:
        weights = config.data_weights or rows
        train = replace(train, shares=tuple(weight / sum(weights) for weight in weights))
    has_valid = "valid" in dataset.splits and len(rows_with_targets(valid)) > 0
    if (settings.patience or settings.best_by != "loss") and not has_valid:
        setting = "train.patience" if settings.patience else f"train.best_by={settings.best_by}"
        raise UserError(f"{setting} needs summaries to validate by; prepare {dataset.place} with --valid 0.1")
    epoch, position = plan_of(train).locate(done)
    init_from = None if done else settings.init_from
    return JobSpec(
        run,
        config,
        tuple(each.fingerprint for each in datasets),
        train=replace(train, origin=(epoch, done - position)),
        valid=valid if has_valid else None,
        start=Start.of(init_from, model, dataset.vocabulary_hash) if init_from else None,
        metric=_metric_of(config, dataset) if settings.best_by != "loss" else None,
    )


def _with_batch_tokens(config: Config, run: Run) -> Config:
    """Return ``config`` with a number of ``train.batch_tokens``: for ``auto`` that of the run, if it was trained."""
    if config.train.batch_tokens != "auto":
        return config
    if run.latest():
        tokens = run.config.train.batch_tokens
    else:
        from raysum.train.memory import fitting_tokens  # loads torch

        tokens = fitting_tokens(config)
        say(f"train.batch_tokens=auto: {tokens:,} tokens of a micro-batch fit into the memory")
    return config.model_copy(update={"train": config.train.model_copy(update={"batch_tokens": tokens})})


def _check_mixed(other: Dataset, earlier: Sequence[Dataset]) -> None:
    """Raises UserError if ``other`` is damaged or does not fit the model of the first of the ``earlier`` datasets."""
    first = earlier[0]
    if other.path in [each.path for each in earlier]:
        raise UserError(f"{other.place} is listed twice; set data_weights to read its rows more often")
    required = {
        "kind": (first.kind, other.kind),
        "vocabulary": (first.vocabulary_hash, other.vocabulary_hash),
        "normalization of text": (first.recipe.normalize, other.recipe.normalize),
    }
    if differences := [name for name, (own, its) in required.items() if own != its]:
        fix = f"prepare it again with --kind {first.kind} --vocab {first.vocabulary_path}"
        names = " and ".join(differences)
        raise UserError(f"{other.place} cannot be mixed with {first.place}: they differ in {names}; {fix}")
    other.split("train")
    other.check_shards()
    recipe = first.recipe.model_dump().items()
    if changed := ", ".join(name for name, value in recipe if value != getattr(other.recipe, name)):
        applied = f"the recipe of {first.place} applies to new texts"
        say(f"{other.place} was prepared with other values of {changed} than {first.place}; {applied}")


def _count_rows(train: Stream, dataset: Dataset) -> int:
    """Return the number of rows that are trained on. Raises UserError if there is none."""
    rows, used = dataset.rows(train.split), len(rows_with_targets(train))
    if not used:
        raise UserError(f"no row of {dataset.place}, split train, has a summary; prepare a dataset with summaries")
    if used < rows:
        say(f"{rows - used} of {rows} rows of {dataset.place} have no summary and are not trained on")
    return used


def _metric_of(config: Config, dataset: Dataset) -> "ValidationMetric":
    """Return the metric of ``train.best_by``. Raises UserError if it cannot be measured."""
    from raysum.evaluate.scorers import scorer_of, selectable  # loads torch
    from raysum.train.validation_metric import ValidationMetric

    name, spec = config.train.best_by.removeprefix("-"), config.model
    scorer, setting = scorer_of(name), f"train.best_by={config.train.best_by}"
    if scorer is None:
        near = did_you_mean(name, selectable())
        raise UserError(f"{setting} is no metric; {near}use loss or {', '.join(selectable())}")
    if not spec.summarizes and not (spec.extracts and dataset.kind == "extraction"):
        raise UserError(f"{setting} scores summaries, and this {spec.system} writes none: leave it out")
    if spec.extracts and not name.startswith("rouge"):
        raise UserError(f"{setting} does not apply to a {spec.system}, which extracts sentences; use a ROUGE metric")
    if problem := scorer.problem(dataset):
        raise UserError(f"{setting} cannot be measured: {problem}; use a ROUGE metric")
    return ValidationMetric(name, dataset.address, config.train.validate_examples)
