"""The sheets of a study: a CSV and a page with the same tasks for each judge, and a separate key."""

import hashlib
import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from random import Random
from typing import Any

from raysum.config.loading import section_of
from raysum.config.signatures import with_settings
from raysum.errors import UserError
from raysum.research.human.assignment import JudgeTask, tasks_of
from raysum.research.human.config import SheetsConfig
from raysum.research.human.designs import DESIGNS, Asked, Design
from raysum.research.human.outputs import REFERENCE, JudgedItem, read_items, read_questions, scorers_questions
from raysum.research.human.page import sheet_page
from raysum.research.human.spreadsheet import write_table
from raysum.runtime.checksums import sealed
from raysum.runtime.rendering import Shown
from raysum.runtime.storage import new_folder, write_json, write_text

KEY = "key.json"
SHEETS = "sheets"
GIVEN = ("study", "judge", "task")  # the columns that identify a row
COMMENT = "comment"


@dataclass(frozen=True)
class Sheets(Shown):
    """The study in folder ``out``: ``tasks`` of each of ``judges``, about ``items`` and summaries of ``systems``."""

    out: str
    study: str
    design: str
    systems: list[str]
    items: int
    judges: int
    tasks: int

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)

    def render(self) -> str:
        return (
            f"{self.judges} sheets of {self.tasks} tasks ({self.design}, {self.items} examples); "
            f"systems: {', '.join(self.systems)}\n"
            f"Give each judge one sheet of {self.out}/{SHEETS}: the page (.html) or the table (.csv), never {KEY}.\n"
            f"Put what comes back into {self.out}/{SHEETS}, then: raysum human analyze {self.out}"
        )


@with_settings(SheetsConfig)
def human_sheets(evaluations: str | Path | Sequence[str | Path], **settings: Any) -> Sheets:
    """Write sheets for judges of the summaries in evaluation folders.

    Sheets name no system: a summary is at position A, B, ... of a task, and only ``key.json`` has its system. Raises
    UserError if folders do not match, examples are too few, or no question is about them.

    >>> raysum.human_sheets("runs/pht/evaluation/data-1f/test", design="best-worst", out="study")
    """
    config = section_of(SheetsConfig, settings)
    design = DESIGNS[config.design]
    folders = [evaluations] if isinstance(evaluations, (str, Path)) else list(evaluations)
    known = {item.id: item for item in read_items(folders, config.systems)}
    questions = _questions(config, known)
    items = _drawn(config, [name for name in known if not questions or name in questions])
    systems = sorted(known[items[0]].summaries)
    if len(systems) > design.most and config.design == "ranking":
        raise UserError(f"{len(systems)} systems are too many to rank; name some with --systems")
    counts = {name: len(asked) for name, asked in questions.items()}
    sheets = tasks_of(design, items, systems, config.judges, counts, config.seed)
    key: dict[str, Any] = {
        "design": config.design,
        "seed": config.seed,
        "systems": systems,
        "questions": {name: questions[name] for name in items if name in questions},
        "judges": {f"judge-{n}": [asdict(task) for task in sheet] for n, sheet in enumerate(sheets, 1)},
    }
    asked = design.asked(len(sheets[0][0].systems))
    judged = [asdict(known[name]) for name in items]
    digest = hashlib.blake2b(json.dumps([key, judged], sort_keys=True).encode(), digest_size=5).hexdigest()
    study = f"s{digest}"  # digits alone, or with an e, a spreadsheet would write as another number
    with new_folder(Path(config.out)) as folder:
        write_json(folder / KEY, sealed({"study": study, **key}))
        (folder / SHEETS).mkdir()
        write_text(folder / SHEETS / "instructions.txt", _legend(design, asked))
        for judge, sheet in zip(key["judges"], sheets, strict=True):
            texts = [_shown(design, known[one.item], one, questions) for one in sheet]
            _write(folder / SHEETS, design, study, judge, asked, texts)
    return Sheets(config.out, study, config.design, systems, len(items), config.judges, max(map(len, sheets)))


def _questions(config: SheetsConfig, known: dict[str, JudgedItem]) -> dict[str, list[tuple[str, str]]]:
    if config.design != "questions":
        if config.questions:
            raise UserError(f"--questions is of the design `questions`, not of {config.design}; leave it out")
        return {}
    if config.systems and REFERENCE in config.systems:
        raise UserError("questions are about the reference; leave it out of --systems")
    return read_questions(config.questions, known.values()) if config.questions else scorers_questions(known.values())


def _drawn(config: SheetsConfig, names: list[str]) -> list[str]:
    if len(names) < config.items:
        raise UserError(f"there are {len(names)} examples to draw from, not {config.items}; give --items {len(names)}")
    return Random(f"raysum items {config.seed}").sample(names, config.items)


def _shown(
    design: Design, item: JudgedItem, task: JudgeTask, questions: dict[str, list[tuple[str, str]]]
) -> dict[str, str]:
    """The texts of a task, by column."""
    reference = {REFERENCE: item.reference} if design.shows_reference and REFERENCE not in item.summaries else {}
    places = design.places(len(task.systems))
    texts = {place: item.summaries[one] or "(empty)" for place, one in zip(places, task.systems, strict=True)}
    return reference | texts | ({"question": questions[item.id][task.question][0]} if task.question is not None else {})


def _write(
    folder: Path, design: Design, study: str, judge: str, asked: list[Asked], tasks: list[dict[str, str]]
) -> None:
    columns = [*(one.column for one in asked), COMMENT]
    rows = ([study, judge, str(number), *texts.values(), *[""] * len(columns)] for number, texts in enumerate(tasks, 1))
    write_table(folder / f"{judge}.csv", [*GIVEN, *tasks[0], *columns], rows)
    write_text(folder / f"{judge}.html", sheet_page(study, judge, design.instruction, asked, tasks, COMMENT))


def _legend(design: Design, asked: list[Asked]) -> str:
    """What a judge who fills in the table must know: the columns, and the answers there are."""
    lines = [design.instruction, "", "Columns to fill in (the comment may stay empty); leave the others as they are:"]
    for one in asked:
        meant = ", ".join(f"{choice} = {meaning}" if meaning else choice for choice, meaning in one.choices.items())
        lines.append(f"  {one.column}: {one.prompt} {meant}".rstrip())
    return "\n".join(lines) + "\n"
