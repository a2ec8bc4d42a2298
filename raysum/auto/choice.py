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

from raysum.auto.memory import DoesNotFitError, choose_memory
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
    chooser, best, best_visits, memory = _Chooser(dataset, overrides, values), None, 0, ""
    for size in SIZES:
        if best is not None and best_visits < size.visits:
            break  # larger sizes are slower
        try:
            config, visits, needed = chooser.choose(size)
        except DoesNotFitError:
            if best is None:
                raise
            break
        if best is not None and (visits < size.visits or config.model == best.model):
            break
        best, best_visits, memory = config, visits, needed
    assert best is not None
    if memory:
        say(memory)
    model: Any = best.model
    rows, minutes = dataset.references("train"), best.train.minutes or 0
    say(
        f"Chosen: {model.encoder}/{model.decoder} of width {model.width}, {best.train.steps} steps; the machine trains "
        f"on {best_visits / (60 * minutes * _TRAINING):.1f} examples a second, so each of {rows} is seen "
        f"{min(best_visits / rows, _EPOCHS):.1f} times in {minutes:g} min"
    )
    say(_expectation(rows, best_visits))
    return best


@dataclass(frozen=True)
class _Chooser:
    """Chooses settings for a dataset. ``overrides`` and ``values`` of the user replace them."""

    dataset: Dataset
    overrides: tuple[str, ...]
    values: dict[str, Any]

    def choose(self, size: Size) -> tuple[Config, int, str]:
        """Return the config of a ``size``, the number of examples that it sees in the time, and its memory as text.

        Raises DoesNotFitError if the memory does not suffice, unless the user has set ``deepspeed.zero_optimization``.
        """
        recipe, targets = self.dataset.recipe, self.dataset.lengths("train")[:, 2]
        targets = targets[targets > 0] if targets.any() else np.array([2])
        source = {"max_paragraphs": recipe.max_paragraphs, "paragraph_tokens": recipe.paragraph_tokens}
        draft = {
            "model": size.model,
            "optim": {"lr": size.lr},
            "source": source | {"target_tokens": max(int(np.percentile(targets, 99)), 2)},
            "decode": {"max_length": max(int(np.percentile(targets, 95)), 20)},
        }
        config = self._batched(draft, _FEW_EXAMPLES)
        timed, memory = config, ""
        if "zero_optimization" not in config.deepspeed:
            found, alone = (choose_memory(self.dataset, config, number) for number in (config.train.workers or 1, 1))
            draft["deepspeed"], memory = {"zero_optimization": found.plan.zero}, str(found)
            timed = config.model_copy(update={"deepspeed": config.deepspeed | {"zero_optimization": alone.plan.zero}})
        per_example = [step.seconds / step.examples for step in timed_steps(self.dataset, timed)]
        seconds = statistics.median(per_example[1:]) / max(config.train.workers, 1)
        visits = 60 * (config.train.minutes or 0) * _TRAINING / seconds
        return self._with_steps(draft, visits), int(visits), memory

    def _with_steps(self, draft: dict[str, Any], visits: float) -> Config:
        """Return the config of ``draft`` with the settings that depend on the number of examples that it sees."""
        rows = self.dataset.references("train")
        visits = min(visits, _EPOCHS * rows)
        examples = _EXAMPLES if visits >= _EXAMPLES * _STEPS else max(_FEW_EXAMPLES, int(visits / _STEPS))
        steps = max(1, int(visits / examples))
        dropout = next(rate for epochs, rate in _DROPOUT if visits <= epochs * rows)
        train = {
            "steps": steps,
            "validate_every": ceil(steps / _VALIDATIONS),
            "save_every": ceil(steps / _VALIDATIONS),
            "log_every": max(1, min(10, steps // 20)),
            "validate_examples": max(16, int(_VALIDATING * visits)),
            "patience": _PATIENCE if dropout else None,
        }
        choice = {"model": {"dropout": dropout}, "train": train, "optim": {"warmup_steps": steps // 10}}
        return self._batched(merge(draft, choice), examples)

    def _batched(self, choice: dict[str, Any], examples: int) -> Config:
        """Return the config of ``choice`` with about ``examples`` in a step."""
        config = load_config(NAME, self.overrides, merge(choice, self.values))
        lengths = self.dataset.lengths("train")
        costs, weights = kind_of(config.model, self.dataset).costs(lengths, config.source)
        tokens = examples * (float(costs[weights > 0].mean()) if weights.any() else 1.0)
        workers = max(config.train.workers, 1)
        parts = ceil(ceil(tokens / _MICRO_TOKENS) / workers) * workers
        batching = {"micro_batches": parts, "batch_tokens": ceil(tokens / parts)}
        return load_config(NAME, self.overrides, merge(merge(choice, {"train": batching}), self.values))


class TimedStep(NamedTuple):
    seconds: float
    cpu_seconds: float  # of all threads
    examples: int


def timed_steps(
    dataset: Dataset, config: Config, share: float = _MEASURING, most: int = _MEASURED[1]
) -> list[TimedStep]:
    """Train 3 to ``most`` steps in this process within a ``share`` of the config's minutes; discard the weights."""
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
            spent = sum(step.seconds for step in steps)
            if number >= _MEASURED[0] and spent > share * 60 * (config.train.minutes or 0):
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
