"""How near each system's attention is to where the reference comes from: Table 4 of the PHT paper, 1 of VHT's."""

from pathlib import Path

import pandas as pd

from raysum.errors import UserError
from raysum.evaluate.table import Evaluation
from raysum.runtime.storage import read_json

_FIGURE = "attention_similarity"


def attention_table(*evaluations: Evaluation | str | Path) -> pd.DataFrame:
    """A line for each system of ``evaluations``, or of the folders they were written to: ``system``, its mean cosine
    ``attention`` (0 to 1) with the bounds of its interval, ``low`` and ``high``, and ``examples``.

    A system that several have, such as lead, is in the first one's line alone.
    Raises UserError for a folder without an evaluation, and a system without the scorer ``attention``.
    """
    lines: dict[str, dict[str, float]] = {}
    for one in evaluations:
        for system, figures in _systems(one).items():
            if _FIGURE not in figures:
                raise UserError(
                    f"{system} was evaluated without the scorer attention; repeat it with --scorers attention"
                )
            bounds = {end: figures[f"{_FIGURE}_{end}"] for end in ("low", "high")}
            lines.setdefault(system, {"attention": figures[_FIGURE], **bounds, "examples": int(figures["examples"])})
    return pd.DataFrame.from_dict(lines, orient="index").rename_axis("system").reset_index()


def _systems(evaluation: Evaluation | str | Path) -> dict[str, dict[str, float]]:
    if isinstance(evaluation, Evaluation):
        return evaluation.systems
    file = Path(evaluation).expanduser() / "table.json"
    if not file.is_file():
        raise UserError(f"{evaluation} is not the folder of an evaluation: it has no {file.name}")
    systems: dict[str, dict[str, float]] = read_json(file)["systems"]
    return systems
