"""The systems behind the rows, and what has to be trained for each."""

from dataclasses import dataclass, field
from functools import cache
from typing import Any

from raysum.research.reproduce.tables import PaperTable, read_own

RANKER = "ranker"


@dataclass(frozen=True)
class System:
    """One of ``systems.yaml``. It ``extracts`` without training, or is trained by a ``preset``, or decodes the ``run``
    of another system in its own way: with other ``decode`` settings, or by a ``strategy``."""

    name: str
    preset: str = ""
    data: str = "ranked"
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
        """Return the systems with the runs that it decodes, its own run first."""
        if self.extracts:
            return []
        return [systems()[self.run or self.name], *([systems()[RANKER]] if self.strategy else [])]


@cache
def systems() -> dict[str, System]:
    """All of them by name."""
    return {name: System(name, **told) for name, told in read_own("systems.yaml").items()}


def needed(table: PaperTable) -> list[System]:
    """The systems of a table; none of efficiency, which is of fresh weights."""
    return [systems()[name] for name in table.systems if name in systems() and table.measure != "efficiency"]


def datasets_of(system: System) -> list[str]:
    """The datasets it reads, the one it is evaluated on last."""
    own = systems()[system.run].data if system.run else system.data
    return [*system.pretrained, *(one.data for one in system.trained if one is not system), own]


# Seconds on two quiet cores, of the quickstart's factbook: of preparing, and beside the training of a system.
PREPARE, START, ALIGN, SCORE, MEASURE = 40.0, 6.0, 15.0, 6.0, 60.0


def expected(tables: list[PaperTable], seconds: float) -> float:
    """How long ``tables`` take, from raw data, where each system is trained for so many ``seconds``."""
    used = {one.name: one for table in tables for one in needed(table)}.values()
    runs = {run.name for one in used for run in one.trained}
    datasets = {"ranked", *(name for one in used for name in datasets_of(one))}
    measures = {table.measure if table.measure == "efficiency" else table.id for table in tables}
    slow = [name for name in measures if name in ("efficiency", "ht-1", "pht-6", "pht-figure-2")]
    aligned = ALIGN + SCORE if any(one.strategy for one in used) else 0.0
    return (
        PREPARE * len(datasets)
        + (seconds + START) * len(runs)
        + aligned
        + SCORE * len(used)
        + MEASURE * (len(slow) + ("efficiency" in slow))
    )
