"""What the systems of a reproduction write, and the scores of it: each decoded once, kept with its outputs."""

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
from raysum.research.reproduce.sizes import decoding
from raysum.research.reproduce.systems import RANKER, System, datasets_of, systems
from raysum.research.reproduce.tables import PaperTable
from raysum.research.reproduce.training import beta_of
from raysum.research.reproduce.workspace import Workspace
from raysum.runtime.storage import read_json
from raysum.systems import PAPER

_SCORERS = ["rouge", "attention"]


def evaluate_system(place: Workspace, system: System, table: PaperTable) -> None:
    """Decode and score a split with a system, by the table's protocol."""
    data = place.data(datasets_of(system)[-1])
    settings: dict[str, Any] = {"protocol": table.protocol, "scorers": _SCORERS, "limit": place.config.limit}
    config = EvaluateConfig(data=str(data), split=table.split, **settings)
    folder = folder_of(place, system.name, table)
    compare_systems([_built(place, system, table)], Dataset.open(data), table.split, config, out=folder)


def folder_of(place: Workspace, name: str, table: PaperTable) -> Path:
    """Return the folder of the evaluation of the system ``name`` by the table's protocol."""
    system = systems()[name]
    served = bool(system.extracts) and _extracted(system, table) != system.extracts
    return place.evaluation(f"{name}-served" if served else name, table.protocol, table.split)


def _extracted(system: System, table: PaperTable) -> str:
    """Return the extractive system of a row: whole sentences for judges, the paper's word-cut baseline for ROUGE."""
    return system.extracts.removesuffix(PAPER) if table.studies else system.extracts


def evaluated(place: Workspace, name: str, table: PaperTable) -> dict[str, Any]:
    """What :func:`evaluate_system` found: as ``Evaluation.to_dict()`` has it."""
    found: dict[str, Any] = read_json(folder_of(place, name, table) / "table.json")
    return found


def _built(place: Workspace, system: System, table: PaperTable) -> Evaluated:
    """The system, ready to summarize rows, under its own name."""
    if system.extracts:
        return Extracted.named(_extracted(system, table))
    run = place.run(system.run or system.name)
    if run.config.model.extracts:
        one = Extractor.trained(run, LoadConfig())
        return Extracted(one.system, one.settings)
    decode = decoding(system, place.scale)
    if system.strategy:
        decode |= strategy_settings(place, system)
    summarizer = Summarizer.of(run.path, LoadConfig(decode=decode))
    if not system.strategy:
        return Trained(system.name, summarizer, summarizer.settings)
    (found,) = (one for one in strategies(summarizer) if one.name == system.strategy)
    return Trained(system.name, summarizer, found.settings)


def strategy_settings(place: Workspace, system: System) -> dict[str, Any]:
    """Return the settings of ``raysum evaluate --terms``: the ranker, and the weight from the valid split."""
    return {"ranker": str(place.run(RANKER).path), "beta": beta_of(place, system.run)}
