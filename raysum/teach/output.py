"""The output: rows that `raysum prepare` reads, the rejected rows beside them, and the counts of both."""

import hashlib
import json
import os
from collections import Counter
from collections.abc import Collection, Iterable
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from raysum.data.dataset import REJECTED
from raysum.errors import UserError
from raysum.runtime.progress import say
from raysum.runtime.rendering import Shown
from raysum.runtime.storage import writing
from raysum.sources.find import RawSource
from raysum.teach.answers import CUT, Answer, Answers
from raysum.teach.asking import REASONS, Tally, sentences_of
from raysum.teach.citing import CITATIONS, citations_of
from raysum.teach.config import TeachConfig
from raysum.teach.prompts import Item, Task, is_truncated, items, question_of

_NO_ANSWER = "no answer"
_UNREADABLE = "no JSON in the answer that names a paragraph"


@dataclass(frozen=True)
class TeachResult(Shown):
    """The counts of a job. ``exit_code`` is 3 if the budget ended it early, and 2 if there is a ``problem``."""

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
        """A message if too many answers were rejected, or an empty text."""
        rejected = {reason: count for reason, count in self.figures["rejected"].items() if reason in REASONS}
        number, most = sum(rejected.values()), self.config.max_rejected
        total = self.taught + number
        if not Tally(most, total, number).is_over:
            return ""
        reasons = ", ".join(f"{reason} ({count})" for reason, count in rejected.items())
        limit = f"more than --max-rejected {most:g}"
        return f"{number} of {total} answers are rejected, {limit}: {reasons}. {self._advice(rejected)}"

    def to_dict(self) -> dict[str, Any]:
        """Return ``out``, ``clusters``; of these ``taught``, ``kept`` (had a summary), ``rejected`` by reason and
        ``left``; of the taught ones ``truncated``, ``cited``, ``citations_unread`` by reason and ``citations_left``;
        ``tokens`` (prompt and completion, of all runs), ``answers`` (of this run), ``spent`` (the budget),
        ``seconds``."""
        return self.figures

    def render(self) -> str:
        lines = [f"{name}: {value}" for name, value in self.figures.items() if value not in (0, {}, False)]
        if not self.problem:
            lines += filter(None, [self._advice({*self.figures["rejected"], *self.figures["citations_unread"]})])
            left, uncited = self.figures["left"], self.figures["citations_left"]
            if left or uncited:
                how = "the budget is spent; a higher --budget" if self.figures["spent"] else "the same command"
                lines.append(f"{left} clusters lack a summary, {uncited} lack citations: {how} continues with them")
        return "\n".join(lines)

    def _advice(self, reasons: Collection[str]) -> str:
        """Return the flags that ask again for rejected answers, and for nothing else."""
        advice = []
        if CUT in reasons:
            limit = self.config.max_tokens
            advice.append(f"A --max-tokens above {limit} asks again for cut answers, and for nothing else")
        if {*reasons} & {*REASONS} - {CUT}:
            advice.append("--retry-rejected asks again for empty, refused or too long answers, and for nothing else")
        return ". ".join(advice)


def rejected_path(out: Path) -> Path:
    return out.with_name(f"{out.name}.{REJECTED}")


class PreviousOutput:
    """The clusters of an existing output, until they are found among the sources."""

    def __init__(self, out: Path):
        """Raises UserError if the file holds something else."""
        self._out, self._unseen = out, set[bytes]()
        if out.exists():
            try:
                with out.open(encoding="utf-8") as rows:
                    self._unseen.update(_content(json.loads(row)) for row in rows)
            except (OSError, ValueError, AttributeError):
                raise UserError(f"{out} holds no clusters; remove it, or choose another --out") from None
        self._total = len(self._unseen)

    def mark_seen(self, raw: dict[str, Any]) -> None:
        if self._unseen:
            self._unseen.discard(_content(raw))

    def check(self) -> None:
        """Raises UserError if the sources hold none of the clusters; reports how many they lack."""
        saved = f"the answers stay in {self._out}.answers"
        if self._unseen and len(self._unseen) == self._total:
            raise UserError(f"{self._out} holds other clusters; choose another --out, or remove it ({saved})")
        if self._unseen:
            say(f"{self._out} holds {len(self._unseen)} other clusters, which will be removed ({saved})")


def _content(raw: dict[str, Any]) -> bytes:
    content = json.dumps([raw.get("documents"), raw.get("paragraphs")], default=str)
    return hashlib.blake2b(content.encode(), digest_size=16).digest()


