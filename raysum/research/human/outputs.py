"""What is judged: the summaries that evaluations have saved, and questions about their references."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from raysum.errors import UserError
from raysum.evaluate.scorers import scorers_of
from raysum.research.human.spreadsheet import read_table
from raysum.runtime.storage import check_here, read_lines
from raysum.systems import PAPER

REFERENCE = "reference"
_NO_SYSTEM = {"id", REFERENCE, "other_references", "notes"}


@dataclass(frozen=True)
class JudgedItem:
    """An example, its reference and each system's summary, without line breaks, which could reveal a system."""

    id: str
    reference: str
    summaries: dict[str, str]


def read_items(evaluations: Sequence[str | Path], systems: Sequence[str] | None = None) -> list[JudgedItem]:
    """The examples that all evaluation folders have, with the summaries of ``systems``, by id: by default all that
    are in whole sentences, without those that are cut as in the papers.

    Raises UserError if a folder has no outputs, a system is unknown or ambiguous, or references differ.
    """
    found: dict[str, JudgedItem] = {}
    for number, folder in enumerate(map(Path, evaluations)):
        items = {item.id: item for item in _items(folder, systems)}
        both = [name for name in found if name in items]
        found = {name: _joined(found[name], items[name], folder) for name in both} if number else items
    if not found:
        raise UserError(f"{', '.join(map(str, evaluations))} have no example in common; evaluate the same split of one")
    known = set.intersection(*(set(item.summaries) for item in found.values()))
    for name in systems or ():
        if name not in known:
            raise UserError(f"no system {name!r} in these outputs; there are {', '.join(sorted(known))}")
    if len(known) < 2:
        raise UserError(f"judges compare two systems at least, and here is {', '.join(known) or 'none'}; name more")
    return [
        JudgedItem(one.id, one.reference, {name: one.summaries[name] for name in sorted(known)})
        for one in _by_id(found)
    ]


def read_questions(path: str, items: Iterable[JudgedItem]) -> dict[str, list[tuple[str, str]]]:
    """The questions and answers of each example from a CSV of id, question and answer.

    Raises UserError where a column or text is missing, or no question is about one of the ``items``.
    """
    known = {item.id for item in items}
    questions: dict[str, list[tuple[str, str]]] = {}
    for line, row in read_table(Path(path), ("id", "question", "answer")):
        if not row["question"] or not row["answer"]:
            raise UserError(f"{path}, line {line} lacks a question or its answer; fill it in, or remove the line")
        questions.setdefault(row["id"], []).append((row["question"], row["answer"]))
    if not known & questions.keys():
        raise UserError(
            f"{path} has no question about an example of these outputs, such as {min(known)}; check its ids"
        )
    return {name: asked for name, asked in questions.items() if name in known}


def scorers_questions(items: Iterable[JudgedItem]) -> dict[str, list[tuple[str, str]]]:
    """Return the questions that registered scorers ask about the references, such as the factbook's about its facts.

    Raises UserError if there are none.
    """
    scorers = scorers_of(None)
    asked = {item.id: [pair for scorer in scorers for pair in scorer.questions(item.reference)] for item in items}
    if not any(asked.values()):
        raise UserError(
            "no scorer asks questions about these references; give --questions FILE, a CSV of id, question, answer"
        )
    return {name: pairs for name, pairs in asked.items() if pairs}


def _items(folder: Path, systems: Sequence[str] | None) -> list[JudgedItem]:
    check_here(folder)
    path = folder / "outputs.jsonl"
    if not path.is_file():
        raise UserError(
            f"{folder} has no outputs.jsonl; give one that raysum evaluate wrote: RUN/evaluation/DATA/SPLIT, or --out"
        )
    items = []
    for number, line in enumerate(read_lines(path), 1):
        texts = {name: value for name, value in line.items() if name not in _NO_SYSTEM and isinstance(value, str)}
        reference = line.get(REFERENCE)
        if not isinstance(reference, str) or not isinstance(line.get("id"), str):
            raise UserError(f"{path}, line {number} has no id and reference; evaluate once more")
        texts |= {REFERENCE: reference} if systems and REFERENCE in systems else {}
        shown = systems or [name for name in texts if not name.endswith(PAPER)]
        kept = {name: _one_line(text) for name, text in texts.items() if name in shown}
        items.append(JudgedItem(line["id"], _one_line(reference), kept))
    if not items:
        raise UserError(f"{path} is empty; evaluate once more")
    return items


def _joined(item: JudgedItem, other: JudgedItem, folder: Path) -> JudgedItem:
    if item.reference != other.reference:
        raise UserError(
            f"{folder}: the reference of {item.id} is another one; evaluate all systems on the same dataset"
        )
    for name in item.summaries.keys() & other.summaries:
        if item.summaries[name] != other.summaries[name]:
            raise UserError(
                f"{folder}: {name!r} wrote another summary of {item.id} than its namesake in a folder before; "
                "evaluate a copy of the run under another name, or leave it out with --systems"
            )
    return JudgedItem(item.id, item.reference, item.summaries | other.summaries)


def _by_id(items: dict[str, JudgedItem]) -> list[JudgedItem]:
    return [items[name] for name in sorted(items)]


def _one_line(text: str) -> str:
    return " ".join(text.split())
