"""Tables of what people found: sheets for judges, and, once these are filled in, the figures."""

import json
from pathlib import Path
from random import Random
from typing import Any

from raysum.errors import UserError
from raysum.human.analysis import human_analyze
from raysum.human.sheets import SHEETS, human_sheets
from raysum.reproduce.place import Place
from raysum.reproduce.scoring import folder_of
from raysum.reproduce.systems import systems
from raysum.reproduce.tables import REFERENCE, Table
from raysum.runtime.storage import read_lines, write_text

AVERAGE = "average"


def people(place: Place, table: Table) -> dict[str, Any]:
    """The cells of a table of judgements: ``judges`` where no sheet has an answer yet."""
    judged = [row.system for row in table.rows if row.system in systems() and not place.lacks(systems()[row.system])]
    cells: dict[str, list[dict[str, Any]]] = {
        row.name: [{"told": "judges"} for _ in table.columns] for row in table.rows
    }
    notes = []
    for study in table.studies:
        folder = place.study(f"{table.id}-{study['design']}")
        if not folder.is_dir():
            _write(place, table, study, judged, folder)
        scores = _scores(folder)
        if scores is None:
            told = f"raysum reproduce {table.id} again, with the same settings, fills this table"
            notes.append(f"Sheets for judges ({study['design']}): {folder / SHEETS}; once filled in there, {told}.")
        for row in table.rows:
            for column, key in study["columns"].items():
                place_of = table.columns.index(column)
                if row.system in systems() and place.lacks(systems()[row.system]):
                    cells[row.name][place_of] = {"told": place.lacks(systems()[row.system])}
                elif scores is not None and (value := _value(scores, study, row.system, key)) is not None:
                    divisor = 100 if column in study.get("shares", ()) else study.get("divisor", 1)
                    cells[row.name][place_of] = {"value": value / divisor}
    return {"rows": cells, "notes": notes}


def _value(scores: dict[str, dict[str, float]], study: dict[str, Any], system: str, key: str) -> float | None:
    if "sides" in study:  # how many times as often as the other side
        sides = study["sides"]
        own = next(side for side, names in sides.items() if system in names)
        first = scores[next(iter(sides))].get(key)
        return scores[own].get(key, 0.0) / first if first else None
    if system == AVERAGE:
        known = [one[key] for one in scores.values() if key in one]
        return sum(known) / len(known) if known else None
    return scores.get(system, {}).get(key)


def _write(place: Place, table: Table, study: dict[str, Any], judged: list[str], folder: Path) -> None:
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


def _sides(place: Place, table: Table, sides: dict[str, list[str]], folder: Path) -> Path:
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


def _scores(folder: Path) -> dict[str, dict[str, float]] | None:
    """What the judges of a study found; None where none has answered yet."""
    try:
        return human_analyze(folder).scores
    except UserError as error:
        if "has an answer yet" in str(error):
            return None
        raise
