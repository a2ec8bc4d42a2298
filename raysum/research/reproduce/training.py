"""Training the systems of a reproduction, each for the same time, all stages of one together; and their evaluation."""

from collections.abc import Iterator
from itertools import islice
from math import ceil
from pathlib import Path
from statistics import fmean, quantiles
from typing import Any

from raysum.auto.choice import TimedStep, timed_steps
from raysum.config.loading import load_config, merge
from raysum.config.sections import LoadConfig
from raysum.data.dataset import Dataset
from raysum.decode.summarizer import Summarizer
from raysum.errors import UserError
from raysum.evaluate.config import EvaluateConfig
from raysum.evaluate.evaluation import compare_systems
from raysum.evaluate.examples import read_examples
from raysum.evaluate.scorers import score_table, scorers_of
from raysum.evaluate.systems import Extracted, Trained, strategies
from raysum.evaluate.systems import System as Evaluated
from raysum.extract.summarizer import Extractor
from raysum.models.systems.specs import SIZES
from raysum.research.reproduce.tables import RANKER, PaperTable, System, systems
from raysum.research.reproduce.workspace import Scale, Workspace
from raysum.runs.folder import Run
from raysum.runtime.progress import say
from raysum.runtime.storage import read_json, write_json
from raysum.systems import PAPER
from raysum.train.fit import train

_TUNED = 0.5  # of the time of a system that is pre-trained; the stages before share the rest
_USED = 0.95  # of the time, by the measured speed: the rate has fallen to 0 just before it is over
_MEASURING, _TIMED = 0.12, 200  # of the time, and steps
_SLOWEST = 3  # times as long as planned, where others keep the machine busy: steps are what makes trainings equal
_BETAS = (0.2, 0.4, 0.6, 0.8, 1.0)  # PHT paper, section 5.3
_FOUND_BY = ["rouge1", "rouge2", "rougeL"]
# Of the preset quickstart: all that is no layer, letter, position or copy gate of a model, and how it is trained.
_WIDTHS = {"width", "ffn", "heads", "pooling_heads", "norm", "tied_output"}
_WIDTHS |= {"dropout", "attention_dropout", "ffn_dropout"}
_TRAINING = ("label_smoothing", "validate_examples", "keep")
# A quarter of the quickstart's step: in half a minute so many more steps learn more (PHT on 240,000 tokens of the
# factbook: a validation loss of 2.70, and of 3.22 in steps of 4,000).
_FEW = {"micro_batches": 1, "batch_tokens": 1000}
_SCORERS = ["rouge", "attention"]
_SMALL_BERT = {"model": {"layers": 2, "width": 128, "ffn": 512, "heads": 4}, "optim": {"lr": 0.001}}


def values_of(system: System, scale: Scale) -> tuple[str, dict[str, Any]]:
    """Return the preset of a system and its changed sections, without steps and paths."""
    if scale.target is None:
        return system.preset, {"model": system.model, "source": system.source}
    if system.small is not None:
        sections = dict(system.small)
        return sections.pop("preset"), sections
    quick, paper = load_config("quickstart"), load_config(system.preset, (), {"source": system.source})
    own = paper.model.model_dump() | system.model
    widths = {name: value for name, value in quick.model.model_dump().items() if name in _WIDTHS and name in own}
    read = {name: getattr(paper.source, name) for name in ("max_paragraphs", "max_tokens")}
    lengths: dict[str, Any] = {name: own[name] for name in ("block", "segment", "memory") if name in own}
    return system.preset, {
        "model": scale.scaled(lengths) | widths | system.model,
        "source": scale.scaled(read) | {"target_tokens": scale.target},
        "decode": {
            "min_length": round(paper.decode.min_length * scale.target / paper.source.target_tokens),
            "max_length": min(paper.decode.max_length, ceil(1.25 * scale.target)),
        },
        "train": _FEW | {name: getattr(quick.train, name) for name in _TRAINING},
        "optim": quick.optim.model_dump(),
        "deepspeed": {"gradient_clipping": 1.0},
    }


