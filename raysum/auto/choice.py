"""What a training is like that fits a dataset, a machine and a time.

What is chosen is written like any other config. The numbers are ours: at width 128 the quickstart copies names that it
has never seen after some 15,000 examples in steps of 22; the rest goes on from there by the usual rules (a rate that
falls with the width, dropout where examples are seen again and again).
"""

import statistics
import time
from dataclasses import dataclass, replace
from math import ceil
from typing import Any, NamedTuple

import numpy as np

from raysum.config.loading import load_config, merge
from raysum.config.sections import Config
from raysum.data.dataset import Dataset
from raysum.runs.folder import Run
from raysum.runtime.processes import configure_process
from raysum.runtime.progress import say
from raysum.stream.collators.base import kind_of
from raysum.stream.loader import batches
from raysum.tokenizers.loading import load_tokenizer
from raysum.train.job_spec import job_spec_of

NAME = "auto"


@dataclass(frozen=True)
class Size:
    model: dict[str, Any]
    lr: float
    visits: int  # examples that must be seen in the time, each time counted, for this size to be worth it


SIZES = (
    Size({"encoder": "LL", "decoder": "PP", "width": 128, "ffn": 256, "heads": 4, "pooling_heads": 4}, 0.003, 0),
    Size({"encoder": "LLL", "decoder": "PPP", "width": 256, "ffn": 1024, "heads": 4, "pooling_heads": 4}, 1e-3, 60_000),
    Size(
        {"encoder": "LLL", "decoder": "PPP", "width": 512, "ffn": 2048, "heads": 8, "pooling_heads": 8}, 5e-4, 300_000
    ),
)
_EXAMPLES, _FEW_EXAMPLES, _STEPS = 22, 8, 400  # examples of a step; fewer where there would be less than so many steps
_MICRO_TOKENS = 8000  # of a micro-batch, at most: memory
_TRAINING = 0.8  # of the time; the rest is for validation, checkpoints, and steps slower than those measured
_VALIDATIONS, _VALIDATING = 10, 0.03  # how many; examples of each, as a share of those trained on
_EPOCHS = 100  # at most
_PATIENCE = 3  # validations without a better one, where examples are seen so often that dropout is due
_DROPOUT = ((2, 0.0), (10, 0.1), (_EPOCHS, 0.3))  # up to so many epochs
# Steps that are measured, the first of which does not count: so many at least and at most, and within this share of
# the time, so that a moment in which the machine is busy with something else does not tell.
_MEASURED, _MEASURING = (3, 20), 0.02
_FEW = 5000  # clusters


def chosen(dataset: Dataset, overrides: tuple[str, ...], values: dict[str, Any]) -> Config:
    """The config for the time that is given: the largest size that sees enough examples. What the user set stays.

    Raises UserError where that is no config, or no row of the dataset can be trained on.
    """
    found, told = None, (0, 0.0)
    for size in SIZES:
        if found is not None and told[0] < size.visits:
            break  # a larger one is slower still
        draft = _drafted(dataset, size, overrides, values)
        per_example = _seconds_of_an_example(dataset, draft)
        config = _timed(dataset, draft, per_example, overrides, values)
        visits = int(60 * (config.train.minutes or 0) * _TRAINING / per_example)
        if found is not None and (visits < size.visits or config.model == found.model):
            break
        found, told = config, (visits, per_example)
    assert found is not None
    visits, per_example = told
    rows = dataset.references("train")
    say(
        f"Chosen: {found.model.encoder}/{found.model.decoder} of width {found.model.width}, {found.train.steps} steps; "  # type: ignore[attr-defined]
        f"this machine trains on {1 / per_example:.1f} examples a second, so each of {rows} is seen "
        f"{min(visits / rows, _EPOCHS):.1f} times in {found.train.minutes:g} min"
    )
    say(_expectation(rows, visits))
    return found


def _drafted(dataset: Dataset, size: Size, overrides: tuple[str, ...], values: dict[str, Any]) -> Config:
    """All but steps: how much is read and written; the batches are small ones, to measure with."""
    targets = dataset.lengths("train")[:, 2]
    targets = targets[targets > 0] if targets.any() else np.array([2])
    recipe = dataset.recipe
    source = {
        "max_paragraphs": recipe.max_paragraphs,
        "paragraph_tokens": recipe.paragraph_tokens,
        "target_tokens": max(int(np.percentile(targets, 99)), 2),
    }
    draft: dict[str, Any] = {"model": size.model, "optim": {"lr": size.lr}, "source": source}
    draft["decode"] = {"max_length": max(int(np.percentile(targets, 95)), 20)}
    return _batched(dataset, draft, _FEW_EXAMPLES, overrides, values)


