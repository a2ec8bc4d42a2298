"""Training the systems of a reproduction, each for the same time, all stages of one together."""

from collections.abc import Iterator
from itertools import islice
from math import ceil
from statistics import fmean, quantiles
from typing import Any

from raysum.auto.choice import TimedStep, timed_steps
from raysum.config.loading import load_config, merge
from raysum.data.dataset import Dataset
from raysum.decode.summarizer import Summarizer
from raysum.evaluate.examples import read_examples
from raysum.evaluate.scorers import score_table, scorers_of
from raysum.research.reproduce.bert import begins
from raysum.research.reproduce.sizes import values_of
from raysum.research.reproduce.systems import System
from raysum.research.reproduce.workspace import Workspace
from raysum.runs.folder import Run
from raysum.runtime.progress import say
from raysum.runtime.storage import read_json, write_json
from raysum.train.fit import train

_TUNED = 0.5  # of the time of a system that is pre-trained; the stages before share the rest
_USED = 0.95  # of the time, by the measured speed: the rate has fallen to 0 just before it is over
_MEASURING, _TIMED = 0.12, 200  # of the time, and steps
_SLOWEST = 3  # times as long as planned, where others keep the machine busy: steps are what makes trainings equal
_BETAS = (0.2, 0.4, 0.6, 0.8, 1.0)  # PHT paper, section 5.3
_FOUND_BY = ["rouge1", "rouge2", "rougeL"]


def stages_of(system: System, seconds: float | None) -> Iterator[tuple[str, str, float | None]]:
    """Run, dataset and seconds of each stage, in their order; the last one is the system itself."""
    name, before = system.name, list[str]()
    part = None if seconds is None else seconds * (1 - _TUNED) / max(len(system.pretrained), 1)
    for corpus in system.pretrained:
        before.append(corpus)
        yield f"{name}.{'-'.join(before)}", corpus, part
    yield name, system.data, seconds if seconds is None or not before else seconds * _TUNED


def train_system(place: Workspace, system: System) -> None:
    """All stages of it that are not trained yet. Raises UserError as training does."""
    start = None
    for name, corpus, seconds in stages_of(system, place.config.seconds):
        if not place.trained(name).is_file():
            preset, values = values_of(system, place.scale)
            preset += "_pretraining" if name != system.name else ""
            places = {"data": str(place.data(corpus)), "out": str(place.run(name).path)}
            values = merge(values, {"train": {"workers": 0, "init_from": start}} | places)
            values = merge(values, begins(place)) if system.name == "bert" else values
            run = train(preset, **merge(values, _paced(place.run(name), preset, values, seconds, place))).run
            write_json(place.trained(name), _told(run))
        start = str(place.run(name).path)


def _paced(run: Run, preset: str, values: dict[str, Any], seconds: float | None, place: Workspace) -> dict[str, Any]:
    """What of a config follows from the ``seconds``: at the size small also the steps, by the speed of a few."""
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
    """Seconds of a step where nothing else keeps the machine busy, as when all systems are to be trained alike: its
    CPU time, which does not grow while it waits, over the CPUs that a step uses at best."""
    at_once = quantiles((step.cpu_seconds / step.seconds for step in timed), n=10)[-1] if len(timed) > 1 else 1.0
    return fmean(step.cpu_seconds for step in timed) / max(at_once, 1.0)


def _told(run: Run) -> dict[str, Any]:
    state = run.checkpoint("latest").state
    return {"seconds": state.get("seconds"), "steps": state["step"], "valid_loss": min(run.validations().values())}


def seconds_of(place: Workspace, system: System) -> float | None:
    """Seconds that its stages were trained for, as measured; None where nothing is trained."""
    names = [name for one in system.trained[:1] for name, _, _ in stages_of(one, place.config.seconds)]
    found = [read_json(place.trained(name)).get("seconds") for name in names if place.trained(name).is_file()]
    return sum(found) if found and all(found) else None


def train_alignment(place: Workspace, system: System) -> None:
    """The attention predictor of a system's run."""
    run = place.run(system.name)
    values: dict[str, Any] = {"data": str(place.data(system.data)), "run": str(run.path), "train": {"workers": 0}}
    if place.config.size == "small":  # as in the quickstart
        few = {"label_examples": 1200, "micro_batches": 1, "steps": 80, "validate_every": 80, "save_every": 80}
        values |= {"train": values["train"] | few, "optim": {"lr": 0.001, "warmup_steps": 10}}
    elif place.config.minutes:
        values["train"]["minutes"] = place.config.minutes
    train("alignment", **values)
    write_json(place.trained(f"{system.name}.alignment"), _told(run.alignment))


def choose_beta(place: Workspace, system: System) -> None:
    """The weight of attention alignment that is the best on the valid split, by mean ROUGE-1, 2 and L."""
    dataset = Dataset.open(place.data(system.data))
    rows = list(islice(read_examples(dataset, "valid"), place.config.limit))
    summarizer = Summarizer.load(place.run(system.name).path)
    found = summarizer.summarize_betas(rows, summarizer.settings, _BETAS, progress=True)
    scorers = scorers_of(["rouge"], "pht-paper")
    values = [float(score_table(rows, one, scorers)[_FOUND_BY].mean(axis=None)) for one in found]
    best = max(range(len(_BETAS)), key=values.__getitem__)
    say(
        f"beta {_BETAS[best]:g} is the best: "
        + ", ".join(f"{b:g} {v:.2f}" for b, v in zip(_BETAS, values, strict=True))
    )
    write_json(
        place.trained(f"{system.name}.beta"),
        {"beta": _BETAS[best], "rouge": dict(zip(map(str, _BETAS), values, strict=True))},
    )


def beta_of(place: Workspace, name: str) -> float:
    return float(read_json(place.trained(f"{name}.beta"))["beta"])
