"""`raysum train auto`: choose the settings, train, and compare the run with systems that extract sentences."""

from dataclasses import dataclass
from math import ceil
from typing import Any

import numpy as np
from rich.console import Group
from rich.text import Text

from raysum.auto.choice import NAME, choose_config
from raysum.config.decoding import ExtractConfig
from raysum.config.loading import load_config, merge
from raysum.config.problems import changed
from raysum.config.sections import LoadConfig
from raysum.data.dataset import Dataset
from raysum.decode.domain_shift import learn
from raysum.decode.summarizer import Summarizer
from raysum.errors import UserError
from raysum.evaluate.config import EvaluateConfig
from raysum.evaluate.evaluation import compare_systems, results_folder
from raysum.evaluate.examples import read_examples, usual_words
from raysum.evaluate.scorers import FIGURES, HEADLINES
from raysum.evaluate.systems import Extracted, System, Trained
from raysum.evaluate.table import Evaluation, figure_table
from raysum.extract import learning
from raysum.extract.systems import TrainedExtractive, training_free
from raysum.prepare.row_builder import as_sentences
from raysum.runs.folder import Run, RunResult
from raysum.runtime.rendering import Grid
from raysum.runtime.run_sync import added_to, sync_down
from raysum.text.tfidf import count_words
from raysum.train import fit

EXTRACTOR = "extractor"
_MAX_INVENTED = 0.1  # share of summaries with a name that is in no source
_COMPARED, _COMPARED_TOKENS = (16, 100), 6000  # examples of the valid split (fewest, most); tokens of their summaries
_FITTING = 0.95  # share of the clusters that have a sentence within the limit of words


@dataclass(frozen=True)
class AutoResult(RunResult):
    """The run and extractive systems, compared on the valid split, and the command that serves the best of them."""

    evaluation: Evaluation
    invented: float  # share of the run's summaries with something of ``kind`` that is in no source
    words: int  # word limit of the extractive systems
    data: str = ""  # the dataset and its numbers of clusters
    kind: str = "name or number"

    @property
    def best(self) -> str:
        """The system to serve: the run if it is significantly better and invents little, otherwise the best extractor.

        The metric is the headline metric of a registered scorer that applies to the dataset, otherwise ROUGE-2.
        """
        run, *others = self.evaluation.systems
        other = max(others, key=lambda name: self.evaluation.systems[name][self.figure])
        is_better = self.evaluation.differences[f"{run} - {other}"][f"{self.figure}_low"] > 0
        return run if is_better and self.invented <= _MAX_INVENTED else other

    @property
    def figure(self) -> str:
        """The metric that the systems are compared by."""
        systems = self.evaluation.systems.values()
        return next((name for name in HEADLINES if all(name in figures for figures in systems)), "rouge2")

    @property
    def serve(self) -> str:
        if self.best == self.run.name:
            return f"raysum serve {self.run.path}"
        target = self.run.path / EXTRACTOR if self.best == EXTRACTOR else self.best
        return f"raysum serve {target} --set words={self.words}"

    def to_dict(self) -> dict[str, Any]:
        choice = {"invented": round(self.invented, 4), "best": self.best, "serve": self.serve}
        return {**super().to_dict(), **self.evaluation.to_dict(), **choice}

    def render(self) -> Group:  # type: ignore[override]
        """Return one screen: the data, the systems by their main figure, and the command that serves the best."""
        systems, name, figure = self.evaluation.systems, self.run.name, FIGURES[self.figure].label
        best_first = sorted(systems, key=lambda system: systems[system][self.figure], reverse=True)
        table = figure_table([(system, systems[system]) for system in best_first], (self.figure, "words")).T
        words = f"extractive summaries of at most {self.words} words"
        top = f"{self.data}; compared on {self.evaluation.examples} valid clusters, {words}:\n"
        lines = [f"{100 * self.invented:.0f} % of the summaries of {name} have a {self.kind} that is in no source."]
        if self.best == name:
            lines.append(f"{name} has a significantly higher {figure}. Serve it with")
        else:
            too_much = f"invents too much (above {100 * _MAX_INVENTED:.0f} %)"
            why = too_much if self.invented > _MAX_INVENTED else f"has no significantly higher {figure}"
            lines.append(f"{self.best} is the best choice: it invents nothing, and {name} {why}. Serve it with")
        lines += [f"  {self.serve}", f"All figures: raysum report {self.run.path} --out report.html"]
        return Group(Text(top), Grid.of(table), Text("\n".join(["", *lines])))