def _batched(
    dataset: Dataset, draft: dict[str, Any], examples: int, overrides: tuple[str, ...], values: dict[str, Any]
) -> Config:
    """The config of ``draft`` with about ``examples`` in a step."""
    config = load_config(NAME, overrides, merge(draft, values))
    tokens, workers = examples * _cost(dataset, config), max(config.train.workers, 1)
    parts = ceil(ceil(tokens / _MICRO_TOKENS) / workers) * workers
    batching = {"micro_batches": parts, "batch_tokens": ceil(tokens / parts)}
    return load_config(NAME, overrides, merge(merge(draft, {"train": batching}), values))


def _cost(dataset: Dataset, config: Config) -> float:
    """Tokens of an example, on average."""
    costs, weights = kind_of(config.model, dataset).costs(dataset.lengths("train"), config.source)
    return float(costs[weights > 0].mean()) if weights.any() else 1.0


def _timed(
    dataset: Dataset, draft: Config, per_example: float, overrides: tuple[str, ...], values: dict[str, Any]
) -> Config:
    """``draft`` with the steps that the time allows, and what depends on them."""
    seconds, rows = 60 * (draft.train.minutes or 0) * _TRAINING, dataset.references("train")
    visits = min(seconds / per_example, _EPOCHS * rows)
    examples = _EXAMPLES if visits >= _EXAMPLES * _STEPS else max(_FEW_EXAMPLES, int(visits / _STEPS))
    steps = max(1, int(visits / examples))
    every = ceil(steps / _VALIDATIONS)
    dropout = next(rate for epochs, rate in _DROPOUT if visits <= epochs * rows)
    values_of = draft.model_dump(include={"source": True, "decode": {"max_length"}, "optim": {"lr"}})
    sizes = {name: getattr(draft.model, name) for name in SIZES[0].model}
    steady = {"steps": steps, "validate_every": every, "save_every": every, "log_every": max(1, min(10, steps // 20))}
    steady["validate_examples"] = max(16, int(_VALIDATING * visits))
    patience = {"patience": _PATIENCE if dropout else None}
    choice = {"model": sizes | {"dropout": dropout}, "train": steady | patience, "optim": {"warmup_steps": steps // 10}}
    return _batched(dataset, merge(values_of, choice), examples, overrides, values)


def _seconds_of_an_example(dataset: Dataset, config: Config) -> float:
    """By a few steps of the training itself, by one process; as many workers as the config has share the work."""
    per_example = [step.seconds / step.examples for step in timed_steps(dataset, config)]
    return statistics.median(per_example[1:]) / max(config.train.workers, 1)


class TimedStep(NamedTuple):
    seconds: float
    cpu_seconds: float  # of all threads
    examples: int


def timed_steps(
    dataset: Dataset, config: Config, share: float = _MEASURING, most: int = _MEASURED[1]
) -> list[TimedStep]:
    """The first steps of a training, by this process; its weights are thrown away.

    A few are taken in any case, then as many as fit in the ``share`` of the config's minutes, ``most`` at the most.
    """
    from raysum.train.engine import build_engine
    from raysum.train.group import lone_group
    from raysum.train.metrics_logger import Meter
    from raysum.train.worker import step as train_step

    configure_process(config.train.threads, neighbours=max(config.train.workers, 1))
    model = config.model.with_tokenizer(load_tokenizer(dataset.vocabulary_path))
    job_spec = job_spec_of(dataset, config.model_copy(update={"model": model}), Run(config.out or ""), 0)
    job_spec = replace(job_spec, start=None)
    steps = list[TimedStep]()
    with lone_group():
        engine = build_engine(job_spec, None)
        coming, meter = batches(job_spec.train, 0, 1, 0, most), Meter(engine.device, {})
        for number in range(most):
            if number >= _MEASURED[0] and sum(step.seconds for step in steps) > share * 60 * (
                config.train.minutes or 0
            ):
                break
            some = [next(coming) for _ in range(config.train.micro_batches)]
            began, of_cpu = time.monotonic(), time.process_time()
            train_step(engine, job_spec, number, iter(some), meter)
            seconds, cpu_seconds = time.monotonic() - began, time.process_time() - of_cpu
            examples = sum(len(batch.arrays["counts"]) for batch in some if batch.real)
            steps.append(TimedStep(seconds, cpu_seconds, examples))
    return steps


def _expectation(rows: int, visits: int) -> str:
    """What a generator trained from nothing will be like."""
    if rows < _FEW:
        return (
            f"{rows} clusters are few: a generator that learns from them alone strings words of the sources together, "
            "right or wrong. Expect one that takes whole sentences to be the one to serve; some thousands of clusters "
            "more, or train.start=RUN of a larger training, would change that"
        )
    if visits < 15_000:
        return f"{visits} examples in this time are few: names are copied after some 15,000; give it more minutes"
    return (
        f"{rows} clusters are enough to learn from, but what it writes stays to be checked: of the facts that the "
        "quickstart's model states after 16,000 clusters 6 % are wrong"
    )
