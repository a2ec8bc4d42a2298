"""Runs, searches and evaluations for reports, read from their folders into validated objects."""

import os
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Annotated, Any, TypeVar

import pandas as pd
from pydantic import BaseModel, BeforeValidator, Field, ValidationError

from raysum.data.dataset import MANIFEST, Dataset
from raysum.decode.summary import Sentence
from raysum.errors import UserError
from raysum.runs.folder import Run
from raysum.runtime.progress import say
from raysum.runtime.run_sync import sync_down
from raysum.runtime.storage import read_json, read_lines
from raysum.systems import count_parameters
from raysum.tune.record import Figures, Number, SearchRecord, is_finite, read_search

_Model = TypeVar("_Model", bound=BaseModel)
_WHOLE = 4 << 20  # a larger metrics.jsonl (about 20,000 lines) is sampled
_COLUMNS = ["id", "title", "text", "document", "paragraph", "char_start", "source"]


_Count = Annotated[int, Field(ge=0, le=10**15)]
_Seconds = Annotated[float, Field(ge=0, le=1e10, allow_inf_nan=False)]
_Figure = Annotated[Number | None, BeforeValidator(lambda value: value if is_finite(value) else None)]


class MetricsLine(BaseModel):
    """A line of metrics.jsonl, about some steps of training or a validation."""

    step: _Count
    loss: _Figure = None
    valid_loss: _Figure = None
    lr: _Figure = None
    tokens_per_s: _Figure = None
    seconds: _Seconds | None = None
    grad_norm: _Figure = None
    peak_rss_mb: _Figure = None


class CheckpointState(BaseModel, extra="allow"):
    """The state.json of a checkpoint."""

    step: _Count = 0
    seconds: _Seconds = 0.0
    source_tokens: _Count = 0
    target_tokens: _Count = 0
    padding: _Count = 0
    stepped: _Seconds = 0.0
    waited: _Seconds = 0.0


class ScoreTable(BaseModel):
    """The table.json of an evaluation."""

    systems: dict[str, Figures]
    differences: dict[str, Figures] = {}
    protocol: str = ""
    examples: _Count
    how: dict[str, str] = {}


class Notes(BaseModel):
    """The sentences, citations and support of a system's summary, from outputs.jsonl."""

    sentences: list[Sentence]
    support: float | None = None
    warnings: list[str] = []
    attention: list[float] = []


class Output(BaseModel, extra="allow"):
    """A line of outputs.jsonl; its other keys are the summaries of the systems."""

    id: str
    reference: str
    notes: dict[str, Notes] = {}

    def text(self, system: str) -> str:
        return str((self.model_extra or {}).get(system, ""))


@dataclass(frozen=True)
class ShownExample:
    """An example of an evaluation: its outputs, its ROUGE-2 by system, and its row of the dataset if available."""

    why: str
    output: Output
    rouge2: dict[str, float]
    row: dict[str, Any] | None = None


@dataclass(frozen=True)
class Evaluated:
    """An evaluation: its table, the words of each summary by system (and of the references), and chosen examples."""

    name: str
    path: Path
    table: ScoreTable
    words: dict[str, list[int]] = field(default_factory=dict)
    examples: list[ShownExample] = field(default_factory=list)


@dataclass(frozen=True)
class RunRecord:
    """A run: its metrics, the step of its best checkpoint, its number of parameters and its evaluations.

    ``predictor`` are the metrics of its attention predictor, ``state`` is the state of its newest checkpoint.
    """

    name: str
    run: Run
    lines: list[MetricsLine]
    predictor: list[MetricsLine]
    parameters: int
    best: int | None
    state: dict[str, Any]
    evaluations: list[Evaluated]

    @property
    def validations(self) -> dict[int, float]:
        """Return the validation loss by step; the last one of a step counts."""
        return {line.step: line.valid_loss for line in self.lines if line.valid_loss is not None}


@dataclass(frozen=True)
class Gathered:
    """The content of a report."""

    runs: list[RunRecord]
    searches: list[SearchRecord]
    evaluations: list[Evaluated]  # of the runs, and named ones


def gather(paths: Sequence[str | os.PathLike[str]]) -> Gathered:
    """Return the runs with their evaluations, the searches with their best runs, and the evaluations in ``paths``.

    Raises UserError if a folder is none of these, or a file is damaged.
    """
    runs: dict[Path, RunRecord] = {}
    searches: dict[Path, SearchRecord] = {}
    evaluations: dict[Path, Evaluated] = {}
    for name in paths:
        path = sync_down(name)
        if (path / "search.yaml").is_file():
            searches[path] = read_search(path)
            if best := _best_run(path):
                runs.setdefault(best.path, _run(best))
        elif (path / "config.yaml").is_file():
            runs[path] = _run(Run.open(path))
        elif (path / "table.json").is_file():
            run = Run(path.parents[2])
            evaluations[path] = _evaluation(path, run if run.exists else None)
        else:
            problem = "has no run, search or evaluation" if path.exists() else "does not exist"
            raise UserError(f"{name} {problem}; name a folder that `raysum train`, `tune` or `evaluate` wrote")
    named = _with_unique_names([*runs.values()])
    own = {evaluation.path: evaluation for run in named for evaluation in run.evaluations}
    return Gathered(named, [*searches.values()], [*(own | evaluations).values()])


