"""What can be reproduced: the papers' tables with their figures, and the systems behind the rows."""

from dataclasses import dataclass, field
from functools import cache
from importlib import resources
from typing import Annotated, Any, Literal

from pydantic import Field

from raysum.config.base import Section
from raysum.config.loading import parse_yaml
from raysum.config.problems import did_you_mean
from raysum.errors import UserError

ALL = "all"
REFERENCE = "reference"  # the summary by people
RANKER = "ranker"
BASE = "ranked"  # the dataset whose vocabulary all others have

# What the tables call the papers.
PAPERS = {
    "HT": "Hierarchical Transformers for Multi-Document Summarization (Liu and Lapata, 2019)",
    "VHT": "Parallel and Vertical Hierarchical Transformers (Ma and Zong, 2020)",
    "PHT": "Parallel Hierarchical Transformer with Attention Alignment (Ma et al.)",
    "HIBERT": "HIBERT (Zhang et al., 2019)",
}

# Seconds on two quiet cores, of the quickstart's factbook: of preparing, and beside the training of a system.
SECONDS = {"prepare": 40.0, "start": 6.0, "align": 15.0, "evaluate": 6.0, "measure": 60.0}
_MEASURED = {"recall": 1, "compression": 1, "ranks": 1, "efficiency": 2}  # how often as long as a measure


class ReproduceConfig(Section):
    """The settings of `raysum reproduce`."""

    data: str = Field(description="raw clusters, as for prepare, with splits train, valid and test")
    out: str = Field(description="folder to write; the same command resumes there")
    minutes: Annotated[float, Field(gt=0, le=10**6)] | None = Field(
        None, description="training time of each system; default: 0.5 for size=small, otherwise as in the papers"
    )
    size: Literal["small", "paper"] = Field(
        "small", description="small: the papers' layers, narrow, with lengths scaled to the data; or paper"
    )
    limit: int = Field(100, gt=0, le=10**9, description="summarized examples of a split, from the first")
    open: str | None = Field(None, description="other raw text, HIBERT's open domain; by default raysum's own corpora")
    bert: str | None = Field(None, description="folder of a published BERT, for its row")
    questions: str | None = Field(
        None, description="CSV of id, question, answer for HT's QA; by default the factbook's facts"
    )
    memory: Annotated[int, Field(gt=0, le=10**7)] | None = Field(
        None, description="MiB for the largest batch (efficiency); default: 1024 for size=small, otherwise 2048"
    )

    @property
    def seconds(self) -> float | None:
        """The training time of each system, with all its stages; None: as in the presets."""
        minutes = 0.5 if self.minutes is None and self.size == "small" else self.minutes
        return None if minutes is None else 60 * minutes


@dataclass(frozen=True)
class System:
    """One of ``systems.yaml``. It ``extracts`` without training, or is trained by a ``preset``, or decodes the ``run``
    of another system in its own way: with other ``decode`` settings, or by a ``strategy``."""

    name: str
    preset: str = ""
    data: str = BASE
    model: dict[str, Any] = field(default_factory=dict)
    source: dict[str, Any] = field(default_factory=dict)
    small: dict[str, Any] | None = None  # preset and sections in place of what the size small makes of them
    pretrained: list[str] = field(default_factory=list)  # the corpora it is pre-trained on, one after the other
    extracts: str = ""
    run: str = ""
    decode: dict[str, Any] = field(default_factory=dict)
    strategy: str = ""
    note: str = ""

    @property
    def trained(self) -> list["System"]:
        """The systems with the runs that it decodes, its own run first."""
        if self.extracts:
            return []
        return [systems()[self.run or self.name], *([systems()[RANKER]] if self.strategy else [])]

    @property
    def datasets(self) -> list[str]:
        """The datasets it reads, the one it is evaluated on last."""
        own = systems()[self.run].data if self.run else self.data
        return [*self.pretrained, *(one.data for one in self.trained if one is not self), own]


@dataclass(frozen=True)
class TableRow:
    name: str
    system: str  # of systems.yaml, or a name that the table's measure knows
    paper: list[float | None]  # by the table's columns


@dataclass(frozen=True)
class PaperTable:
    """``measure`` names the way to its cells (see ``measures.py``)."""

    id: str
    paper: str
    about: str
    measure: str
    columns: list[str]
    rows: list[TableRow]
    protocol: str = "google"
    split: str = "test"
    system: str | None = None  # the one that the whole table is about
    studies: list[dict[str, Any]] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    def row(self, name: str) -> TableRow:
        """Return a row, or one without figures if the paper does not have it."""
        return next((row for row in self.rows if row.name == name), TableRow(name, "", [None] * len(self.columns)))

    @property
    def needed(self) -> list[System]:
        """The systems to make; none of efficiency, which is of fresh weights."""
        names = [self.system] if self.system else dict.fromkeys(row.system for row in self.rows)
        return [systems()[name] for name in names if name in systems() and self.measure != "efficiency"]


@cache
def systems() -> dict[str, System]:
    """Return all systems by name."""
    return {name: System(name, **values) for name, values in _read("systems.yaml").items()}


@cache
def tables() -> dict[str, PaperTable]:
    """Return all tables by id."""
    found = {}
    for id, values in _read("tables.yaml").items():
        rows = [TableRow(str(name), str(system), figures) for name, system, *figures in values["rows"]]
        found[id] = PaperTable(id, **values | {"rows": rows})
    return found


def _read(name: str) -> dict[str, Any]:
    return parse_yaml(resources.files(__package__).joinpath(name).read_text(encoding="utf-8"), name)[0]


def chosen(names: str) -> list[PaperTable]:
    """Return the tables of a list such as ``ht-2,ht-3``, or ``all``. Raises UserError for an unknown name."""
    known = tables()
    asked = [*known] if names == ALL else [name.strip() for name in names.split(",") if name.strip()]
    for name in asked or [names]:
        if name not in known:
            near = did_you_mean(name, known)
            message = f"no table {name!r}; {near}there are {', '.join(known)}, and all (see raysum reproduce --list)"
            raise UserError(message)
    return [known[name] for name in dict.fromkeys(asked)]


def expected(some: list[PaperTable], seconds: float) -> float:
    """Return the seconds that tables take, from raw data, if each system is trained for so many ``seconds``."""
    used = {one.name: one for table in some for one in table.needed}.values()
    runs = {run.name for one in used for run in one.trained}
    datasets = {BASE, *(name for one in used for name in one.datasets)}
    aligned = SECONDS["align"] + SECONDS["evaluate"] if any(one.strategy for one in used) else 0.0
    measures = sum(_MEASURED.get(measure, 0) for measure in {table.measure for table in some})
    training = (seconds + SECONDS["start"]) * len(runs) + aligned
    evaluation = SECONDS["evaluate"] * len(used) + SECONDS["measure"] * measures
    return SECONDS["prepare"] * len(datasets) + training + evaluation
