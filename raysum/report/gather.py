"""Runs, searches and evaluations for reports, read from their folders into validated objects when they are needed."""

import os
from collections import Counter
from collections.abc import Container, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any

import pandas as pd
from pydantic import BaseModel, BeforeValidator, Field

from raysum.data.dataset import MANIFEST, Dataset
from raysum.decode.summary import Sentence, Summary
from raysum.errors import UserError
from raysum.evaluate.saved import TABLE, Number, SavedEvaluation, checked, is_finite
from raysum.extract.explanation import Explanation, explanation_of
from raysum.runs.folder import Run
from raysum.runtime.progress import say
from raysum.runtime.run_sync import sync_down
from raysum.runtime.storage import read_lines
from raysum.systems import count_parameters
from raysum.train.job_spec import out_of_patience
from raysum.tune.record import SearchRecord, read_search

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


class NotedSummary(Summary):
    """The sentences, citations and support of a system's summary, from outputs.jsonl."""

    id: str = ""
    summary: str = ""
    sentences: list[Sentence] = []
    attention: list[float] = []
    score: float = 0.0


class Output(BaseModel, extra="allow"):
    """A line of outputs.jsonl; its other keys are the summaries of the systems."""

    id: str
    reference: str
    notes: dict[str, NotedSummary] = {}

    def text(self, system: str) -> str:
        return str((self.model_extra or {}).get(system, ""))


@dataclass(frozen=True)
class ShownExample:
    """An example of an evaluation: its outputs, its ROUGE-2 by system, and its row of the dataset if available."""

    why: str
    output: Output
    rouge2: dict[str, float]
    row: dict[str, Any] | None = None


