"""Tables of what people found: sheets for judges, and, once these are filled in, the figures."""

import json
from pathlib import Path
from random import Random
from typing import Any

from raysum.errors import UserError
from raysum.research.human.analysis import human_analyze
from raysum.research.human.answers import MARKS, UnansweredStudy
from raysum.research.human.sheets import SHEETS, human_sheets
from raysum.research.reproduce.scoring import folder_of
from raysum.research.reproduce.systems import systems
from raysum.research.reproduce.tables import REFERENCE, PaperTable
from raysum.research.reproduce.workspace import Workspace
from raysum.runtime.storage import read_lines, write_text

AVERAGE = "average"
JUDGES = "judges"
Scores = dict[str, dict[str, float]]  # by system and measure


def people(place: Workspace, table: PaperTable) -> dict[str, Any]:
    """The cells of a table of judgements: ``judges`` where no sheet has an answer yet."""
    lacking = {row.name: place.lacks(systems()[row.system]) for row in table.rows if row.system in systems()}
    judged = [row.system for row in table.rows if lacking.get(row.name) == ""]
    cells: dict[str, list[dict[str, Any]]] = {}
    for row in table.rows:
        cells[row.name] = [{"told": lacking.get(row.name) or JUDGES} for _ in table.columns]
    notes = []
    for study in table.studies:
        scores, note = _study(place, table, study, judged)
        notes += [note] if note else []
        for row in table.rows:
            for column, key in study["columns"].items():
                if scores is None:
                    cells[row.name][table.columns.index(column)] = {"told": "no sheets"}
                elif (value := _value(scores, study, row.system, key)) is not None:
                    divisor = 100 if column in study.get("shares", ()) else study.get("divisor", 1)
                    cells[row.name][table.columns.index(column)] = {"value": value / divisor}
    return {"rows": cells, "notes": notes}


def _study(place: Workspace, table: PaperTable, study: dict[str, Any], judged: list[str]) -> tuple[Scores | None, str]:
    """What the judges of a study found, whose sheets are made if need be, None where they cannot be; and what is still
    to be done for it."""
    folder = place.study(f"{table.id}-{study['design']}")
    again = f"`raysum reproduce {table.id}` with the same settings reads what they hold"
    try:
        if not folder.is_dir():
            _write(place, table, study, judged, folder)
        found = human_analyze(folder)
    except UnansweredStudy:
        return {}, f"Sheets for judges ({study['design']}) are in {folder / SHEETS}; {again}."
    except UserError as error:
        if folder.is_dir():  # a sheet that does not read
            raise
        return None, f"No sheets for judges ({study['design']}): {error}"  # such as no question to ask of these data
    return found.scores, f"Answers wait for marks in {folder / MARKS}; {again}." if found.waiting else ""


def _value(scores: Scores, study: dict[str, Any], system: str, key: str) -> float | None:
    if "sides" in study and scores:  # how many times as often as the first side
        sides = study["sides"]
        own = next(side for side, names in sides.items() if system in names)
        first = scores[next(iter(sides))].get(key)
        return scores[own].get(key, 0.0) / first if first else None
    if system == AVERAGE:
        known = [one[key] for one in scores.values() if key in one]
        return sum(known) / len(known) if known else None
    return scores.get(system, {}).get(key)


def _write(place: Workspace, table: PaperTable, study: dict[str, Any], judged: list[str], folder: Path) -> None:
    """The sheets of a study. Raises UserError as ``human_sheets`` does."""
    folders = [folder_of(place, name, table) for name in judged]
    names = [*judged, *(row.system for row in table.rows if row.system == REFERENCE)]
    if "sides" in study:
        folders, names = [_sides(place, table, study["sides"], folder)], [*study["sides"]]
    examples = sum(1 for _ in read_lines(folders[0] / "outputs.jsonl"))
    settings = {"design": study["design"], "judges": study["judges"], "systems": names, "out": str(folder)}
    if study["design"] == "questions" and place.config.questions:
        settings["questions"] = place.config.questions
    folder.parent.mkdir(exist_ok=True)
    human_sheets(folders, **settings, items=min(study["items"], examples))


def _sides(place: Workspace, table: PaperTable, sides: dict[str, list[str]], folder: Path) -> Path:
    """Outputs as of two systems: of each example a summary by one of each side's systems, drawn."""
    draw = Random(f"raysum sides {table.id}")
    outputs = {
        name: list(read_lines(folder_of(place, name, table) / "outputs.jsonl"))
        for names in sides.values()
        for name in names
    }
    lines = []
    for number, one in enumerate(next(iter(outputs.values()))):
        drawn = {side: draw.choice(names) for side, names in sides.items()}
        lines.append(
            {"id": one["id"], REFERENCE: one[REFERENCE]}
            | {side: outputs[name][number][name] for side, name in drawn.items()}
        )
    made = folder.with_name(f"{folder.name}-summaries")
    made.mkdir(parents=True, exist_ok=True)
    write_text(made / "outputs.jsonl", "".join(json.dumps(line, ensure_ascii=False) + "\n" for line in lines))
    return made
