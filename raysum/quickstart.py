"""The whole way on the factbook: corpus, dataset, training, alignment, search for beta, evaluation, a cited summary."""

import shutil
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Group
from rich.text import Text

from raysum.config.loading import load_config
from raysum.data.dataset import Dataset
from raysum.decode.summarizer import Summarizer
from raysum.decode.summary import Summary
from raysum.errors import UserError
from raysum.evaluate.config import EvaluateConfig
from raysum.evaluate.evaluation import compare_systems, results_folder, served_baselines
from raysum.evaluate.systems import Swapped, System, Trained
from raysum.evaluate.table import Evaluation
from raysum.examples.factbook import corpus as factbook
from raysum.examples.factbook.scorer import KEPT
from raysum.prepare.job import prepare
from raysum.runs.folder import Run
from raysum.runtime.progress import Stages, say, span
from raysum.runtime.rendering import Shown
from raysum.runtime.session import make_ready, ray_session
from raysum.runtime.storage import check_vacant
from raysum.train.fit import train
from raysum.tune.results import Adoption
from raysum.tune.search import tune
from raysum.tune.spaces import BETA

CLUSTERS = 16000  # of the train split: each is seen once
_HELD_OUT = 300  # clusters of the valid and of the test split, at most
_PIECES = 2000
_WORKERS = 2
_BETA_EXAMPLES = 100  # of the valid split, decoded with each beta
# Seconds of each stage on two quiet cores, 207 in all, before the model had a copy gate.
_EXPECTED = {"corpus": 6, "prepare": 13, "train": 128, "align": 14, "search": 20, "evaluate": 25, "summarize": 1}


@dataclass(frozen=True)
class QuickstartResult(Shown):
    """The run, what it adopted of the search, the table of systems, a cluster of the test split with its summary."""

    run: Run
    seconds: float
    stages: dict[str, float]  # seconds of each
    adopted: Adoption
    evaluation: Evaluation
    cluster: dict[str, Any]
    summary: Summary

    def to_dict(self) -> dict[str, Any]:
        return {
            "run": str(self.run.path),
            "seconds": round(self.seconds, 1),
            "stages": {name: round(seconds, 1) for name, seconds in self.stages.items()},
            "beta": self.adopted.settings[BETA],
            "adopted": self.adopted.to_dict(),
            **self.evaluation.to_dict(),
            "summary": self.summary.to_dict(),
        }

    def render(self) -> Group:
        """For people: the table, the summary with its notes and support, its sources, and how to serve the run."""
        lines = [f"\n{self.cluster['title']}", *self.summary.render().splitlines()[1:]]
        for document in self.cluster["documents"]:
            lines += [f"  {document['source']}", *(f"    {text}" for text in document["text"].split("\n\n"))]
        spent = ", ".join(f"{name} {seconds:.0f}" for name, seconds in self.stages.items())
        found = str(self.adopted) or f"the best beta was {self.adopted.settings[BETA]:g}"
        lines.append(f"\n{self.seconds:.0f} s in all ({spent}); {found}. Serve this model with")
        lines.append(f"  raysum serve {self.run.path}")
        return Group(self.evaluation.render(), Text("\n".join(lines)))