def _with_unique_names(runs: list[RunRecord]) -> list[RunRecord]:
    """Return the runs; names that occur twice get the name of the folder around them."""
    names = Counter(run.name for run in runs)
    return [_prefixed(run, f"{run.run.path.parent.name}/") if names[run.name] > 1 else run for run in runs]


def _prefixed(run: RunRecord, prefix: str) -> RunRecord:
    evaluations = [replace(evaluation, name=prefix + evaluation.name) for evaluation in run.evaluations]
    return replace(run, name=prefix + run.name, evaluations=evaluations)


def _best_run(search: Path) -> Run | None:
    """Return the best run of a search that has ended, or None if it is missing."""
    try:
        return Run.resolve(search)
    except UserError:
        return None


def _run(run: Run) -> RunRecord:
    evaluations = [_evaluation(file.parent, run) for file in sorted(run.evaluation.glob("*/*/table.json"))]
    return replace(read_training(run), parameters=count_parameters(run.config.model), evaluations=evaluations)


def read_training(run: Run) -> RunRecord:
    """Return the run without its number of parameters and its evaluations, which take longer."""
    checkpoints = run.checkpoints()
    return RunRecord(
        name=run.name,
        run=run,
        lines=_lines(run.metrics),
        predictor=_lines(run.alignment.metrics),
        parameters=0,
        best=run.best().step if checkpoints else None,
        state=_checked(CheckpointState, checkpoints[-1].state, checkpoints[-1].path / "state.json").model_dump()
        if checkpoints
        else {},
        evaluations=[],
    )


def _lines(file: Path) -> list[MetricsLine]:
    """Return all validations, and the other lines; of a long file only some of them."""
    every = 1 + file.stat().st_size // _WHOLE if file.is_file() else 1
    return [_checked(MetricsLine, line, file) for line in read_lines(file, b'"valid_', every)]


def _checked(kind: type[_Model], value: Any, file: Path) -> _Model:
    """Return ``value`` as ``kind``. Raises UserError with the ``file`` and the wrong part."""
    try:
        return kind.model_validate(value)
    except ValidationError as error:
        first = error.errors()[0]
        key = ".".join(map(str, first["loc"])) or "its beginning"
        raise UserError(
            f"{file} is damaged at {key}: {first['msg']}; restore it from a copy, or make it again"
        ) from None


def _evaluation(path: Path, run: Run | None) -> Evaluated:
    table = _checked(ScoreTable, read_json(path / "table.json"), path / "table.json")
    scores, main, file = _rouge2(path / "scores.parquet"), next(iter(table.systems), ""), path / "outputs.jsonl"
    reasons, outputs = _chosen(scores, main), dict[str, Output]()
    words: dict[str, list[int]] = {}
    for number, value in enumerate(read_lines(file)):
        output = _checked(Output, value, file)
        texts = {"reference": output.reference} | {name: output.text(name) for name in table.systems}
        for name, text in texts.items():
            words.setdefault(name, []).append(len(text.split()))
        if output.id in reasons or (not scores and number < 3):
            outputs[output.id] = output
    if not words:
        say(f"{file} is {'empty' if file.is_file() else 'missing'}: no summaries are shown; evaluate once more")
    rows = _rows(path, run, set(outputs))
    order = [name for name in reasons if name in outputs] or [*outputs]
    examples = [ShownExample(reasons.get(x, ""), outputs[x], scores.get(x, {}), rows.get(x)) for x in order]
    parts = (run.name, *path.parts[-2:]) if run else path.parts[-2:]
    return Evaluated(" / ".join(parts), path, table, words, examples)


def _chosen(scores: dict[str, dict[str, float]], main: str) -> dict[str, str]:
    """Return the chosen examples with the reason: the highest, middle and lowest ROUGE-2 of the system ``main``."""
    ordered = sorted((name for name in scores if main in scores[name]), key=lambda name: -scores[name][main])
    reasons = {len(ordered) - 1: "lowest", len(ordered) // 2: "middle", 0: "highest"} if ordered else {}
    return {ordered[index]: f"{reasons[index]} ROUGE-2" for index in sorted(reasons)}


def _rouge2(file: Path) -> dict[str, dict[str, float]]:
    """Return ROUGE-2 by example and system."""
    if not file.is_file():
        return {}
    try:
        scores = pd.read_parquet(file, columns=["id", "system", "rouge2"])
    except KeyError:
        return {}
    except Exception as error:  # damaged files raise any exception; without ROUGE there is no such column
        if "rouge2" in str(error):
            return {}
        raise UserError(
            f"{file} cannot be read ({type(error).__name__}); repeat the `raysum evaluate` command"
        ) from None
    rouge2: dict[str, dict[str, float]] = {}
    for name, system, value in scores.itertuples(index=False):
        rouge2.setdefault(str(name), {})[str(system)] = float(value)
    return rouge2


def _rows(path: Path, run: Run | None, names: set[str]) -> dict[str, dict[str, Any]]:
    """Return the examples ``names`` of the evaluated dataset, if the run was trained on it and it still exists."""
    folder = Path(run.config.data) if run and run.config.data else None
    if folder is None or not (folder / MANIFEST).is_file():
        return {}
    try:
        dataset, split = Dataset.open(folder), path.name.split("-")[0]
        if dataset.fingerprint[:8] != path.parent.name.rpartition("-")[2] or split not in dataset.manifest["splits"]:
            return {}
        return {row["id"]: row for row in dataset.read(split, _COLUMNS) if row["id"] in names}
    except UserError as error:
        say(f"{error}. The report quotes the sources of {path} without it")
        return {}
