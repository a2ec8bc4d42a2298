"""`raysum train auto`: a training that fits a dataset, a machine and a time, and whether it was worth it.

What is chosen is written like any other config. The numbers are ours: at width 128 the quickstart copies names that it
has never seen after some 15,000 examples in steps of 22; the rest goes on from there by the usual rules (a rate that
falls with the width, dropout where examples are seen again and again).
"""

import statistics
import time
from dataclasses import dataclass, replace
from itertools import islice
from math import ceil
from typing import TYPE_CHECKING, Any

import numpy as np

from raysum.config.loading import load_config, merge
from raysum.config.sections import Config
from raysum.data.dataset import Dataset
from raysum.data.familiar import learn
from raysum.data.vocabulary import Vocabulary
from raysum.decode.summarizer import Summarizer
from raysum.errors import UserError
from raysum.evaluate.config import EvaluateConfig
from raysum.evaluate.evaluation import compare, results_folder
from raysum.evaluate.examples import read_examples
from raysum.evaluate.scorers import FIGURES
from raysum.evaluate.systems import Served, System, Watched
from raysum.evaluate.table import Evaluation
from raysum.extract.summarizer import Extractor, extract_settings
from raysum.metrics.tfidf import count_words
from raysum.run import Run, RunResult
from raysum.runtime.processes import settle
from raysum.runtime.progress import say
from raysum.stream.kinds.base import kind_of
from raysum.stream.loader import batches
from raysum.systems import extractive, extractive_names
from raysum.train import fit
from raysum.train.brief import brief_of

if TYPE_CHECKING:
    from rich.console import Group

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
_INVENTED = 0.1  # share of summaries that may have a name which no source has
_COMPARED, _COMPARED_TOKENS = (16, 100), 6000  # examples of the valid split; tokens of their summaries, about
_COUNTED = 1000  # summaries of the train split whose words are counted


@dataclass(frozen=True)
class AutoResult(RunResult):
    """The run beside systems that need no training, on the valid split, and the command that serves the best of all."""

    evaluation: Evaluation
    invented: float  # share of the run's summaries with something of that ``kind`` that no source has
    words: int  # of the summaries of systems that need no training, at most: what the dataset's have on average
    kind: str = "name or number"

    @property
    def best(self) -> str:
        """The run, where it is better beyond doubt and few of its summaries name what no source has.

        By facts F1 where the dataset has facts, else by ROUGE-2, which is high for right phrases around wrong names.
        """
        run, *others = self.evaluation.systems
        other = max(others, key=lambda name: self.evaluation.systems[name][self.figure])
        ahead = self.evaluation.differences[f"{run} - {other}"][f"{self.figure}_low"] > 0
        return run if ahead and self.invented <= _INVENTED else other

    @property
    def figure(self) -> str:
        """By which systems are compared."""
        return "facts_f1" if all("facts_f1" in figures for figures in self.evaluation.systems.values()) else "rouge2"

    @property
    def serve(self) -> str:
        free = self.best in extractive_names()
        return f"raysum serve {self.best} --set words={self.words}" if free else f"raysum serve {self.run.path}"

    def to_dict(self) -> dict[str, Any]:
        told = {"invented": round(self.invented, 4), "best": self.best, "serve": self.serve}
        return {**super().to_dict(), **self.evaluation.to_dict(), **told}

    def render(self) -> "Group":  # type: ignore[override]
        from rich.console import Group
        from rich.text import Text

        name, figure = self.run.path.name, FIGURES[self.figure].label
        lines = [f"{100 * self.invented:.0f} % of the summaries of {name} have a {self.kind} that no source has."]
        if self.best == name:
            lines.append(f"{name} has the highest {figure}, beyond doubt. Serve it with")
        else:
            too_much = f"invents too much (above {100 * _INVENTED:.0f} %)"
            why = too_much if self.invented > _INVENTED else f"has no higher {figure} beyond doubt"
            lines.append(f"{self.best} is the one to serve: it invents nothing, and {name} {why}. Serve it with")
        return Group(self.evaluation.render(), Text("\n".join(["", *lines, f"  {self.serve}"])))


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
            f"{dataset.path} has no valid split with summaries, by which systems are compared; "
            "prepare it with --valid 0.1"
        )
    run = Run(asked.out)
    if run.exists:
        config = load_config(None, overrides, merge(run.config.model_dump(), values))
    else:
        config = chosen(dataset, overrides, values)
    return compared(fit.train(None, **config.model_dump()).run, dataset)


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
    from raysum.train.engine import build_engine
    from raysum.train.group import lone_group
    from raysum.train.report import Meter
    from raysum.train.worker import step

    workers = max(config.train.workers, 1)
    settle(config.train.threads, neighbours=workers)
    model = config.model.fitted(len(Vocabulary.load(dataset.vocabulary_path)))
    brief = brief_of(dataset, config.model_copy(update={"model": model}), Run(config.out or ""), 0)
    brief = replace(brief, start=None)
    seconds, examples = list[float](), list[int]()
    with lone_group():
        engine = build_engine(brief, None)
        coming, meter = batches(brief.train, 0, 1, 0, _MEASURED[1]), Meter(engine.device, {})
        for number in range(_MEASURED[1]):
            if number >= _MEASURED[0] and sum(seconds) > _MEASURING * 60 * (config.train.minutes or 0):
                break
            some = [next(coming) for _ in range(config.train.micro_batches)]
            began = time.monotonic()
            step(engine, brief, number, iter(some), meter)
            seconds.append(time.monotonic() - began)
            examples.append(sum(len(batch.arrays["counts"]) for batch in some if batch.real))
    per_example = [spent / count for spent, count in zip(seconds, examples, strict=True)]
    return statistics.median(per_example[1:]) / workers


def _expectation(rows: int, visits: int) -> str:
    """What a generator trained from nothing will be like."""
    if rows < _FEW:
        return (
            f"{rows} clusters are few: a generator that learns from them alone strings words of the sources together, "
            "right or wrong. Expect a training-free system to be the one to serve; some thousands of clusters more, or "
            "train.start=RUN of a larger training, would change that"
        )
    if visits < 15_000:
        return f"{visits} examples in this time are few: names are copied after some 15,000; give it more minutes"
    return (
        f"{rows} clusters are enough to learn from, but what it writes stays to be checked: of the facts that the "
        "quickstart's model states after 16,000 clusters 6 % are wrong"
    )


def compared(run: Run, dataset: Dataset) -> AutoResult:
    """The run beside all systems that need no training, as they are served, on the valid split."""
    summarizer = Summarizer.load(run.path)
    summaries = islice((row["summary"] for row in read_examples(dataset, "train")), _COUNTED)
    words = ceil(statistics.fmean(map(count_words, summaries)))
    free = [one for one in map(extractive, extractive_names()) if not one.needs_reference]
    settings = extract_settings({"words": words})
    mean = max(dataset.lengths("valid")[:, 2].mean(), 1)
    limit = int(np.clip(_COMPARED_TOKENS / mean, *_COMPARED))
    config = EvaluateConfig(data=str(dataset.path), split="valid", limit=limit)
    own = Watched(run.path.name, summarizer, summarizer.settings)
    systems: list[System] = [own, *(Served(Extractor(one, settings)) for one in free)]
    evaluation = compare(systems, dataset, "valid", config, out=results_folder(run, dataset, "valid"))
    learn(run, dataset, own.seen)
    invented = evaluation.systems[run.path.name]["unsupported"] / evaluation.examples
    kind = "name or number" if dataset.recipe.normalize == "none" else "number"  # names are lower-cased like all else
    return AutoResult(run, evaluation, invented, words, kind)