def quickstart(out: Path, steps: int | None = None, clusters: int = CLUSTERS) -> QuickstartResult:
    """Everything into the folder ``out``, which must be new; ``steps`` of training, ``clusters`` in the corpus.

    Raises UserError where ``out`` is taken or cannot be written.
    """
    began = time.monotonic()
    corpus, data, run_path, found = (out / name for name in ("corpus", "data", "pht", "search"))
    make_ready("search")
    _claim(out)
    held_out = min(_HELD_OUT, clusters // 4)
    stages = Stages(_expected(steps, clusters, held_out))
    say(f"the whole takes about {span(sum(stages.expected.values()))} on two quiet cores")
    with ray_session(cpus=_WORKERS + 2, purpose="search"):
        with stages.stage("corpus", "an invented encyclopedia: sources that state facts, and leads that combine them"):
            factbook.write(corpus, train=clusters, valid=held_out, test=held_out)
        with stages.stage("prepare", "prepare: paragraphs ranked by tf-idf against the title, a vocabulary, shards"):
            prepare(corpus, data, vocab_size=_PIECES, max_paragraphs=10, paragraph_tokens=40, keep=[KEPT])
        with stages.stage("train", f"train a PHT on {_WORKERS} workers with ZeRO-2"):
            length = {"workers": _WORKERS} | ({"steps": steps} if steps else {})
            warmup = load_config("quickstart").optim.warmup_steps
            short = {"warmup_steps": steps // 10} if steps and steps < warmup else {}
            run = train("quickstart", data=str(data), out=str(run_path), train=length, optim=short).run
        with stages.stage("align", "attention alignment: labels by the trained model, then the predictor"):
            # Few labels and steps do: on the factbook the predictor's error stops falling after some 80.
            few = {"workers": 0, "label_examples": 1200, "micro_batches": 1, "steps": min(steps, 50) if steps else 80}
            quick = {"lr": 0.001, "schedule": "linear", "warmup_steps": 10}
            train("alignment", data=str(data), run=str(run_path), train=few, optim=quick)
        with stages.stage("search", "search the weight of attention alignment"):
            tuned = tune("beta", data=str(data), out=str(found), run=str(run_path), examples=_BETA_EXAMPLES)
            assert tuned.adopted, "a decode space adopts settings"
        with stages.stage("evaluate", "evaluate on the test split, of names that training never saw; facts F1 counts"):
            evaluation = _evaluate(run, data, run.decode.beta)
    with stages.stage("summarize", "summarize raw text"):
        cluster = next(factbook.generate("test", 1))
        summary = Summarizer.load(run.path).summarize(cluster["title"], cluster["documents"])
    return QuickstartResult(run, time.monotonic() - began, stages.seconds, tuned.adopted, evaluation, cluster, summary)


def _evaluate(run: Run, data: Path, beta: float) -> Evaluation:
    """The model, the same with alignment if the run adopted a ``beta`` above 0, the control that reads other clusters'
    sources, and the baselines."""
    summarizer = Summarizer.load(run.path)
    plain = summarizer.choose({"beta": 0.0})
    config, dataset = EvaluateConfig(data=str(data), split="test"), Dataset.open(data)
    systems: list[System] = [
        Trained("pht", summarizer, plain),
        *([Trained("pht+align", summarizer, summarizer.choose({"beta": beta}))] if beta else []),
        Swapped("swapped", summarizer, plain),
        *served_baselines(dataset, "test"),
    ]
    return compare_systems(systems, dataset, "test", config, out=results_folder(run, dataset, "test"))


def _claim(out: Path) -> None:
    """Make the folder and one in it, so that it can be written. Raises UserError."""
    check_vacant(out)
    try:
        (out / "corpus").mkdir(parents=True)
    except OSError as error:
        raise UserError(f"cannot write {out}: {error.strerror}; choose another --out") from None
    if shutil.disk_usage(out).free < 1 << 30:
        raise UserError(f"less than 1 GiB is free at {out}; quickstart needs about 0.3 GiB")


def _expected(steps: int | None, clusters: int, held_out: int) -> dict[str, float]:
    """The seconds of each stage on two quiet cores, for that many steps and clusters."""
    shares = {"corpus": clusters / CLUSTERS, "prepare": clusters / CLUSTERS, "evaluate": held_out / _HELD_OUT}
    usual = load_config("quickstart").train.steps
    shares["train"] = 0.1 + 0.9 * (steps or usual) / usual  # its workers start, whatever there is to do
    return {name: max(seconds * shares.get(name, 1.0), 1.0) for name, seconds in _EXPECTED.items()}
