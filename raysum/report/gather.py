"""What a report tells of runs, searches and evaluations: read from their folders into plain objects, checked."""

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
_WHOLE = 4 << 20  # bytes of metrics.jsonl that are read whole: some 20,000 lines
_COLUMNS = ["id", "title", "text", "document", "paragraph", "char_start", "source"]


_Count = Annotated[int, Field(ge=0, le=10**15)]
_Seconds = Annotated[float, Field(ge=0, le=1e10, allow_inf_nan=False)]
_Figure = Annotated[Number | None, BeforeValidator(lambda value: value if is_finite(value) else None)]


class Line(BaseModel):
    """One of metrics.jsonl: of some steps of training, or of a validation."""

    step: _Count
    loss: _Figure = None
    valid_loss: _Figure = None
    lr: _Figure = None
    tokens_per_s: _Figure = None
    seconds: _Seconds | None = None
    grad_norm: _Figure = None
    peak_rss_mb: _Figure = None


class State(BaseModel, extra="allow"):
    """state.json of a checkpoint."""

    step: _Count = 0
    seconds: _Seconds = 0.0
    source_tokens: _Count = 0
    target_tokens: _Count = 0
    padding: _Count = 0
    stepped: _Seconds = 0.0
    waited: _Seconds = 0.0


class Table(BaseModel):
    """table.json."""

    systems: dict[str, Figures]
    differences: dict[str, Figures] = {}
    protocol: str = ""
    examples: _Count
    how: dict[str, str] = {}


class Notes(BaseModel):
    """What outputs.jsonl tells of a system's summary."""

    sentences: list[Sentence]
    support: float | None = None
    warnings: list[str] = []
    attention: list[float] = []


class Output(BaseModel, extra="allow"):
    """A line of outputs.jsonl: further keys are the systems' summaries."""

    id: str
    reference: str
    notes: dict[str, Notes] = {}

    def text(self, system: str) -> str:
        return str((self.model_extra or {}).get(system, ""))


@dataclass(frozen=True)
class Example:
    """One example of an evaluation: its outputs, its ROUGE-2 by system, its row of the dataset where that was found."""

    why: str
    output: Output
    rouge2: dict[str, float]
    row: dict[str, Any] | None = None


@dataclass(frozen=True)
class Evaluated:
    """An evaluation: its table, words of each summary by system (and of the references), chosen examples."""

    name: str
    path: Path
    table: Table
    words: dict[str, list[int]] = field(default_factory=dict)
    examples: list[Example] = field(default_factory=list)


@dataclass(frozen=True)
class Trained:
    """A run: its metrics, what its best checkpoint and its model are, its evaluations.

    ``predictor`` are the metrics of its attention predictor, ``state`` is what its newest checkpoint counted.
    """

    name: str
    run: Run
    lines: list[Line]
    predictor: list[Line]
    parameters: int
    best: int | None
    state: dict[str, Any]
    evaluations: list[Evaluated]

    @property
    def validations(self) -> dict[int, float]:
        """Loss by step; the last word on a step counts."""
        return {line.step: line.valid_loss for line in self.lines if line.valid_loss is not None}


@dataclass(frozen=True)
class Gathered:
    """All that a report tells."""

    runs: list[Trained]
    searches: list[SearchRecord]
    evaluations: list[Evaluated]  # those of the runs, and those that were named


def gather(paths: Sequence[str | os.PathLike[str]]) -> Gathered:
    """What the folders ``paths`` hold: runs with their evaluations, searches with their best runs, evaluations.

    Raises UserError where one is none of these, or something in it does not read.
    """
    runs: dict[Path, Trained] = {}
    searches: dict[Path, SearchRecord] = {}
    evaluations: dict[Path, Evaluated] = {}
    for given in paths:
        path = sync_down(given)
        if (path / "search.yaml").is_file():
            searches[path] = read_search(path)
            if found := _best_run(path):
                runs.setdefault(found.path, _run(found))
        elif (path / "config.yaml").is_file():
            runs[path] = _run(Run.open(path))
        elif (path / "table.json").is_file():
            around = Run(path.parents[2])
            evaluations[path] = _evaluation(path, around if around.exists else None)
        else:
            told = "holds no run, search or evaluation" if path.exists() else "does not exist"
            raise UserError(f"{given} {told}; name what `raysum train`, `tune` or `evaluate` wrote")
    named = _apart([*runs.values()])
    own = {one.path: one for run in named for one in run.evaluations}
    return Gathered(named, [*searches.values()], [*(own | evaluations).values()])


def _apart(runs: list[Trained]) -> list[Trained]:
    """Those of the same name are told apart by the folders that they are in."""
    names = Counter(run.name for run in runs)
    return [_prefixed(run, f"{run.run.path.parent.name}/") if names[run.name] > 1 else run for run in runs]


