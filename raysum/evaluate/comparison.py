"""Evaluated systems against each other, from what `raysum evaluate` wrote: no model is loaded."""

import os
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import combinations
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pandas as pd

from raysum.config.problems import did_you_mean
from raysum.errors import UserError
from raysum.evaluate.scorers import FIGURES, HEADLINES
from raysum.metrics.statistics import difference_of
from raysum.runs.folder import Run
from raysum.runtime.remote import is_url, shown
from raysum.runtime.rendering import Grid
from raysum.runtime.run_sync import sync_down
from raysum.runtime.storage import read_json
from raysum.systems import extractive_names, paper_baseline_names

if TYPE_CHECKING:
    from rich.console import Group

SHOWN = (*HEADLINES, "rouge1", "rouge2", "rougeL", "rougeLsum", "support")  # of those that both systems have
_COMPARED = {name: figure for name, figure in FIGURES.items() if figure.below or not figure.above}


@dataclass(frozen=True)
class Comparison:
    """``differences`` of each two systems ("one - other") by metric, with the bounds of the paired bootstrap interval
    (``_low``, ``_high``) and the two-sided p-value (``_p``). ``protocol``: of ROUGE, for all systems."""

    differences: dict[str, dict[str, float]]
    protocol: str
    data: dict[str, str]
    examples: int
    metrics: tuple[str, ...]

    def to_dict(self) -> dict[str, Any]:
        shown = ("differences", "protocol", "data", "examples")
        return {name: getattr(self, name) for name in shown}

    def to_pandas(self) -> pd.DataFrame:
        """A line for each two systems and metric: ``difference``, ``low``, ``high``, ``p``."""
        lines = [
            {"systems": pair, "metric": name, "difference": by[name]}
            | {end: by[f"{name}_{end}"] for end in ("low", "high", "p")}
            for pair, by in self.differences.items()
            for name in self.metrics
            if name in by
        ]
        return pd.DataFrame(lines, columns=["systems", "metric", "difference", "low", "high", "p"])

    def render(self) -> "Group":
        from rich.console import Group

        table = Grid()
        for column in ("", "metric", "difference", "95 % interval", "p"):
            table.add_column(column, justify="left" if column in ("", "metric") else "right", no_wrap=column != "")
        before = ""
        for line in self.to_pandas().to_dict("records"):
            label, digits = FIGURES[line["metric"]].label.strip(), FIGURES[line["metric"]].digits
            value, low, high = (f"{line[end]:+.{digits}f}" for end in ("difference", "low", "high"))
            pair = "" if line["systems"] == before else line["systems"]
            table.add_row(pair, label, value, f"[{low}, {high}]", f"{line['p']:.3f}")
            before = line["systems"]
        told = f"{self.examples} examples of {self.data['split']}, paired; p two-sided, of {len(table.rows)} tests"
        return Group(table, f"{told}\n{self.protocol}")


@dataclass(frozen=True)
class _Evaluated:
    """A folder that `raysum evaluate` wrote; ``name`` is what the user calls it."""

    folder: Path
    name: str

    @cached_property
    def table(self) -> dict[str, Any]:
        found = read_json(self.folder / "table.json")
        if not isinstance(found, dict) or not isinstance(found.get("data"), dict) or not found.get("protocol"):
            raise UserError(f"{self.folder} does not say on which data it was made; repeat its `raysum evaluate`")
        return found

    @cached_property
    def protocol(self) -> str:
        return str(self.table["protocol"]).partition(" | n ")[0]

    @cached_property
    def scores(self) -> dict[str, pd.DataFrame]:
        try:
            found = pd.read_parquet(file := self.folder / "scores.parquet")
            known = found.astype({name: float for name in found.columns if name not in ("id", "system")})
            systems = {str(name): part for name, part in known.groupby("system", sort=False)}
            ids = [part["id"] for part in systems.values()]
        except (OSError, ValueError, TypeError, KeyError) as error:
            raise UserError(f"{file} does not read as scores ({error}); repeat the evaluation") from None
        if any(not one.is_unique or len(one) != self.table.get("examples") for one in ids):
            raise UserError(f"{file} has other examples than its table.json; repeat the evaluation")
        return systems


