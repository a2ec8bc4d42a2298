"""The tasks of each judge and their order: every system is equally often at every position, drawn by a seed."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from random import Random

from raysum.research.human.designs import Design


@dataclass(frozen=True)
class JudgeTask:
    """One thing asked of a judge: on summaries of ``systems`` at places A, B, ...; or a ``question`` of an item."""

    item: str
    systems: tuple[str, ...]
    question: int | None = None


def tasks_of(
    design: Design, items: Sequence[str], systems: Sequence[str], judges: int, questions: Mapping[str, int], seed: int
) -> list[list[JudgeTask]]:
    """The tasks of each judge. Judges have the same items, each in an order of their own, and see the same systems of
    an item (so that they can agree), but for questions, where they see one each, in turn."""
    draw = Random(f"raysum {design.name} {seed}")
    if design.name == "pairwise":
        sheets = _pairs(items, systems, judges, draw)
    else:
        shown = min(design.most, len(systems))
        sheets = _blocks(items, systems, judges, shown, draw)
    if design.name == "rating":
        sheets = [
            [[JudgeTask(task.item, (one,)) for (task,) in [tasks] for one in task.systems] for tasks in sheet]
            for sheet in sheets
        ]
    if design.name == "questions":
        sheets = [
            [
                [JudgeTask(task.item, task.systems[:1], n) for task in tasks for n in range(questions[task.item])]
                for tasks in sheet
            ]
            for sheet in sheets
        ]
    for sheet in sheets:
        draw.shuffle(sheet)
    return [[task for tasks in sheet for task in tasks] for sheet in sheets]


def _blocks(
    items: Sequence[str], systems: Sequence[str], judges: int, shown: int, draw: Random
) -> list[list[list[JudgeTask]]]:
    """For each judge, for each item, one task with ``shown`` of the systems.

    Of as many items as there are systems, one after another, the systems shown are a circle of them moved on by one,
    so each system stands once at each place; judges have the places turned on by one.
    """
    sheets: list[list[list[JudgeTask]]] = [[] for _ in range(judges)]
    for number, item in enumerate(items):
        turn = number % len(systems)
        if turn == 0:
            circle, places = draw.sample(systems, len(systems)), draw.sample(range(shown), shown)
        for judge, sheet in enumerate(sheets):
            turned = [places[(place + judge) % shown] for place in range(shown)]
            sheet.append([JudgeTask(item, tuple(circle[(turn + step) % len(systems)] for step in turned))])
    return sheets


def _pairs(items: Sequence[str], systems: Sequence[str], judges: int, draw: Random) -> list[list[list[JudgeTask]]]:
    """For each judge, for each item, one task a pair of systems; their sides change from item to item and judge to
    judge."""
    pairs = [draw.sample(pair, 2) for pair in combinations(systems, 2)]
    return [
        [
            [JudgeTask(item, (pair[turn % 2], pair[1 - turn % 2])) for pair in draw.sample(pairs, len(pairs))]
            for turn, item in enumerate(items, judge)
        ]
        for judge in range(judges)
    ]
