"""Choose the config of a training for a dataset, a machine and a time limit.

The numbers are measured: at width 128 the quickstart copies unseen names after about 15,000 examples in steps of 22.
Larger sizes follow the usual rules: a lower rate for a larger width, dropout if examples repeat.
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
from raysum.train.job_spec import job_spec_of

NAME = "auto"


@dataclass(frozen=True)
class Size:
    model: dict[str, Any]
    lr: float
    visits: int  # examples, counted at every repetition, that must be seen in the time to choose this size


SIZES = (
    Size({"encoder": "LL", "decoder": "PP", "width": 128, "ffn": 256, "heads": 4, "pooling_heads": 4}, 0.003, 0),
    Size({"encoder": "LLL", "decoder": "PPP", "width": 256, "ffn": 1024, "heads": 4, "pooling_heads": 4}, 1e-3, 60_000),
    Size(
        {"encoder": "LLL", "decoder": "PPP", "width": 512, "ffn": 2048, "heads": 8, "pooling_heads": 8}, 5e-4, 300_000
    ),
)
_EXAMPLES, _FEW_EXAMPLES, _STEPS = 22, 8, 400  # examples of a step; fewer if there would be fewer than this many steps
_MICRO_TOKENS = 8000  # of a micro-batch, at most, to limit memory
_TRAINING = 0.8  # share of the time; the rest is for validation, checkpoints and steps slower than the measured ones
_VALIDATIONS, _VALIDATING = 10, 0.03  # number of validations; examples of each, as a share of those trained on
_EPOCHS = 100  # at most
_PATIENCE = 3  # validations without a better one, if examples repeat so often that dropout is used
_DROPOUT = ((2, 0.0), (10, 0.1), (_EPOCHS, 0.3))  # rate by the maximum number of epochs
# Measured steps (fewest, most), without the first one, within this share of the time. One step is not enough, because
# the machine may be busy with other work for a moment.
_MEASURED, _MEASURING = (3, 20), 0.02
_FEW = 5000  # clusters


def choose_config(dataset: Dataset, overrides: tuple[str, ...], values: dict[str, Any]) -> Config:
    """Return the config of the largest size that sees enough examples in the time. Settings of the user stay.

    Raises UserError if a setting is wrong, or no row of the dataset can be trained on.
    """
    best, best_visits, best_seconds = None, 0, 0.0
    for size in SIZES:
        if best is not None and best_visits < size.visits:
            break  # larger sizes are slower
        draft = _draft(dataset, size, overrides, values)
        per_example = _seconds_per_example(dataset, draft)
        config = _with_steps(dataset, draft, per_example, overrides, values)
        visits = int(60 * (config.train.minutes or 0) * _TRAINING / per_example)
        if best is not None and (visits < size.visits or config.model == best.model):
            break
        best, best_visits, best_seconds = config, visits, per_example
    assert best is not None
    rows = dataset.references("train")
    say(
        f"Chosen: {best.model.encoder}/{best.model.decoder} of width {best.model.width}, {best.train.steps} steps; "  # type: ignore[attr-defined]
        f"this machine trains on {1 / best_seconds:.1f} examples a second, so each of {rows} is seen "
        f"{min(best_visits / rows, _EPOCHS):.1f} times in {best.train.minutes:g} min"
    )
    say(_expectation(rows, best_visits))
    return best


def _draft(dataset: Dataset, size: Size, overrides: tuple[str, ...], values: dict[str, Any]) -> Config:
    """Return a config without the number of steps, and with small batches, to measure the speed with."""
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
    """Return the config of ``draft`` with about ``examples`` in a step."""
    config = load_config(NAME, overrides, merge(draft, values))
    tokens, workers = examples * _cost(dataset, config), max(config.train.workers, 1)
    parts = ceil(ceil(tokens / _MICRO_TOKENS) / workers) * workers
    batching = {"micro_batches": parts, "batch_tokens": ceil(tokens / parts)}
    return load_config(NAME, overrides, merge(merge(draft, {"train": batching}), values))


def _cost(dataset: Dataset, config: Config) -> float:
    """Return the average number of tokens of an example."""
    costs, weights = kind_of(config.model, dataset).costs(dataset.lengths("train"), config.source)
    return float(costs[weights > 0].mean()) if weights.any() else 1.0


def _with_steps(
    dataset: Dataset, draft: Config, per_example: float, overrides: tuple[str, ...], values: dict[str, Any]
) -> Config:
    """Return ``draft`` with as many steps as fit in the time, and with the settings that depend on them."""
    seconds, rows = 60 * (draft.train.minutes or 0) * _TRAINING, dataset.references("train")
    visits = min(seconds / per_example, _EPOCHS * rows)
    examples = _EXAMPLES if visits >= _EXAMPLES * _STEPS else max(_FEW_EXAMPLES, int(visits / _STEPS))
    steps = max(1, int(visits / examples))
    every = ceil(steps / _VALIDATIONS)
    dropout = next(rate for epochs, rate in _DROPOUT if visits <= epochs * rows)
    values_of = draft.model_dump(include={"source": True, "decode": {"max_length"}, "optim": {"lr"}})
    sizes = {name: getattr(draft.model, name) for name in SIZES[0].model}
    train: dict[str, Any] = {
        "steps": steps,
        "validate_every": every,
        "save_every": every,
        "log_every": max(1, min(10, steps // 20)),
    }
    train |= {"validate_examples": max(16, int(_VALIDATING * visits)), "patience": _PATIENCE if dropout else None}
    choice = {"model": sizes | {"dropout": dropout}, "train": train, "optim": {"warmup_steps": steps // 10}}
    return _batched(dataset, merge(values_of, choice), examples, overrides, values)


def _seconds_per_example(dataset: Dataset, config: Config) -> float:
    """Measure a few training steps in this process, and divide the time by the number of workers."""
    per_example = [step.seconds / step.examples for step in timed_steps(dataset, config)]
    return statistics.median(per_example[1:]) / max(config.train.workers, 1)


class TimedStep(NamedTuple):
    seconds: float
    cpu_seconds: float  # of all threads
    examples: int


def timed_steps(
    dataset: Dataset, config: Config, share: float = _MEASURING, most: int = _MEASURED[1]
) -> list[TimedStep]:
    """Train at least 3 steps in this process, and up to ``most`` within a ``share`` of the config's minutes.

    The weights are discarded.
    """
    from raysum.train.engine import build_engine
    from raysum.train.group import lone_group
    from raysum.train.metrics_logger import Meter
    from raysum.train.worker import step as train_step

    configure_process(config.train.threads, neighbours=max(config.train.workers, 1))
    job_spec = replace(job_spec_of(dataset, config, Run(config.out or ""), 0), start=None)
    steps = list[TimedStep]()
    with lone_group():
        engine = build_engine(job_spec, None)
        coming, meter = batches(job_spec.train, 0, 1, 0, most), Meter(engine.device, {})
        for number in range(most):
            if number >= _MEASURED[0] and sum(step.seconds for step in steps) > share * 60 * (
                config.train.minutes or 0
            ):
                break
            step_batches = [next(coming) for _ in range(config.train.micro_batches)]
            began, began_cpu = time.monotonic(), time.process_time()
            train_step(engine, job_spec, number, iter(step_batches), meter)
            seconds, cpu_seconds = time.monotonic() - began, time.process_time() - began_cpu
            examples = sum(len(batch.arrays["counts"]) for batch in step_batches if batch.real)
            steps.append(TimedStep(seconds, cpu_seconds, examples))
    return steps


def _expectation(rows: int, visits: int) -> str:
    """Return what the user can expect from a model that is trained from scratch."""
    if rows < _FEW:
        return (
            f"{rows} clusters are few: a generator that learns only from them combines words of the sources, right or "
            "wrong. An extractor will probably be the better choice, unless you add some thousands of clusters or set "
            "train.init_from=RUN to a run that was trained on more"
        )
    if visits < 15_000:
        return f"{visits} examples in this time are few: names are copied after about 15,000; set more train.minutes"
    return (
        f"{rows} clusters are enough to learn from, but check the summaries: after 16,000 clusters, 6 % of the facts "
        "in the quickstart's summaries are wrong"
    )