class EvaluationRecord(SavedEvaluation):
    """An evaluation: ``words`` of each summary by system (and of the references), and chosen ``examples``."""

    def __init__(self, folder: Path, run: Run | None, prefix: str = ""):
        super().__init__(folder)
        self.name = " / ".join([*([prefix + run.name] if run else []), *folder.parts[-2:]])
        file, outputs, words = folder / "outputs.jsonl", dict[str, Output](), list[dict[str, int]]()
        rouge2 = self._rouge2()
        reasons = self._chosen(rouge2)
        for number, value in enumerate(read_lines(file)):
            output = checked(Output, value, file)
            texts = {"reference": output.reference} | {name: output.text(name) for name in self.table.systems}
            words.append({name: len(text.split()) for name, text in texts.items()})
            if output.id in reasons or (rouge2.empty and number < 3):
                outputs[output.id] = output
        if not words:
            say(f"{file} is {'empty' if file.is_file() else 'missing'}: no summaries are shown; evaluate once more")
        rows, self.words, self.examples = self._rows(run, outputs), pd.DataFrame(words), list[ShownExample]()
        for name in [name for name in reasons if name in outputs] or outputs:
            scores: Any = rouge2.T.get(name, pd.Series(dtype=float)).dropna().to_dict()
            self.examples.append(ShownExample(reasons.get(name, ""), outputs[name], scores, rows.get(name)))

    def _rouge2(self) -> pd.DataFrame:
        """Return ROUGE-2 by example and system; an empty table if it is unknown."""
        if not (self.folder / "scores.parquet").is_file() or "rouge2" not in self.scores:
            return pd.DataFrame()
        return self.scores.astype({"id": str}).pivot_table("rouge2", "id", "system", sort=False)

    def _chosen(self, rouge2: pd.DataFrame) -> dict[str, str]:
        """Return the examples with the highest, middle and lowest ROUGE-2 of the first system, with that reason."""
        scores = rouge2.get(next(iter(self.table.systems), ""), pd.Series(dtype=float)).dropna()
        order = scores.sort_values(ascending=False, kind="stable").index
        if order.empty:
            return {}
        reasons = {len(order) - 1: "lowest", len(order) // 2: "middle", 0: "highest"}
        return {order[number]: f"{reasons[number]} ROUGE-2" for number in sorted(reasons)}

    def _rows(self, run: Run | None, names: Container[str]) -> dict[str, dict[str, Any]]:
        """Return the examples ``names`` of the dataset, if the run was trained on it and it still exists."""
        folder = Path(run.config.data) if run and run.config.data else None
        if folder is None or not (folder / MANIFEST).is_file():
            return {}
        split, name = self.folder.name.split("-")[0], self.folder.parent.name
        try:
            dataset = Dataset.open(folder)
            if dataset.fingerprint[:8] != name.rpartition("-")[2] or split not in dataset.manifest["splits"]:
                return {}
            return {row["id"]: row for row in dataset.read(split, _COLUMNS) if row["id"] in names}
        except UserError as error:
            say(f"{error}. The report quotes the sources of {self.folder} without it")
            return {}


class RunRecord:
    """A run: its metrics, the state of its newest checkpoint, and its evaluations. ``prefix`` makes its name unique.

    Reading raises UserError if a file is damaged.
    """

    def __init__(self, run: Run, prefix: str = ""):
        self.run, self.prefix, self.name = run, prefix, prefix + run.name
        self.lines, self.predictor = _lines(run.metrics), _lines(run.alignment.metrics)
        checkpoints = run.checkpoints()
        self.best, self.state = None, dict[str, Any]()  # the step of the best checkpoint
        if checkpoints:
            newest = checkpoints[-1]
            self.best = run.best().step
            self.state = checked(CheckpointState, newest.state, newest.path / "state.json").model_dump()

    @cached_property
    def parameters(self) -> int:
        return count_parameters(self.run.config.model)

    @cached_property
    def evaluations(self) -> list[EvaluationRecord]:
        tables = sorted(self.run.evaluation.glob(f"*/*/{TABLE}"))
        return [EvaluationRecord(file.parent, self.run, self.prefix) for file in tables]

    @cached_property
    def explanation(self) -> Explanation | None:
        """The features and cues of a trained extractor; None for other and older runs."""
        return explanation_of(self.run)

    @property
    def validations(self) -> dict[int, float]:
        """The validation loss by step; the last one of a step counts."""
        known = self.lines.dropna(subset="valid_loss")
        return dict(zip(known["step"].tolist(), known["valid_loss"].tolist(), strict=True))

    @property
    def step(self) -> int:
        return max([self.state.get("step", 0), *self.lines["step"].tolist()])

    @property
    def seconds(self) -> float:
        """The training time."""
        return max([self.state.get("seconds", 0.0), *self.lines["seconds"].dropna()])

    @property
    def is_finished(self) -> bool:
        """Whether the training has ended by its own limits, or its search has ended."""
        settings = self.run.config.train
        is_over = bool(settings.minutes and self.seconds >= 60 * settings.minutes) or self.step >= settings.steps
        if self.run.search and (end := self.run.search / "best.json").is_file():  # the search may have stopped it
            starts = (event.time for event in self.run.events() if event.event == "start")
            is_over |= max(starts, default=0.0) <= end.stat().st_mtime  # otherwise it was trained further
        if self.best is None or self.lines.empty or self.run.config.model.TRAINER or is_over:
            return self.best is not None
        return out_of_patience(settings.patience, self.run.validation_scores(settings), self.step)

    def state_name(self, running: bool) -> str:
        return "running" if running else "finished" if self.is_finished else "interrupted"


def _lines(file: Path) -> pd.DataFrame:
    """Return all validations, and the other lines (of a long file only some), with the columns of MetricsLine."""
    every = 1 + file.stat().st_size // _WHOLE if file.is_file() else 1
    lines = [checked(MetricsLine, line, file).model_dump() for line in read_lines(file, b'"valid_', every)]
    columns = {name: float for name in MetricsLine.model_fields} | {"step": int}
    return pd.DataFrame(lines, columns=[*columns]).astype(columns)


@dataclass(frozen=True)
class Gathered:
    """The content of a report."""

    runs: list[RunRecord]
    searches: list[SearchRecord]
    evaluations: list[EvaluationRecord]  # of the runs, and named ones


def gather(paths: Sequence[str | os.PathLike[str]]) -> Gathered:
    """Return the runs with their evaluations, the searches with their best runs, and the evaluations in ``paths``.

    Raises UserError if a folder is none of these, or a file is damaged.
    """
    runs: dict[Path, Run] = {}
    searches: dict[Path, SearchRecord] = {}
    named: dict[Path, EvaluationRecord] = {}
    for name in paths:
        path = sync_down(name)
        if (path / "search.yaml").is_file():
            searches[path] = read_search(path)
            with suppress(UserError):  # the search has not ended, or its best run is missing
                best = Run.resolve(path)
                runs.setdefault(best.path, best)
        elif (path / "config.yaml").is_file():
            runs[path] = Run.open(path)
        elif (path / TABLE).is_file():
            run = Run(path.parents[2])
            named[path] = EvaluationRecord(path, run if run.exists else None)
        else:
            problem = "has no run, search or evaluation" if path.exists() else "does not exist"
            raise UserError(f"{name} {problem}; name a folder that `raysum train`, `tune` or `evaluate` wrote")
    names = Counter(run.name for run in runs.values())
    records = [RunRecord(run, f"{run.path.parent.name}/" if names[run.name] > 1 else "") for run in runs.values()]
    own = {evaluation.folder: evaluation for record in records for evaluation in record.evaluations}
    return Gathered(records, [*searches.values()], [*(own | named).values()])
