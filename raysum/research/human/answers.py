"""What judges filled in: read, checked against the key, and each answer given to the system it is about."""

import re
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

from raysum.errors import UserError
from raysum.research.human.assignment import JudgeTask
from raysum.research.human.designs import DESIGNS, UNKNOWN, Asked, Design
from raysum.research.human.sheets import COMMENT, GIVEN, KEY, SHEETS
from raysum.research.human.spreadsheet import read_table, write_table
from raysum.runtime.checksums import check_sealed
from raysum.runtime.storage import read_json
from raysum.text.tfidf import words

MARKS = "marks.csv"
_MARKS = ("study", "question", "expected", "answer", "mark")


class UnansweredStudy(UserError):
    """A study without any answer."""


AnswerPlace = tuple[str, int]  # a judge, and the number of a task, from 1


class Judged(NamedTuple):
    """A figure that a judge gave a system; ``unit`` is what several judges may have judged alike."""

    judge: str
    unit: tuple[str, ...]
    system: str
    measure: str
    value: float


@dataclass
class Study:
    """The key of a study and the answers in its sheets."""

    folder: Path
    key: dict[str, Any]
    answers: dict[AnswerPlace, dict[str, str]] = field(default_factory=dict)
    lines: dict[AnswerPlace, str] = field(default_factory=dict)  # the file and line that has them, for messages
    comments: dict[AnswerPlace, str] = field(default_factory=dict)

    @classmethod
    def read(cls, folder: Path) -> "Study":
        """Raises UserError naming the line of what is no answer to this study's sheets, or where all is blank."""
        if not (folder / KEY).is_file():
            raise UserError(f"{folder} has no {KEY}; give the folder that raysum human sheets wrote")
        key = check_sealed(read_json(folder / KEY), folder / KEY)
        if key.get("design") not in DESIGNS or not {"study", "judges", "systems"} <= key.keys():
            raise UserError(f"{folder / KEY} is not the key of a study; put back a copy, or make the sheets again")
        study = cls(folder, key)
        files = sorted((folder / SHEETS).glob("*.csv"))
        if not files:
            raise UserError(f"{folder / SHEETS} has no sheet; put the judges' CSV files there")
        for file in files:
            study.add(file)
        if not study.answers:
            raise UnansweredStudy(
                f"no sheet in {folder / SHEETS} has an answer yet; put the sheets of the judges there"
            )
        return study

    @property
    def design(self) -> Design:
        return DESIGNS[self.key["design"]]

    @cached_property
    def asked(self) -> list[Asked]:
        return self.design.asked(len(self.tasks[min(self.tasks)].systems))

    @cached_property
    def tasks(self) -> dict[AnswerPlace, JudgeTask]:
        sheets = self.key["judges"].items()
        return {
            (judge, number): JudgeTask(task["item"], tuple(task["systems"]), task["question"])
            for judge, tasks in sheets
            for number, task in enumerate(tasks, 1)
        }

    def add(self, file: Path) -> None:
        """Take the answers of one sheet."""
        tasks, asked = self.tasks, self.asked
        for line, row in read_table(file, [*GIVEN, *(one.column for one in asked)]):
            where = f"{file}, line {line}"
            if row["study"] != self.key["study"]:
                raise UserError(
                    f"{where} is of study {row['study'] or '(none)'}, and {self.folder / KEY} of {self.key['study']}; "
                    "put the sheet into the folder it was made with"
                )
            place = row["judge"], int(row["task"]) if re.fullmatch("[0-9]{1,9}", row["task"]) else 0
            if place not in tasks:
                raise UserError(f"{where}: {row['judge']!r} has no task {row['task']!r}; put back both as they were")
            if said := row.get(COMMENT):
                self.comments[place] = said
            given = {one.column: _choice(row[one.column], one, where) for one in asked if row[one.column]}
            if given and self.answers.setdefault(place, given) != given:
                raise UserError(
                    f"{where} answers task {row['task']} in another way than {self.lines[place]}; keep one of them"
                )
            if given:
                self.lines.setdefault(place, where)
            if len(given) == len(asked) and (wrong := self.design.problem(given)):
                raise UserError(f"{where}: {wrong}; ask the judge, or empty both cells")

    def judged(self) -> list[Judged]:
        """What the whole answers say; questions must be marked before (see :func:`mark`)."""
        found = []
        tasks, asked = self.tasks, self.asked
        for place, given in self.answers.items():
            task = tasks[place]
            if self.design.together and not {one.column for one in asked} <= given.keys():
                continue
            for value in self.design.values(given, len(task.systems)):
                found.append(Judged(place[0], _unit(self.design, task), task.systems[value.place], *value[1:]))
        return found

    def counts(self) -> dict[str, tuple[int, int]]:
        """Of each judge how many answers count (a task's, or an aspect's), and how many were asked for."""
        every = len(self.asked) if not self.design.together else 1
        counts = {judge: [0, every * len(tasks)] for judge, tasks in self.key["judges"].items()}
        for (judge, _), given in self.answers.items():
            counts[judge][0] += len(given) if every > 1 else len(given) >= len(self.asked)
        return {judge: (given, asked) for judge, (given, asked) in counts.items()}