def stages_of(system: System, seconds: float | None) -> Iterator[tuple[str, str, float | None]]:
    """Yield run, dataset and seconds of each stage, in their order; the last one is the system itself."""
    name, before = system.name, list[str]()
    part = None if seconds is None else seconds * (1 - _TUNED) / max(len(system.pretrained), 1)
    for corpus in system.pretrained:
        before.append(corpus)
        yield f"{name}.{'-'.join(before)}", corpus, part
    yield name, system.data, seconds if seconds is None or not before else seconds * _TUNED


def train_system(place: Workspace, system: System) -> None:
    """Train all stages of a system that are not trained yet. Raises UserError as training does."""
    start = None
    for name, corpus, seconds in stages_of(system, place.config.seconds):
        if not place.trained(name).is_file():
            preset, values = values_of(system, place.scale)
            preset += "_pretraining" if name != system.name else ""
            paths = {"data": str(place.data(corpus)), "out": str(place.run(name).path)}
            values = merge(values, {"train": {"workers": 0, "init_from": start}} | paths)
            if system.name == "bert":
                values = merge(values, _published(place.config.bert) if place.config.bert else _SMALL_BERT)
            run = train(preset, **merge(values, _paced(place.run(name), preset, values, seconds, place))).run
            write_json(place.trained(name), _summary(run))
        start = str(place.run(name).path)


def _published(folder: str) -> dict[str, Any]:
    """Return the config sections for published weights. Raises UserError if their folder has no sizes."""
    values = read_json(Path(folder) / "config.json")
    if not isinstance(values, dict):
        raise UserError(f"{folder}/config.json has no sizes of a BERT")
    sizes = {own: values[name] for own, name in SIZES.items() if name in values}
    return {"model": sizes, "train": {"init_from": folder}}


def _paced(run: Run, preset: str, values: dict[str, Any], seconds: float | None, place: Workspace) -> dict[str, Any]:
    """Return the changes of a config by the ``seconds``: at the size small also the steps, by the speed of a few."""
    if seconds is None:
        return {}
    limit: dict[str, Any] = {"train": {"minutes": seconds / 60}}
    if place.config.size == "paper":
        return limit
    if run.exists:  # it was interrupted
        steps = run.config.train.steps
    else:
        config = load_config(preset, (), merge(values, limit))
        timed = timed_steps(Dataset.open(values["data"]), config, _MEASURING, _TIMED)
        steps = max(1, int(_USED * seconds / _undisturbed(timed[1:] or timed)))
    every = ceil(steps / min(max(int(seconds / 30), 1), 10))
    often = {"steps": steps, "validate_every": every, "save_every": every, "log_every": ceil(steps / 50)}
    return {"train": {"minutes": _SLOWEST * seconds / 60} | often, "optim": {"warmup_steps": ceil(steps / 10)}}


def _undisturbed(timed: list[TimedStep]) -> float:
    """Return the seconds of a step if nothing else kept the machine busy, so that all systems are trained alike: its
    CPU time, which does not grow while it waits, over the CPUs that a step uses at best."""
    at_once = quantiles((step.cpu_seconds / step.seconds for step in timed), n=10)[-1] if len(timed) > 1 else 1.0
    return fmean(step.cpu_seconds for step in timed) / max(at_once, 1.0)


def _summary(run: Run) -> dict[str, Any]:
    state = run.checkpoint("latest").state
    return {"seconds": state.get("seconds"), "steps": state["step"], "valid_loss": min(run.validations().values())}


def seconds_of(place: Workspace, system: System) -> float | None:
    """Return the measured seconds of training of all stages; None if nothing is trained."""
    names = [name for one in system.trained[:1] for name, _, _ in stages_of(one, place.config.seconds)]
    found = [read_json(place.trained(name)).get("seconds") for name in names if place.trained(name).is_file()]
    return sum(found) if found and all(found) else None


