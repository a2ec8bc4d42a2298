"""raysum: train, tune and serve hierarchical multi-document summarizers on Ray.

>>> import raysum
>>> raysum.prepare(["clusters.jsonl"], "data", valid=0.05, test=0.05)
>>> raysum.train("pht", data="data", out="runs/pht", train={"steps": 2000})
>>> raysum.evaluate("runs/pht", "data", split="test").to_pandas()
>>> raysum.load("runs/pht").summarize("Florence", ["text of a document", "text of another"]).summary

Verbs have the names and settings of the command line; nothing heavy is imported before one is called.
"""

from importlib import import_module
from pkgutil import resolve_name
from typing import TYPE_CHECKING, Any

from raysum.runtime.processes import let_threads_sleep

if TYPE_CHECKING:
    from raysum.evaluate.comparison import compare as compare
    from raysum.evaluate.evaluation import evaluate as evaluate
    from raysum.extract.outline import outline as outline
    from raysum.extract.summarizer import load as load
    from raysum.prepare.job import prepare as prepare
    from raysum.report.page import report as report
    from raysum.report.status import status as status
    from raysum.research.human.analysis import human_analyze as human_analyze
    from raysum.research.human.sheets import human_sheets as human_sheets
    from raysum.research.reproduce.job import reproduce as reproduce
    from raysum.serve.app import serve as serve
    from raysum.serve.batches import summarize_files as summarize_files
    from raysum.serve.client import AsyncClient as AsyncClient
    from raysum.serve.client import Client as Client
    from raysum.teach.job import teach as teach
    from raysum.train.fit import train as train
    from raysum.tune.search import tune as tune

let_threads_sleep()

__version__ = "0.1.0"
# Verbs without a room of their own, and the client.
_FUNCTIONS = {
    "AsyncClient": "raysum.serve.client:AsyncClient",
    "Client": "raysum.serve.client:Client",
    "compare": "raysum.evaluate.comparison:compare",
    "human_analyze": "raysum.research.human.analysis:human_analyze",
    "human_sheets": "raysum.research.human.sheets:human_sheets",
    "outline": "raysum.extract.outline:outline",
    "load": "raysum.extract.summarizer:load",
    "reproduce": "raysum.research.reproduce.job:reproduce",
    "summarize_files": "raysum.serve.batches:summarize_files",
    "status": "raysum.report.status:status",
}
__all__ = [*_FUNCTIONS, "evaluate", "prepare", "report", "serve", "teach", "train", "tune"]  # noqa: PLE0604


def __getattr__(name: str) -> Any:
    """Import a verb, or the client, when it is used first."""
    if name in _FUNCTIONS:
        return resolve_name(_FUNCTIONS[name])
    if name in __all__:
        return import_module(f"raysum.{name}")
    raise AttributeError(f"module 'raysum' has no attribute {name!r}")


def __dir__() -> list[str]:
    return [*__all__, "__version__"]