def _prefixed(run: Trained, prefix: str) -> Trained:
    evaluations = [replace(one, name=prefix + one.name) for one in run.evaluations]
    return replace(run, name=prefix + run.name, evaluations=evaluations)


def _best_run(search: Path) -> Run | None:
    """The best run of a search, where it has ended and the run is still there."""
    try:
        return Run.resolve(search)
    except UserError:
        return None


def _run(run: Run) -> Trained:
    evaluations = [_evaluation(file.parent, run) for file in sorted(run.evaluation.glob("*/*/table.json"))]
    return replace(read_training(run), parameters=count_parameters(run.config.model), evaluations=evaluations)


def read_training(run: Run) -> Trained:
    """The run without what takes longer to know: its parameters and evaluations."""
    checkpoints = run.checkpoints()
    return Trained(
        name=run.name,
        run=run,
        lines=_lines(run.metrics),
        predictor=_lines(run.alignment.metrics),
        parameters=0,
        best=run.best().step if checkpoints else None,
        state=_checked(State, checkpoints[-1].state, checkpoints[-1].path / "state.json").model_dump()
        if checkpoints
        else {},
        evaluations=[],
    )


def _lines(file: Path) -> list[Line]:
    """All validations; of a long file only some of the other lines."""
    every = 1 + file.stat().st_size // _WHOLE if file.is_file() else 1
    return [_checked(Line, line, file) for line in read_lines(file, b'"valid_', every)]


def _checked(kind: type[_Model], value: Any, file: Path) -> _Model:
    """``value`` as ``kind``. Raises UserError where something in it is wrong, naming that and the ``file``."""
    try:
        return kind.model_validate(value)
    except ValidationError as error:
        first = error.errors()[0]
        place = ".".join(map(str, first["loc"])) or "its beginning"
        raise UserError(f"{file} is damaged at {place}: {first['msg']}; put back a copy, or make it again") from None


def _evaluation(path: Path, run: Run | None) -> Evaluated:
    table = _checked(Table, read_json(path / "table.json"), path / "table.json")
    scores, main, file = _rouge2(path / "scores.parquet"), next(iter(table.systems), ""), path / "outputs.jsonl"
    reasons, kept = _chosen(scores, main), dict[str, Output]()
    words: dict[str, list[int]] = {}
    for number, value in enumerate(read_lines(file)):
        one = _checked(Output, value, file)
        texts = {"reference": one.reference} | {name: one.text(name) for name in table.systems}
        for name, text in texts.items():
            words.setdefault(name, []).append(len(text.split()))
        if one.id in reasons or (not scores and number < 3):
            kept[one.id] = one
    if not words:
        say(f"{file} is {'empty' if file.is_file() else 'missing'}: no summaries are shown; evaluate once more")
    rows = _rows(path, run, set(kept))
    order = [name for name in reasons if name in kept] or [*kept]
    examples = [Example(reasons.get(x, ""), kept[x], scores.get(x, {}), rows.get(x)) for x in order]
    parts = (run.name, *path.parts[-2:]) if run else path.parts[-2:]
    return Evaluated(" / ".join(parts), path, table, words, examples)


def _chosen(scores: dict[str, dict[str, float]], main: str) -> dict[str, str]:
    """Examples that are shown, and why: where the system ``main`` has its highest, middle and lowest ROUGE-2."""
    ordered = sorted((name for name in scores if main in scores[name]), key=lambda name: -scores[name][main])
    places = {len(ordered) - 1: "lowest", len(ordered) // 2: "middle", 0: "highest"} if ordered else {}
    return {ordered[place]: f"{places[place]} ROUGE-2" for place in sorted(places)}


def _rouge2(file: Path) -> dict[str, dict[str, float]]:
    """By example and system."""
    if not file.is_file():
        return {}
    try:
        scores = pd.read_parquet(file, columns=["id", "system", "rouge2"])
    except KeyError:
        return {}
    except Exception as error:  # damaged files raise anything; without ROUGE there is no such column
        if "rouge2" in str(error):
            return {}
        raise UserError(
            f"{file} does not read ({type(error).__name__}); repeat the `raysum evaluate` command"
        ) from None
    found: dict[str, dict[str, float]] = {}
    for name, system, value in scores.itertuples(index=False):
        found.setdefault(str(name), {})[str(system)] = float(value)
    return found


def _rows(path: Path, run: Run | None, names: set[str]) -> dict[str, dict[str, Any]]:
    """The examples ``names`` of the dataset that the evaluation at ``path`` is of, if the run was trained on it and it
    is still there."""
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
