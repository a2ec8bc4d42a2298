"""What is written of the answers: rows that `raysum prepare` reads, and those that got no summary."""

import json
import os
from collections import Counter
from contextlib import ExitStack
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any

from raysum.data.dataset import REJECTED
from raysum.runtime.rendering import Shown
from raysum.runtime.storage import writing
from raysum.sources.find import RawSource
from raysum.teach.answers import Answer, Answers
from raysum.teach.asking import sentences_of
from raysum.teach.citing import CITATIONS, citations_of
from raysum.teach.config import TeachConfig
from raysum.teach.prompts import Item, Task, brief_of, is_cut, items
from raysum.teach.rejects import helps, problem_of
from raysum.teach.server import NO_ANSWER

_UNREAD = "no JSON in the answer that names a paragraph"


@dataclass(frozen=True)
class TeachResult(Shown):
    """What became of the clusters. ``exit_code`` is 3 where the budget was spent before all were taught, and 2 where
    there is a ``problem``: too much of what the teacher answered is of no use."""

    figures: dict[str, Any]
    config: TeachConfig

    @property
    def taught(self) -> int:
        return self.figures["taught"]

    @property
    def exit_code(self) -> int:
        return 2 if self.problem else 3 if self.figures["spent"] else 0

    @property
    def problem(self) -> str:
        return problem_of(self.taught, self.figures["rejected"], self.config)

    def to_dict(self) -> dict[str, Any]:
        """``out``, ``clusters``; of these ``taught``, ``kept`` (had a summary), ``rejected`` by reason and ``left``;
        of the taught ``truncated``, ``cited``, ``citations_unread`` by reason and ``citations_left``; ``tokens``
        (prompt and completion, of all starts), ``answers`` (of this one), ``spent`` (the budget), ``seconds``."""
        return self.figures

    def render(self) -> str:
        problem = self.problem
        lines = [f"{name}: {value}" for name, value in self.figures.items() if value not in (0, {}, False)]
        left, uncited = self.figures["left"], self.figures["citations_left"]
        unused = {*self.figures["rejected"], *self.figures["citations_unread"]}
        if not problem and (told := helps(unused, self.config)):
            lines.append(told)
        if (left or uncited) and not problem:
            why = "the budget is spent; a higher --budget" if self.figures["spent"] else "the same command"
            lines.append(
                f"{left} clusters are left without summary, {uncited} without citations: {why} goes on with them"
            )
        return "\n".join(lines)


def aside(out: Path) -> Path:
    """Where the rows are that got no summary."""
    return out.with_name(f"{out.name}.{REJECTED}")


def write(sources: list[RawSource], task: Task, answers: Answers, out: Path, missing: dict[str, str]) -> dict[str, Any]:
    """Write ``out`` and, where there are any, the rejected rows beside it, in the order of the sources.

    Returns the figures; ``missing`` tells by key why there is no answer. Raises UserError where the disk is full.
    """
    counts, rejected, unread = Counter[str](), Counter[str](), Counter[str]()
    partial, partial_aside = (path.with_name(f".{path.name}.partial") for path in (out, aside(out)))
    with writing(out.parent), ExitStack() as stack:
        for path in (partial, partial_aside):
            stack.callback(path.unlink, missing_ok=True)
        rows, others = (stack.enter_context(path.open("w", encoding="utf-8")) for path in (partial, partial_aside))
        for item in chain.from_iterable(items(source, task) for source in sources):
            counts["clusters"] += 1
            row, reason, told = _row(item, task, answers, missing, counts, unread)
            if row is not None:
                rows.write(json.dumps(row, ensure_ascii=False, default=str) + "\n")
            elif reason:
                rejected[reason] += 1
                line = {"where": item.record.where, "reason": reason, **told, "row": item.record.raw}
                others.write(json.dumps(line, default=str) + "\n")
        for file in (rows, others):
            file.flush()
            os.fsync(file.fileno())
        partial.replace(out)
        if rejected:
            partial_aside.replace(aside(out))
        else:
            aside(out).unlink(missing_ok=True)
    counted = {name: counts[name] for name in ("clusters", "taught", "kept")}
    more: dict[str, Any] = {name: counts[name] for name in ("left", "truncated", "cited", "citations_left")}
    more["citations_unread"] = dict(unread.most_common())
    tokens = {"prompt": answers.prompt_tokens, "completion": answers.completion_tokens}
    return {"out": str(out), **counted, "rejected": dict(rejected.most_common()), **more, "tokens": tokens}


def _row(
    item: Item, task: Task, answers: Answers, missing: dict[str, str], counts: Counter[str], unread: Counter[str]
) -> tuple[dict[str, Any] | None, str, dict[str, Any]]:
    """The row of an item; or why it has none, with what else is told; neither where it is left to another start."""
    if item.problem:
        return None, item.problem.reason, {"detail": item.problem.detail}
    if not item.cluster:
        counts["kept"] += 1
        return item.raw, "", {}
    answer = answers.get(item.key, task.config.max_tokens)
    if answer is None:
        if item.key in missing:
            return None, NO_ANSWER, {"detail": missing[item.key]}
        counts["left"] += 1
        return None, "", {}
    if answer.reason:
        return None, answer.reason, {"detail": "", "answer": answer.text}
    counts["taught"] += 1
    counts["truncated"] += is_cut(item.cluster, task.config)
    row = item.raw | {"summary": answer.text, "teacher": _teacher(answer, task)}
    if task.config.cite:
        row |= _cited(item, answer, task, answers, counts, unread)
    return row, "", {}


def _teacher(answer: Answer, task: Task) -> dict[str, Any]:
    """Where the summary comes from."""
    asked, served = task.config, answer.served
    named = {"model": asked.model} | ({"served": served} if served not in ("", asked.model) else {})
    return {**named, "prompt": task.prompts.sha256[:16], **asked.parameters, "max_tokens": answer.max_tokens}


def _cited(
    item: Item, answer: Answer, task: Task, answers: Answers, counts: Counter[str], unread: Counter[str]
) -> dict[str, Any]:
    """The reference citations of a row; nothing where the teacher gave none that can be read."""
    told = answers.get(item.cite_key, task.config.max_tokens)
    if told is None:
        counts["citations_left"] += 1
        return {}
    found = None
    if not told.reason:
        found = citations_of(told.text, sentences_of(answer.text), brief_of(item, task.config).paragraphs)
    if found is None:
        unread[told.reason or _UNREAD] += 1
        return {}
    counts["cited"] += 1
    return {CITATIONS: found}
