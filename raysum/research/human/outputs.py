"""What is judged: the summaries that evaluations have saved, and questions about their references."""

from collections import defaultdict
from collections.abc import Collection, Sequence
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
    """Return the examples that all evaluation folders have, by id, with the summaries of ``systems``.

    By default systems are all but those that cut sentences as in the papers. Raises UserError if a folder has no
    outputs, a system is unknown or ambiguous, or references differ.
    """
    found: dict[str, JudgedItem] = {}
    for number, folder in enumerate(map(Path, evaluations)):
        items = {item.id: item for item in _items(folder, systems)}
        both = [name for name in found if name in items]
        found = {name: _joined(found[name], items[name], folder) for name in both} if number else items
    if not found:
        raise UserError(f"{', '.join(map(str, evaluations))} have no example in common; evaluate the same split of one")
    known = sorted(set.intersection(*(set(item.summaries) for item in found.values())))
    for name in systems or ():
        if name not in known:
            raise UserError(f"no system {name!r} in these outputs; there are {', '.join(known)}")
    if len(known) < 2:
        raise UserError(f"judges compare two systems at least, and here is {', '.join(known) or 'none'}; name more")
    items = {name: found[name] for name in sorted(found)}
    return [JudgedItem(id, one.reference, {name: one.summaries[name] for name in known}) for id, one in items.items()]


def questions_about(items: Collection[JudgedItem], path: str | None) -> dict[str, list[tuple[str, str]]]:
    """Return the (question, answer) pairs of each example from a CSV of id, question and answer.

    Without one, registered scorers ask about the references, such as the factbook's about its facts. Raises UserError
    if a column or text is missing, or there is no question about the ``items``.
    """
    questions: dict[str, list[tuple[str, str]]] = defaultdict(list)
    if path:
        missing = f"{path} has no question about an example of these outputs; check its ids"
        for line, row in read_table(Path(path), ("id", "question", "answer")):
            if not row["question"] or not row["answer"]:
                raise UserError(f"{path}, line {line} lacks a question or its answer; fill it in, or remove the line")
            questions[row["id"]].append((row["question"], row["answer"]))
    else:
        missing = (
            "no scorer asks questions about these references; give --questions FILE, a CSV of id, question, answer"
        )
        for scorer in scorers_of(None):
            for item in items:
                questions[item.id] += scorer.questions(item.reference)
    asked = {item.id: questions[item.id] for item in items if questions[item.id]}
    if not asked:
        raise UserError(missing)
    return asked


def _items(folder: Path, systems: Sequence[str] | None) -> list[JudgedItem]:
    check_here(folder)
    path = folder / "outputs.jsonl"
    if not path.is_file():
        raise UserError(
            f"{folder} has no outputs.jsonl; give one that raysum evaluate wrote: RUN/evaluation/DATA/SPLIT, or --out"
        )
    items = []
    for number, line in enumerate(read_lines(path), 1):
        if not isinstance(line.get(REFERENCE), str) or not isinstance(line.get("id"), str):
            raise UserError(f"{path}, line {number} has no id and reference; evaluate once more")
        texts = {name: " ".join(text.split()) for name, text in line.items() if isinstance(text, str)}
        shown = systems or [name for name in texts if name not in _NO_SYSTEM and not name.endswith(PAPER)]
        summaries = {name: texts[name] for name in shown if name in texts}
        items.append(JudgedItem(line["id"], texts[REFERENCE], summaries))
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
