"""Compare evaluated systems by what `raysum evaluate` saved; no model is loaded."""

import os
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain, combinations
from pathlib import Path
from typing import Any

import pandas as pd
from rich.console import Group

from raysum.config.problems import did_you_mean
from raysum.errors import UserError
from raysum.evaluate.saved import TABLE, SavedEvaluation
from raysum.evaluate.scorers import FIGURES, HEADLINES
from raysum.metrics.statistics import difference_of
from raysum.runs.folder import Run
from raysum.runtime.remote import is_url, shown
from raysum.runtime.rendering import Grid
from raysum.runtime.run_sync import sync_down
from raysum.runtime.storage import read_json
from raysum.systems import extractive_names, paper_baseline_names

SHOWN = (*HEADLINES, "rouge1", "rouge2", "rougeL", "rougeLsum", "support")  # if both systems have them
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
        """Return a row for each two systems and metric: ``difference``, ``low``, ``high``, ``p``."""
        lines = [
            [pair, name, by[name], *(by[f"{name}_{end}"] for end in ("low", "high", "p"))]
            for pair, by in self.differences.items()
            for name in self.metrics
            if name in by
        ]
        return pd.DataFrame(lines, columns=["systems", "metric", "difference", "low", "high", "p"])

    def render(self) -> Group:
        lines, pairs = list[list[str]](), list[str]()
        for pair, metric, *values, p in self.to_pandas().itertuples(index=False):
            figure = FIGURES[metric]
            value, low, high = (f"{value:+.{figure.digits}f}" for value in values)
            lines.append([figure.label.strip(), value, f"[{low}, {high}]", f"{p:.3f}"])
            pairs.append("" if pair in pairs else pair)
        table = pd.DataFrame(lines, pairs, ["metric", "difference", "95 % interval", "p"])
        note = f"{self.examples} examples of {self.data['split']}, paired; p two-sided, of {len(lines)} tests"
        return Group(Grid.of(table, left=["metric"]), f"{note}\n{self.protocol}")


class _Compared(SavedEvaluation):
    """An evaluation to compare; ``name`` is the user's name for it."""

    def __init__(self, folder: Path, name: str):
        super().__init__(folder)
        self.name = name
        if not self.table.data or not self.table.protocol:
            raise UserError(f"{folder} does not contain its data and protocol; repeat its `raysum evaluate`")
        systems = self.scores.groupby("system", sort=False)
        self.systems = {str(system): part for system, part in systems}
        self.ids = next(iter(self.systems.values()))["id"].tolist()
        if any(not part["id"].is_unique or len(part) != self.table.examples for part in self.systems.values()):
            raise UserError(f"{folder} has other scores than its {TABLE}; repeat the evaluation")

    def check_matches(self, other: "_Compared") -> None:
        """Raises UserError if the other evaluation has other data, another protocol or other examples."""
        for key, what in (("fingerprint", "data"), ("split", "splits")):
            own, theirs = self.table.data.get(key), other.table.data.get(key)
            if own != theirs:
                raise UserError(
                    f"{self.name} and {other.name} have different {what}: {own} and {theirs}; evaluate one "
                    "again with the other's data and split"
                )
        own, theirs = self.table.counting, other.table.counting
        if own != theirs:
            raise UserError(
                f"{self.name} and {other.name} are scored by other protocols:\n  {own}\n  {theirs}\n"
                "evaluate one again with the other's --protocol"
            )
        if self.ids != other.ids:
            raise UserError(
                f"{self.name} has {len(self.ids)} examples, {other.name} {len(other.ids)}, and they are not the same; "
                "evaluate both with the same --limit"
            )


def compare(*evaluations: str | os.PathLike[str], metrics: Sequence[str] | None = None) -> Comparison:
    """Return the differences between all systems of ``evaluations``: runs, or folders that `raysum evaluate` wrote.

    A run stands for its only evaluation, or for the only one that all these runs have on the same data and split.
    ``metrics`` are names of figures (:data:`SHOWN` by default).
    Raises UserError if evaluations have different examples or protocols, or are missing.
    """
    if wrong := [name for name in metrics or () if name not in _COMPARED]:
        near = did_you_mean(wrong[0], _COMPARED)
        raise UserError(f"no metric {wrong[0]!r} to compare; {near}there are {', '.join(_COMPARED)}")
    opened = _open([sync_down(one) if is_url(one) else Path(one).expanduser() for one in evaluations])
    for other in opened[1:]:
        opened[0].check_matches(other)
    systems = _systems(opened)
    if len(systems) < 2:
        raise UserError(f"{', '.join(systems)} is one system; name another run or evaluation to compare it with")
    names, differences = tuple(metrics or SHOWN), {}
    for (name, scores), (other_name, others) in combinations(systems.items(), 2):
        gaps = (difference_of(metric, _COMPARED[metric], scores, others).items() for metric in names)
        differences[f"{name} - {other_name}"] = dict(chain.from_iterable(gaps))
    table = opened[0].table
    return Comparison(differences, table.counting, table.data, table.examples, names)


def _open(folders: Sequence[Path]) -> list[_Compared]:
    """Return the evaluations in ``folders``, or those of the runs there."""
    choices: dict[Path, set[str]] = {}
    for folder in folders:
        if not (folder / TABLE).is_file():
            own = Run.open(folder).evaluation
            tables = [file for file in own.rglob(TABLE) if "data" in read_json(file)]  # not of earlier versions
            choices[folder] = {str(file.parent.relative_to(own)) for file in tables}
            if not tables:
                raise UserError(f"{folder} is not evaluated yet; do it with `raysum evaluate {folder} --data DATA`")
    common = sorted(set.intersection(*choices.values())) if choices else [""]
    if len(common) != 1:
        listed = "; ".join(f"{folder} has {', '.join(sorted(names))}" for folder, names in choices.items())
        raise UserError(f"several evaluations match: {listed}. Name one of each run: RUN/evaluation/DATA/SPLIT")
    found = {folder: Run(folder).evaluation / common[0] for folder in choices}
    return [_Compared(found.get(folder, folder), shown(folder)) for folder in folders]


def _systems(opened: Sequence[_Compared]) -> dict[str, pd.DataFrame]:
    """Return the scores of all systems, by their names, or EVALUATION: NAME if several have one name.

    A system that needs no training, such as lead, is included once if it has the same scores everywhere.
    """
    systems: dict[str, pd.DataFrame] = {}
    for name in dict.fromkeys(name for each in opened for name in each.systems):
        having = [each for each in opened if name in each.systems]
        scores = [each.systems[name].dropna(axis=1, how="all").reset_index(drop=True) for each in having]
        is_untrained = name in (*extractive_names(), *paper_baseline_names())
        if len(scores) == 1 or (is_untrained and all(map(scores[0].equals, scores[1:]))):
            systems[name] = scores[0]
        else:
            systems |= {f"{each.name}: {name}": part for each, part in zip(having, scores, strict=True)}
    return systems
