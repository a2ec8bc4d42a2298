"""The summaries of the systems of a reproduction, and their scores: each decoded once, kept with its outputs."""

from pathlib import Path
from typing import Any

from raysum.config.sections import LoadConfig
from raysum.data.dataset import Dataset
from raysum.decode.summarizer import Summarizer
from raysum.evaluate.config import EvaluateConfig
from raysum.evaluate.evaluation import compare_systems
from raysum.evaluate.systems import Extracted, Trained, strategies
from raysum.evaluate.systems import System as Evaluated
from raysum.extract.summarizer import Extractor
from raysum.research.reproduce.tables import RANKER, PaperTable, System, systems
from raysum.research.reproduce.training import beta_of
from raysum.research.reproduce.workspace import Workspace
from raysum.systems import PAPER

_SCORERS = ["rouge", "attention"]


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