def compare(*evaluations: str | os.PathLike[str], metrics: Sequence[str] | None = None) -> Comparison:
    """Differences between all systems of ``evaluations``: runs, or folders that `raysum evaluate` wrote.

    Of a run, its evaluation, which must be one, or the one that all the runs given have on the same data and split.
    ``metrics`` are names of figures (:data:`SHOWN` by default).
    Raises UserError naming what was not evaluated on the same examples of the same split, or by another protocol.
    """
    wrong = [name for name in metrics or () if name not in _COMPARED]
    if wrong:
        near = did_you_mean(wrong[0], _COMPARED)
        raise UserError(f"no metric {wrong[0]!r} to compare; {near}there are {', '.join(_COMPARED)}")
    found = _open([sync_down(one) if is_url(one) else Path(one).expanduser() for one in evaluations])
    for other in found[1:]:
        _check_alike(found[0], other)
    systems = _systems(found)
    if len(systems) < 2:
        raise UserError(f"{', '.join(systems)} is one system; name another run or evaluation to compare it with")
    names = tuple(metrics or SHOWN)
    differences = {}
    for (name, scores), (other_name, others) in combinations(systems.items(), 2):
        parts = [difference_of(metric, _COMPARED[metric], scores, others) for metric in names]
        differences[f"{name} - {other_name}"] = {key: value for part in parts for key, value in part.items()}
    first = found[0]
    return Comparison(differences, first.protocol, first.table["data"], first.table["examples"], names)


def _open(places: Sequence[Path]) -> list[_Evaluated]:
    """The evaluations at ``places``: a folder of one, or a run's."""
    choices: dict[Path, set[str]] = {}
    for place in places:
        if not (place / "table.json").is_file():
            within = Run.open(place).evaluation
            made = [file for file in within.rglob("table.json") if "data" in read_json(file)]  # not by older versions
            choices[place] = {str(file.parent.relative_to(within)) for file in made}
            if not choices[place]:
                raise UserError(f"{place} is not evaluated yet; do it with `raysum evaluate {place} --data DATA`")
    common = sorted(set.intersection(*choices.values())) if choices else []
    if choices and len(common) != 1:
        listed = "; ".join(f"{place} has {', '.join(sorted(names))}" for place, names in choices.items())
        raise UserError(f"several evaluations match: {listed}. Name one of each run: RUN/evaluation/DATA/SPLIT")
    return [_Evaluated(Run(p).evaluation / common[0] if p in choices else p, shown(p)) for p in places]


def _check_alike(one: _Evaluated, other: _Evaluated) -> None:
    for key, what in (("fingerprint", "data"), ("split", "split")):
        if one.table["data"].get(key) != other.table["data"].get(key):
            values = (each.table["data"].get(key) for each in (one, other))
            raise UserError("{} and {} are of other {}: {} and {}".format(one.name, other.name, what, *values))
    if one.protocol != other.protocol:
        raise UserError(
            f"{one.name} and {other.name} are scored by other protocols:\n  {one.protocol}\n  {other.protocol}\n"
            "evaluate one again with the other's --protocol"
        )
    ids = [next(iter(each.scores.values()))["id"].tolist() for each in (one, other)]
    if ids[0] != ids[1]:
        raise UserError(
            f"{one.name} has {len(ids[0])} examples, {other.name} {len(ids[1])}, and they are not the same; "
            "evaluate both with the same --limit"
        )


def _systems(found: Sequence[_Evaluated]) -> dict[str, pd.DataFrame]:
    """The scores of all systems, by their names, or EVALUATION: NAME where several have one name.

    One that needs no training, such as lead, is one where it has the same scores everywhere.
    """
    systems: dict[str, pd.DataFrame] = {}
    for name in dict.fromkeys(name for each in found for name in each.scores):
        own = {
            f"{each.name}: {name}": each.scores[name].dropna(axis=1, how="all").reset_index(drop=True)
            for each in found
            if name in each.scores
        }
        first, *others = own.values()
        free = name in (*extractive_names(), *paper_baseline_names())
        if not others or (free and all(map(first.equals, others))):
            own = {name: first}
        systems |= own
    return systems
