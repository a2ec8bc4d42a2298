"""The sheets of a study: a CSV and a page with the same tasks for each judge, and a separate key."""

import hashlib
import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from importlib import resources
from pathlib import Path
from random import Random
from typing import Any

from raysum.config.base import with_settings
from raysum.config.loading import section_of
from raysum.errors import UserError
from raysum.pages.parts import templates
from raysum.research.human.designs import DESIGNS, Asked, Design, JudgeTask, SheetsConfig, tasks_of
from raysum.research.human.outputs import REFERENCE, questions_about, read_texts
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
    texts, systems = read_texts(folders, config.systems)
    questions = _questions(config, dict(texts[REFERENCE]))
    names = [*questions] if questions else [*texts.index]
    if len(names) < config.items:
        raise UserError(f"there are {len(names)} examples to draw from, not {config.items}; give --items {len(names)}")
    items = Random(f"raysum items {config.seed}").sample(names, config.items)
    counts = {name: len(asked) for name, asked in questions.items()}
    sheets = tasks_of(design, items, systems, config.judges, counts, config.seed)
    key: dict[str, Any] = {
        "design": config.design,
        "seed": config.seed,
        "systems": systems,
        "questions": {name: questions[name] for name in items if name in questions},
        "judges": {f"judge-{n}": [asdict(task) for task in sheet] for n, sheet in enumerate(sheets, 1)},
    }
    judged = [
        {"id": name, "reference": texts.at[name, REFERENCE], "summaries": {one: texts.at[name, one] for one in systems}}
        for name in items
    ]
    digest = hashlib.blake2b(json.dumps([key, judged], sort_keys=True).encode(), digest_size=5).hexdigest()
    study = f"s{digest}"  # digits alone, or with an e, a spreadsheet would write as another number
    asked = design.asked(sheets[0][0].columns)
    with_reference = design.shows_reference and REFERENCE not in systems
    with new_folder(Path(config.out)) as folder:
        write_json(folder / KEY, sealed({"study": study, **key}))
        (folder / SHEETS).mkdir()
        write_text(folder / SHEETS / "instructions.txt", _instructions(design, asked))
        for judge, sheet in zip(key["judges"], sheets, strict=True):
            tasks = [_shown(dict(texts.loc[task.item]), task, with_reference, questions) for task in sheet]
            columns = [*(one.column for one in asked), COMMENT]
            rows = ([study, judge, str(n), *task.values(), *[""] * len(columns)] for n, task in enumerate(tasks, 1))
            write_table(folder / SHEETS / f"{judge}.csv", [*GIVEN, *tasks[0], *columns], rows)
            write_text(folder / SHEETS / f"{judge}.html", _page(study, judge, design.instruction, asked, tasks))
    return Sheets(config.out, study, config.design, systems, len(items), config.judges, max(map(len, sheets)))


def _questions(config: SheetsConfig, references: dict[str, str]) -> dict[str, list[tuple[str, str]]]:
    if config.design == "questions":
        if config.systems and REFERENCE in config.systems:
            raise UserError("questions are about the reference; leave it out of --systems")
        return questions_about(references, config.questions)
    if config.questions:
        raise UserError(f"--questions is of the design `questions`, not of {config.design}; leave it out")
    return {}


def _shown(
    texts: dict[str, str], task: JudgeTask, with_reference: bool, questions: dict[str, list[tuple[str, str]]]
) -> dict[str, str]:
    """Return the texts of a task, by column."""
    shown = {REFERENCE: texts[REFERENCE]} if with_reference else {}
    shown |= {column: texts[system] or "(empty)" for column, system in task.shown.items()}
    return shown | ({"question": questions[task.item][task.question][0]} if task.question is not None else {})


def _instructions(design: Design, asked: list[Asked]) -> str:
    """Return what a judge who fills in the table must know: the columns, and the possible answers."""
    lines = [design.instruction, "", "Columns to fill in (the comment may stay empty); leave the others as they are:"]
    for one in asked:
        meant = ", ".join(f"{choice} = {meaning}" if meaning else choice for choice, meaning in one.choices.items())
        lines.append(f"  {one.column}: {one.prompt} {meant}".rstrip())
    return "\n".join(lines) + "\n"


def _page(study: str, judge: str, instruction: str, asked: list[Asked], tasks: list[dict[str, str]]) -> str:
    """Return a sheet as one page that needs no network or mouse; the browser keeps answers until they are saved."""
    values = {"study": study, "judge": judge, "asked": [*map(asdict, asked)], "tasks": tasks, "comment": COMMENT}
    data = json.dumps(values, ensure_ascii=False).replace("<", "\\u003c").replace("\u2028", "\\u2028")
    template = resources.files(__package__).joinpath("page.html").read_text(encoding="utf-8")
    return templates().from_string(template).render(judge=judge, instruction=instruction, data=data) + "\n"
