"""The sheets of a study: a CSV and a page with the same tasks for each judge, and a separate key."""

import hashlib
import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from importlib import resources
from pathlib import Path
from random import Random
from typing import Any

from raysum.config.loading import section_of
from raysum.config.signatures import with_settings
from raysum.errors import UserError
from raysum.pages.parts import templates
from raysum.research.human.designs import DESIGNS, Asked, Design, JudgeTask, SheetsConfig, tasks_of
from raysum.research.human.outputs import REFERENCE, JudgedItem, questions_about, read_items
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
    names = [*(questions or known)]
    if len(names) < config.items:
        raise UserError(f"there are {len(names)} examples to draw from, not {config.items}; give --items {len(names)}")
    items = Random(f"raysum items {config.seed}").sample(names, config.items)
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
    judged = [asdict(known[name]) for name in items]
    digest = hashlib.blake2b(json.dumps([key, judged], sort_keys=True).encode(), digest_size=5).hexdigest()
    study = f"s{digest}"  # digits alone, or with an e, a spreadsheet would write as another number
    asked = design.asked(sheets[0][0].columns)
    with new_folder(Path(config.out)) as folder:
        write_json(folder / KEY, sealed({"study": study, **key}))
        (folder / SHEETS).mkdir()
        write_text(folder / SHEETS / "instructions.txt", _instructions(design, asked))
        for judge, sheet in zip(key["judges"], sheets, strict=True):
            texts = [_texts(design, known[task.item], task, questions) for task in sheet]
            columns = [*(one.column for one in asked), COMMENT]
            rows = ([study, judge, str(n), *task.values(), *[""] * len(columns)] for n, task in enumerate(texts, 1))
            write_table(folder / SHEETS / f"{judge}.csv", [*GIVEN, *texts[0], *columns], rows)
            write_text(folder / SHEETS / f"{judge}.html", _page(study, judge, design.instruction, asked, texts))
    return Sheets(config.out, study, config.design, systems, len(items), config.judges, max(map(len, sheets)))


def _questions(config: SheetsConfig, known: dict[str, JudgedItem]) -> dict[str, list[tuple[str, str]]]:
    if config.design == "questions":
        if config.systems and REFERENCE in config.systems:
            raise UserError("questions are about the reference; leave it out of --systems")
        return questions_about(known.values(), config.questions)
    if config.questions:
        raise UserError(f"--questions is of the design `questions`, not of {config.design}; leave it out")
    return {}


def _texts(
    design: Design, item: JudgedItem, task: JudgeTask, questions: dict[str, list[tuple[str, str]]]
) -> dict[str, str]:
    """Return the texts of a task, by column."""
    texts = {REFERENCE: item.reference} if design.shows_reference and REFERENCE not in item.summaries else {}
    texts |= {column: item.summaries[system] or "(empty)" for column, system in task.shown.items()}
    return texts | ({"question": questions[item.id][task.question][0]} if task.question is not None else {})


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
