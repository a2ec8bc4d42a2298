"""The papers' tables: ids, captions, figures, and the system of each row."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cache
from importlib import resources
from typing import Any

from raysum.config.loading import parse_yaml
from raysum.config.problems import did_you_mean
from raysum.errors import UserError

ALL = "all"
REFERENCE = "reference"  # the summary by people

# What the tables call the papers.
PAPERS = {
    "HT": "Hierarchical Transformers for Multi-Document Summarization (Liu and Lapata, 2019)",
    "VHT": "Parallel and Vertical Hierarchical Transformers (Ma and Zong, 2020)",
    "PHT": "Parallel Hierarchical Transformer with Attention Alignment (Ma et al.)",
    "HIBERT": "HIBERT (Zhang et al., 2019)",
}


@dataclass(frozen=True)
class TableRow:
    name: str
    system: str  # of systems.yaml, or what the table's measure makes of it
    paper: list[float | None]  # by the table's columns


@dataclass(frozen=True)
class PaperTable:
    """``measure`` says how its cells come about (see ``measures.py``)."""

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

    @property
    def systems(self) -> list[str]:
        """What must be there to fill it."""
        return [self.system] if self.system else list(dict.fromkeys(row.system for row in self.rows))


@cache
def tables() -> dict[str, PaperTable]:
    """All of them by id."""
    found = read_own("tables.yaml")
    return {name: PaperTable(name, **told | {"rows": [*_rows(told["rows"])]}) for name, told in found.items()}


def read_own(name: str) -> dict[str, Any]:
    """A YAML file of this room."""
    return parse_yaml(resources.files(__package__).joinpath(name).read_text(encoding="utf-8"), name)[0]


def _rows(rows: list[list[Any]]) -> Iterator[TableRow]:
    return (TableRow(str(name), str(system), figures) for name, system, *figures in rows)


def chosen(names: str) -> list[PaperTable]:
    """The tables of a list such as ``ht-2,ht-3``, or ``all``. Raises UserError naming what is none."""
    known = tables()
    asked = [*known] if names == ALL else [name.strip() for name in names.split(",") if name.strip()]
    wrong = [name for name in asked if name not in known]
    if wrong or not asked:
        name = wrong[0] if wrong else names
        near = did_you_mean(name, known)
        raise UserError(f"no table {name!r}; {near}there are {', '.join(known)}, and all (see raysum reproduce --list)")
    return [known[name] for name in dict.fromkeys(asked)]