def train(*overrides: str, **values: Any) -> AutoResult:
    """Train on ``data`` into ``out`` for ``train.minutes``, or resume the run in ``out``, and compare it.

    A new run gets its open settings from :func:`choose_config`.
    Raises UserError for a wrong config, dataset or run, or if the dataset has no valid split with summaries.

    >>> raysum.train("auto", data="data", out="runs/auto", train={"minutes": 30})
    """
    settings = load_config(NAME, overrides, values)
    if not settings.data or not settings.out:
        raise UserError("write `raysum train auto data=DATA out=RUN train.minutes=30`")
    dataset = Dataset.open(settings.data)
    if dataset.kind != "summarization" or "valid" not in dataset.splits or not dataset.references("valid"):
        raise UserError(
            f"{dataset.place} has no valid split with summaries to compare systems on; prepare it with --valid 0.1"
        )
    run = Run(sync_down(settings.out))
    if run.exists and not fit.is_untrained(run):
        config = load_config(None, overrides, merge(run.config.model_dump(), values))
    else:
        config = choose_config(dataset, overrides, values)
    trained = fit.train(None, **config.model_dump()).run
    with added_to(trained.path):
        return _compare(trained, dataset)


def _compare(run: Run, dataset: Dataset) -> AutoResult:
    """Evaluate the run, as it is served, and extractive systems on the valid split."""
    summarizer = Summarizer.load(run.path)
    mean = max(dataset.lengths("valid")[:, 2].mean(), 1)
    limit = int(np.clip(_COMPARED_TOKENS / mean, *_COMPARED))
    words = summary_words(dataset, limit)
    settings = changed(ExtractConfig(), {"words": words})
    config = EvaluateConfig(data=dataset.address, split="valid", limit=limit)
    own = Trained(run.name, summarizer, summarizer.settings)
    extractive = training_free()
    if dataset.references("train") >= learning.FEWEST:  # in about a minute
        own_config = load_config("extractor", (), {"data": dataset.address, "out": str(run.path / EXTRACTOR)})
        extractive.insert(0, TrainedExtractive(learning.train(own_config, compared=False), LoadConfig()))
    systems: list[System] = [own, *(Extracted(each, settings) for each in extractive)]
    evaluation = compare_systems(systems, dataset, "valid", config, out=results_folder(run, dataset, "valid"))
    learn(run, dataset, own.seen)
    invented = evaluation.systems[run.name]["unsupported"] / evaluation.examples
    kind = "name or number" if dataset.recipe.normalize == "none" else "number"  # lower-cased text shows no names
    clusters = [f"{dataset.references(name):,} {name}" for name in ("train", "valid")]
    return AutoResult(run, evaluation, invented, words, f"{dataset.place}: {' and '.join(clusters)} clusters", kind)


def summary_words(dataset: Dataset, limit: int) -> int:
    """Return the words of a usual summary, or more, so that 95 % of the valid examples have a sentence so short.

    Only the first ``limit`` examples are read.
    """
    rows = map(as_sentences, read_examples(dataset, "valid", limit))
    shortest = [min(map(count_words, row["text"])) for row in rows if row["text"]]
    return max(usual_words(dataset, "valid"), ceil(np.quantile(shortest, _FITTING, method="inverted_cdf")))
