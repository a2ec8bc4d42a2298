"""Whether a run was worth its training: beside what takes sentences, and which of them is the one to serve."""

from collections.abc import Iterator
from dataclasses import dataclass
from math import ceil
from typing import TYPE_CHECKING, Any

import numpy as np

from raysum.config.loading import load_config
from raysum.config.sections import LoadConfig
from raysum.data.dataset import Dataset
from raysum.decode.domain_shift import learn
from raysum.decode.summarizer import Summarizer
from raysum.evaluate.config import EvaluateConfig
from raysum.evaluate.evaluation import compare_systems, results_folder
from raysum.evaluate.examples import read_examples, usual_words
from raysum.evaluate.scorers import FIGURES, HEADLINES
from raysum.evaluate.systems import Extracted, System, Watched
from raysum.evaluate.table import Evaluation
from raysum.extract.learning import FEWEST
from raysum.extract.summarizer import extract_settings
from raysum.extract.trained import TrainedExtractive
from raysum.prepare.row_builder import as_sentences
from raysum.runs.folder import Run, RunResult
from raysum.systems import extractive, extractive_names
from raysum.text.tfidf import count_words
from raysum.train import fit

if TYPE_CHECKING:
    from rich.console import Group

EXTRACTOR = "extractor"
_INVENTED = 0.1  # share of summaries that may have a name which no source has
_COMPARED, _COMPARED_TOKENS = (16, 100), 6000  # examples of the valid split; tokens of their summaries, about
_FITTING = 0.95  # share of the clusters that have a sentence within the limit of words


@dataclass(frozen=True)
class AutoResult(RunResult):
    """The run beside systems that take sentences, on the valid split, and the command that serves the best of all."""

    evaluation: Evaluation
    invented: float  # share of the run's summaries with something of that ``kind`` that no source has
    words: int  # of the summaries of systems that take sentences, at most: what the dataset's have on average
    kind: str = "name or number"

    @property
    def best(self) -> str:
        """The run, where it is better beyond doubt and few of its summaries name what no source has.

        By the headline metric of a registered scorer that knows the dataset, else by ROUGE-2.
        """
        run, *others = self.evaluation.systems
        other = max(others, key=lambda name: self.evaluation.systems[name][self.figure])
        ahead = self.evaluation.differences[f"{run} - {other}"][f"{self.figure}_low"] > 0
        return run if ahead and self.invented <= _INVENTED else other

    @property
    def figure(self) -> str:
        """By which systems are compared."""
        systems = self.evaluation.systems.values()
        return next((name for name in HEADLINES if all(name in figures for figures in systems)), "rouge2")

    @property
    def serve(self) -> str:
        if self.best == self.run.name:
            return f"raysum serve {self.run.path}"
        place = self.run.path / EXTRACTOR if self.best == EXTRACTOR else self.best
        return f"raysum serve {place} --set words={self.words}"

    def to_dict(self) -> dict[str, Any]:
        told = {"invented": round(self.invented, 4), "best": self.best, "serve": self.serve}
        return {**super().to_dict(), **self.evaluation.to_dict(), **told}

    def render(self) -> "Group":  # type: ignore[override]
        from rich.console import Group
        from rich.text import Text

        name, figure = self.run.name, FIGURES[self.figure].label
        lines = [f"{100 * self.invented:.0f} % of the summaries of {name} have a {self.kind} that no source has."]
        if self.best == name:
            lines.append(f"{name} has the highest {figure}, beyond doubt. Serve it with")
        else:
            too_much = f"invents too much (above {100 * _INVENTED:.0f} %)"
            why = too_much if self.invented > _INVENTED else f"has no higher {figure} beyond doubt"
            lines.append(f"{self.best} is the one to serve: it invents nothing, and {name} {why}. Serve it with")
        return Group(self.evaluation.render(), Text("\n".join(["", *lines, f"  {self.serve}"])))


def _extractor(run: Run, dataset: Dataset) -> Iterator[TrainedExtractive]:
    """The one that learns in a minute, trained inside ``run``; none where there is too little to learn from."""
    if dataset.references("train") >= FEWEST:
        config = load_config("extractor", (), {"data": dataset.address, "out": str(run.path / EXTRACTOR)})
        yield TrainedExtractive(fit.fit(config), LoadConfig())


def summary_words(dataset: Dataset, limit: int) -> int:
    """The words of a usual summary; more if 5 % of the first ``limit`` valid examples have no sentence so short."""
    rows = map(as_sentences, read_examples(dataset, "valid", limit))
    shortest = [min(map(count_words, row["text"])) for row in rows if row["text"]]
    return max(usual_words(dataset, "valid"), ceil(np.quantile(shortest, _FITTING, method="inverted_cdf")))


def compared(run: Run, dataset: Dataset) -> AutoResult:
    """The run beside what takes sentences, as it is served, on the valid split."""
    summarizer = Summarizer.load(run.path)
    free = [one for one in map(extractive, extractive_names()) if not one.needs_reference and not one.settings]
    mean = max(dataset.lengths("valid")[:, 2].mean(), 1)
    limit = int(np.clip(_COMPARED_TOKENS / mean, *_COMPARED))
    words = summary_words(dataset, limit)
    settings = extract_settings({"words": words})
    config = EvaluateConfig(data=dataset.address, split="valid", limit=limit)
    own = Watched(run.name, summarizer, summarizer.settings)
    systems: list[System] = [own, *(Extracted(one, settings) for one in (*_extractor(run, dataset), *free))]
    evaluation = compare_systems(systems, dataset, "valid", config, out=results_folder(run, dataset, "valid"))
    learn(run, dataset, own.seen)
    invented = evaluation.systems[run.name]["unsupported"] / evaluation.examples
    kind = "name or number" if dataset.recipe.normalize == "none" else "number"  # names are lower-cased like all else
    return AutoResult(run, evaluation, invented, words, kind)