def train_alignment(place: Workspace, system: System) -> None:
    """Train the attention predictor of a system's run."""
    run = place.run(system.name)
    values: dict[str, Any] = {"data": str(place.data(system.data)), "run": str(run.path), "train": {"workers": 0}}
    if place.config.size == "small":  # as in the quickstart
        few = {"label_examples": 1200, "micro_batches": 1, "steps": 80, "validate_every": 80, "save_every": 80}
        values |= {"train": values["train"] | few, "optim": {"lr": 0.001, "warmup_steps": 10}}
    elif place.config.minutes:
        values["train"]["minutes"] = place.config.minutes
    train("alignment", **values)
    write_json(place.trained(f"{system.name}.alignment"), _summary(run.alignment))


def choose_beta(place: Workspace, system: System) -> None:
    """Choose the weight of attention alignment by mean ROUGE-1, 2 and L on the valid split."""
    dataset = Dataset.open(place.data(system.data))
    rows = list(islice(read_examples(dataset, "valid"), place.config.limit))
    summarizer = Summarizer.load(place.run(system.name).path)
    summaries = summarizer.summarize_betas(rows, summarizer.settings, _BETAS, progress=True)
    scorers = scorers_of(["rouge"], "pht-paper")
    values = {
        beta: float(score_table(rows, one, scorers)[_FOUND_BY].mean(axis=None))
        for beta, one in zip(_BETAS, summaries, strict=True)
    }
    best = max(values, key=values.__getitem__)
    say(f"beta {best:g} is the best: " + ", ".join(f"{beta:g} {value:.2f}" for beta, value in values.items()))
    rouge = {str(beta): value for beta, value in values.items()}
    write_json(place.trained(f"{system.name}.beta"), {"beta": best, "rouge": rouge})


def beta_of(place: Workspace, name: str) -> float:
    return float(read_json(place.trained(f"{name}.beta"))["beta"])


def evaluate_system(place: Workspace, system: System, table: PaperTable) -> None:
    """Decode and score a split with a system, by the table's protocol."""
    data = place.data(system.datasets[-1])
    settings: dict[str, Any] = {"protocol": table.protocol, "scorers": _SCORERS, "limit": place.config.limit}
    config = EvaluateConfig(data=str(data), split=table.split, **settings)
    folder = folder_of(place, system.name, table)
    compare_systems([_built(place, system, table)], Dataset.open(data), table.split, config, out=folder)


def folder_of(place: Workspace, name: str, table: PaperTable) -> Path:
    """Return the folder of the evaluation of the system ``name`` by the table's protocol."""
    served = _extracted(systems()[name], table) != systems()[name].extracts
    parent = place.out / "evaluations" / f"{table.protocol}-{table.split}-{place.config.limit}"
    return parent / (f"{name}-served" if served else name)


def _extracted(system: System, table: PaperTable) -> str:
    """Return the extractive system of a row: whole sentences for judges, the paper's word-cut baseline for ROUGE."""
    return system.extracts.removesuffix(PAPER) if table.studies else system.extracts


def _built(place: Workspace, system: System, table: PaperTable) -> Evaluated:
    """Return the system, ready to summarize rows, under its own name."""
    if system.extracts:
        return Extracted.named(_extracted(system, table))
    run = place.run(system.run or system.name)
    if run.config.model.extracts:
        one = Extractor.trained(run, LoadConfig())
        return Extracted(one.system, one.settings)
    decode = place.scale.scaled(system.decode)
    if system.strategy:  # as in `raysum evaluate --terms`, with the weight from the valid split
        decode |= {"ranker": str(place.run(RANKER).path), "beta": beta_of(place, system.run)}
    summarizer = Summarizer.of(run.path, LoadConfig(decode=decode))
    settings = summarizer.settings
    if system.strategy:
        settings = {one.name: one.settings for one in strategies(summarizer)}[system.strategy]
    return Trained(system.name, summarizer, settings)