def write_output(
    sources: Iterable[RawSource], task: Task, answers: Answers, out: Path, missing: dict[str, str]
) -> dict[str, Any]:
    """Write ``out`` and the rejected rows, in the order of the sources, and return the counts.

    ``missing`` holds the reasons of missing answers by key. Raises UserError if the disk is full.
    """
    rows = _Rows(task, answers, missing)
    partial, partial_rejected = (path.with_name(f".{path.name}.partial") for path in (out, rejected_path(out)))
    with writing(out.parent), ExitStack() as stack:
        for path in (partial, partial_rejected):
            stack.callback(path.unlink, missing_ok=True)
        taught, others = (stack.enter_context(p.open("w", encoding="utf-8")) for p in (partial, partial_rejected))
        for item in (item for source in sources for item in items(source, task)):
            row, reason, details = rows.row(item)
            if row is not None:
                taught.write(json.dumps(row, ensure_ascii=False, default=str) + "\n")
            elif reason:
                line = {"where": item.record.where, "reason": reason, **details, "row": item.record.raw}
                others.write(json.dumps(line, default=str) + "\n")
        for file in (taught, others):
            file.flush()
            os.fsync(file.fileno())
        partial.replace(out)
        if rows.rejected:
            partial_rejected.replace(rejected_path(out))
        else:
            rejected_path(out).unlink(missing_ok=True)
    return {"out": str(out), **rows.figures()}


@dataclass
class _Rows:
    """Turns clusters into rows of the output, and counts them."""

    task: Task
    answers: Answers
    missing: dict[str, str]
    counts: Counter[str] = field(default_factory=Counter)
    rejected: Counter[str] = field(default_factory=Counter)
    unread: Counter[str] = field(default_factory=Counter)

    def row(self, item: Item) -> tuple[dict[str, Any] | None, str, dict[str, Any]]:
        """Return the row; or None, the reason of its rejection and details; no reason if a later run may teach it."""
        self.counts["clusters"] += 1
        if item.problem:
            return self._reject(item.problem.reason, detail=item.problem.detail)
        if not item.cluster:
            self.counts["kept"] += 1
            return item.raw, "", {}
        answer = self.answers.get(item.key, self.task.config.max_tokens)
        if answer is None and item.key in self.missing:
            return self._reject(_NO_ANSWER, detail=self.missing[item.key])
        if answer is None:
            self.counts["left"] += 1
            return None, "", {}
        if answer.reason:
            return self._reject(answer.reason, detail="", answer=answer.text)
        self.counts["taught"] += 1
        self.counts["truncated"] += is_truncated(item.cluster, self.task.config)
        row = item.raw | {"summary": answer.text, "teacher": self._teacher(answer)}
        return row | self._citations(item, answer) if self.task.config.cite else row, "", {}

    def figures(self) -> dict[str, Any]:
        counts = self.counts
        figures: dict[str, Any] = {name: counts[name] for name in ("clusters", "taught", "kept")}
        figures["rejected"] = dict(self.rejected.most_common())
        figures |= {name: counts[name] for name in ("left", "truncated", "cited", "citations_left")}
        tokens = {"prompt": self.answers.prompt_tokens, "completion": self.answers.completion_tokens}
        return figures | {"citations_unread": dict(self.unread.most_common()), "tokens": tokens}

    def _reject(self, reason: str, **details: str) -> tuple[None, str, dict[str, Any]]:
        self.rejected[reason] += 1
        return None, reason, details

    def _teacher(self, answer: Answer) -> dict[str, Any]:
        """Return the origin of a summary."""
        config, prompt = self.task.config, self.task.prompts.sha256[:16]
        served = {"served": answer.served} if answer.served not in ("", config.model) else {}
        return {"model": config.model, **served, "prompt": prompt, **config.parameters, "max_tokens": answer.max_tokens}

    def _citations(self, item: Item, summary: Answer) -> dict[str, Any]:
        """Return the reference citations of a row, or nothing if there are none."""
        answer = self.answers.get(item.cite_key, self.task.config.max_tokens)
        if answer is None:
            self.counts["citations_left"] += 1
            return {}
        citations = None
        if not answer.reason:
            paragraphs = question_of(item, self.task.config).paragraphs
            citations = citations_of(answer.text, sentences_of(summary.text), paragraphs)
        if citations is None:
            self.unread[answer.reason or _UNREADABLE] += 1
            return {}
        self.counts["cited"] += 1
        return {CITATIONS: citations}
