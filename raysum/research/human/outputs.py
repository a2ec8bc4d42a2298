"""What is judged: the summaries that evaluations have saved, and questions about their references."""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path

import pandas as pd

from raysum.errors import UserError
from raysum.evaluate.scorers import scorers_of
from raysum.research.human.spreadsheet import read_table
from raysum.runtime.storage import check_here, read_lines
from raysum.systems import PAPER

REFERENCE = "reference"
_NO_SYSTEM = {"id", REFERENCE, "other_references", "notes"}


def read_texts(
    evaluations: Sequence[str | Path], systems: Sequence[str] | None = None
) -> tuple[pd.DataFrame, list[str]]:
    """Return the texts of the examples that all evaluation folders have, by id, and the names of the systems to judge.

    A column is a system or the reference; no text has a line break, which could reveal a system. By default systems are
    all but those that cut sentences as in the papers. Raises UserError if a folder has no outputs, a system is unknown
    or ambiguous, or references differ.
    """
    found = pd.DataFrame()
    for number, folder in enumerate(map(Path, evaluations)):
        texts = _read(folder, systems)
        if number:
            found, texts = found.align(texts, join="inner", axis=0)
            for name in texts.columns.intersection(found.columns):
                if len(other := texts.index[texts[name] != found[name]]):
                    raise UserError(
                        f"{folder}: the text of {name!r} for {other[0]} is another one than in a folder before; "
                        "evaluate all on the same dataset, or leave the system out with --systems"
                    )
        found = texts.combine_first(found)
    if found.empty:
        raise UserError(f"{', '.join(map(str, evaluations))} have no example in common; evaluate the same split of one")
    known = sorted(name for name in found if name != REFERENCE or REFERENCE in (systems or ()))
    for name in systems or ():
        if name not in known:
            there = sorted({REFERENCE, *(str(each) for folder in evaluations for each in _read(Path(folder), None))})
            raise UserError(f"no system {name!r} in these outputs; there are {', '.join(there)}")
    if len(known) < 2:
        raise UserError(f"judges compare two systems at least, and here is {', '.join(known) or 'none'}; name more")
    return found.sort_index(), known


def _read(folder: Path, systems: Sequence[str] | None) -> pd.DataFrame:
    check_here(folder)
    path = folder / "outputs.jsonl"
    if not path.is_file():
        raise UserError(
            f"{folder} has no outputs.jsonl; give one that raysum evaluate wrote: RUN/evaluation/DATA/SPLIT, or --out"
        )
    lines = pd.DataFrame(read_lines(path))
    are_texts = lines.map(lambda value: isinstance(value, str)).all()
    if not are_texts.get("id") or not are_texts.get(REFERENCE):
        raise UserError(f"{path} has a line without id or reference; evaluate once more")
    names = [name for name in lines if are_texts[name] and name not in _NO_SYSTEM]
    shown = [name for name in names if (name in systems if systems else not name.endswith(PAPER))]
    texts = lines.drop_duplicates("id", keep="last").set_index("id")[[REFERENCE, *shown]]
    return texts.map(lambda text: " ".join(text.split()))


def questions_about(references: Mapping[str, str], path: str | None) -> dict[str, list[tuple[str, str]]]:
    """Return the (question, answer) pairs of each example from a CSV of id, question and answer.

    Without one, registered scorers ask about the references, such as the factbook's about its facts. Raises UserError
    if a column or text is missing, or there is no question about an example.
    """
    questions: dict[str, list[tuple[str, str]]] = defaultdict(list)
    if path:
        missing = f"{path} has no question about an example of these outputs; check its ids"
        for line, row in read_table(Path(path), ("id", "question", "answer")):
            if not row["question"] or not row["answer"]:
                raise UserError(f"{path}, line {line} lacks a question or its answer; fill it in, or remove the line")
            questions[row["id"]].append((row["question"], row["answer"]))
    else:
        missing = "no scorer asks questions about these references; give --questions FILE (id, question, answer)"
        for scorer in scorers_of(None):
            for id, reference in references.items():
                questions[id] += scorer.questions(reference)
    asked = {id: questions[id] for id in references if questions[id]}
    if not asked:
        raise UserError(missing)
    return asked