def write_marks(study: Study) -> int:
    """Give each answer to a question its mark, and return how many still wait for one.

    An answer of the expected words has 1, and none (``-``) 0; the others are in ``marks.csv``, each once and without
    a system's name, for a person to write 1, 0.5 or 0 beside them.
    Raises UserError that names the line of a mark that is none of these.
    """
    path, tasks = study.folder / MARKS, study.tasks
    known = _read_marks(path, study.key["study"])
    rows = {name: list(row) for name, row in known.items()}
    waiting = 0
    for place, given in study.answers.items():
        task = tasks[place]
        question, expected = study.key["questions"][task.item][task.question]
        answer = " ".join(given["answer"].split())
        name = question, expected, _plain(answer)
        if answer == UNKNOWN or _plain(answer) == _plain(expected):
            given["mark"] = "0" if answer == UNKNOWN else "1"
            continue
        *_, given["mark"] = rows.setdefault(name, [study.key["study"], question, expected, answer, ""])
        waiting += not given["mark"]
    if rows.keys() - known.keys():
        write_table(path, _MARKS, [rows[name] for name in sorted(rows)])
    return waiting


def _read_marks(path: Path, study: str) -> dict[tuple[str, str, str], list[str]]:
    """The rows of the file, by question, expected answer and the words of the given one."""
    marks: dict[tuple[str, str, str], list[str]] = {}
    for line, row in read_table(path, _MARKS) if path.is_file() else ():
        given = row["mark"].replace(",", ".")
        if row["study"] != study:
            raise UserError(f"{path}, line {line} is of study {row['study'] or '(none)'}, not {study}; remove the file")
        if given and _number(given) not in (0, 0.5, 1):
            raise UserError(f"{path}, line {line}: mark {row['mark']!r} must be 1, 0.5 or 0, or empty")
        marks[row["question"], row["expected"], _plain(row["answer"])] = [*(row[name] for name in _MARKS[:-1]), given]
    return marks


def _choice(given: str, asked: Asked, where: str) -> str:
    """The choice that a cell means: spreadsheets write 4 as 4.0, and people b for B."""
    if not asked.choices or given in asked.choices:
        return given
    for choice in asked.choices:
        if given.casefold() == choice.casefold() or (choice.isdecimal() and _number(given) == int(choice)):
            return choice
    raise UserError(f"{where}: {asked.column} is {given!r}; it must be {', '.join(asked.choices)}, or empty")


def _number(text: str) -> float | None:
    try:
        return float(text)
    except ValueError:
        return None


def _plain(text: str) -> str:
    return " ".join(words(text)) or text.casefold()


def _unit(design: Design, task: JudgeTask) -> tuple[str, ...]:
    """What is judged: an item, an item's question, or for a preference the two that it is between."""
    if design.name == "pairwise":
        return (task.item, *sorted(task.systems))
    return (task.item,) if task.question is None else (task.item, str(task.question))
