"""The answers of judges: read, checked against the key, and assigned to the systems that they are about."""

import re
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

from raysum.errors import UserError
from raysum.research.human.designs import DESIGNS, UNKNOWN, Asked, Design, JudgeTask
from raysum.research.human.sheets import COMMENT, GIVEN, KEY, SHEETS
from raysum.research.human.spreadsheet import read_table, write_table
from raysum.runtime.checksums import check_sealed
from raysum.runtime.storage import read_json
from raysum.text.tfidf import words

MARKS = "marks.csv"
_MARKS = ("study", "question", "expected", "answer", "mark")
_MARK = Asked("mark", "", dict.fromkeys(("1", "0.5", "0"), ""))


class UnansweredStudy(UserError):
    """A study without any answer."""


AnswerKey = tuple[str, int]  # a judge, and the number of a task, from 1


class Judged(NamedTuple):
    """A value that a judge's answer gives a system."""

    judge: str
    task: JudgeTask
    system: str
    measure: str
    value: float


@dataclass
class Study:
    """The key of a study and the answers in its sheets."""

    folder: Path
    key: dict[str, Any]
    answers: dict[AnswerKey, dict[str, str]] = field(default_factory=dict)
    lines: dict[AnswerKey, str] = field(default_factory=dict)  # the file and line of each answer, for messages
    comments: dict[AnswerKey, str] = field(default_factory=dict)

    @classmethod
    def read(cls, folder: Path) -> "Study":
        """Raises UserError with the line of a wrong answer, or if there is no answer."""
        if not (folder / KEY).is_file():
            raise UserError(f"{folder} has no {KEY}; give the folder that raysum human sheets wrote")
        key = check_sealed(read_json(folder / KEY), folder / KEY)
        if key.get("design") not in DESIGNS:
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
    def tasks(self) -> dict[AnswerKey, JudgeTask]:
        return {
            (judge, number): JudgeTask(task["item"], tuple(task["systems"]), task["question"])
            for judge, tasks in self.key["judges"].items()
            for number, task in enumerate(tasks, 1)
        }

    @cached_property
    def asked(self) -> list[Asked]:
        return self.design.asked(self.tasks[min(self.tasks)].columns)

    def add(self, file: Path) -> None:
        """Add the answers of one sheet."""
        for line, row in read_table(file, [*GIVEN, *(one.column for one in self.asked)]):
            where = f"{file}, line {line}"
            if row["study"] != self.key["study"]:
                raise UserError(
                    f"{where} is of study {row['study'] or '(none)'}, and {self.folder / KEY} of {self.key['study']}; "
                    "put the sheet into the folder it was made with"
                )
            task = row["judge"], int(row["task"]) if re.fullmatch("[0-9]{1,9}", row["task"]) else 0
            if task not in self.tasks:
                raise UserError(f"{where}: {row['judge']!r} has no task {row['task']!r}; put back both as they were")
            if comment := row.get(COMMENT):
                self.comments[task] = comment
            given = {one.column: _choice(row[one.column], one, where) for one in self.asked if row[one.column]}
            if not given:
                continue
            if self.answers.setdefault(task, given) != given:
                raise UserError(
                    f"{where} answers task {row['task']} in another way than {self.lines[task]}; keep one of them"
                )
            self.lines.setdefault(task, where)
            if self._is_whole(given) and (wrong := self.design.problem(given)):
                raise UserError(f"{where}: {wrong}; ask the judge, or empty both cells")

    def _is_whole(self, given: dict[str, str]) -> bool:
        return all(one.column in given for one in self.asked)

    def judged(self) -> list[Judged]:
        """Return the values of all answers that count; questions need their marks (see :func:`write_marks`)."""
        return [
            Judged(judge, task, task.systems[position], measure, value)
            for (judge, number), given in self.answers.items()
            if self._is_whole(given) or not self.design.together
            for task in [self.tasks[judge, number]]
            for position, measure, value in self.design.values(given, task.columns)
        ]

    def counts(self) -> dict[str, tuple[int, int]]:
        """Return how many answers of each judge count (of tasks, or of aspects), and how many were asked for."""
        every = 1 if self.design.together else len(self.asked)
        counts = {judge: [0, every * len(tasks)] for judge, tasks in self.key["judges"].items()}
        for (judge, _), given in self.answers.items():
            counts[judge][0] += self._is_whole(given) if self.design.together else len(given)
        return {judge: (given, asked) for judge, (given, asked) in counts.items()}


def write_marks(study: Study) -> int:
    """Mark each answer to a question, and return how many still wait for a mark.

    An answer of the expected words has 1, and none (``-``) 0; the others are in ``marks.csv``, each once and without
    a system's name, for a person to write 1, 0.5 or 0 beside them. Raises UserError with the line of another mark.
    """
    path, id = study.folder / MARKS, study.key["study"]
    rows: dict[tuple[str, str, str], dict[str, str]] = {}
    for line, row in read_table(path, _MARKS) if path.is_file() else ():
        if row["study"] != id:
            raise UserError(f"{path}, line {line} is of study {row['study'] or '(none)'}, not {id}; remove the file")
        row["mark"] = _choice(row["mark"].replace(",", "."), _MARK, f"{path}, line {line}")
        rows[row["question"], row["expected"], _plain(row["answer"])] = row
    known, waiting = len(rows), 0
    for key, given in study.answers.items():
        task = study.tasks[key]
        question, expected = study.key["questions"][task.item][task.question]
        answer = " ".join(given["answer"].split())
        if answer == UNKNOWN or _plain(answer) == _plain(expected):
            given["mark"] = "0" if answer == UNKNOWN else "1"
            continue
        new = dict(zip(_MARKS, (id, question, expected, answer, ""), strict=True))
        given["mark"] = rows.setdefault((question, expected, _plain(answer)), new)["mark"]
        waiting += not given["mark"]
    if len(rows) > known:
        write_table(path, _MARKS, [[rows[name][column] for column in _MARKS] for name in sorted(rows)])
    return waiting


def _choice(given: str, asked: Asked, where: str) -> str:
    """Return the choice that a cell means: spreadsheets write 4 as 4.0, and people b for B."""
    if not asked.choices or not given:
        return given
    number = _number(given)
    for choice in asked.choices:
        if given.casefold() == choice.casefold() or (number is not None and number == _number(choice)):
            return choice
    raise UserError(f"{where}: {asked.column} is {given!r}; it must be {', '.join(asked.choices)}, or empty")


def _number(text: str) -> float | None:
    try:
        return float(text)
    except ValueError:
        return None


def _plain(text: str) -> str:
    return " ".join(words(text)) or text.casefold()
