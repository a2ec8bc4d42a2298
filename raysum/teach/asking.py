"""Asking for the summary of one cluster after the other, by many threads at once: here, or as an actor of Ray Data."""

import threading
import traceback
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from queue import SimpleQueue

from raysum.errors import UserError
from raysum.teach.answers import Answer, Answers
from raysum.teach.budget import Budget, Spent
from raysum.teach.config import TeachConfig
from raysum.teach.log_relay import tell
from raysum.teach.prompts import Brief, Task
from raysum.teach.rejects import Tally
from raysum.teach.server import Server, Stopped, Unanswered
from raysum.text.sentences import sentence_spans


@dataclass
class Outcome:
    """What became of a brief. The answers themselves are where they are kept."""

    key: str
    where: str
    answers: int = 0  # asked for now
    tokens: int = 0  # that all answers have cost so far
    missing: str = ""  # why the server gave none
    problem: str = ""  # of the user's, for which no more is asked
    fault: str = ""  # of ours: the traceback
    spent: bool = False  # nothing is left of the budget
    enough: bool = False  # of answers that are of no use
    left: bool = False  # nothing was asked any more
    busy: int = 0  # others that are on their way


class Asker:
    """Gives each brief to the teacher and keeps what it answers. Threads share it.

    After a problem, when the budget is spent, or where too many answers are of no use, nothing new is asked; what is on
    its way comes to its end. ``tally`` holds the answers that were there before.
    """

    def __init__(self, task: Task, tally: Tally, relay: Path | None = None):
        self._config, self._prompts, self._tally = task.config, task.prompts, tally
        self._answers = Answers(task.answers)
        self._server = Server(task.config, task.api_key, partial(tell, relay=relay))
        self._budget = Budget(task.config.budget, self._answers.tokens)
        self._lock, self._ended, self._busy = threading.Lock(), False, 0
        self._asked: dict[str, threading.Event] = {}  # by key, what is on its way

    def close(self) -> None:
        self._server.stop()
        self._answers.close()

    def __call__(self, brief: Brief) -> Outcome:
        """Raises nothing."""
        outcome = Outcome(brief.key, brief.where)
        with self._lock:
            self._busy += 1
        try:
            if self._ended:
                raise Stopped
            self._teach(brief, outcome)
        except Unanswered as missing:
            outcome.missing = str(missing)
        except Spent:
            outcome.spent = True
        except UserError as problem:
            outcome.problem = str(problem)
        except OSError as error:
            outcome.problem = f"cannot write {error.filename}: {error.strerror}; free space there"
        except Stopped:
            outcome.left = True
        except Exception:
            outcome.fault = traceback.format_exc()
        if outcome.spent or outcome.enough or outcome.problem or outcome.fault:
            self._ended = True
            self._server.stop()
        with self._lock:
            self._busy -= 1
            outcome.busy = self._busy
        outcome.tokens = self._budget.spent
        return outcome

    def _teach(self, brief: Brief, outcome: Outcome) -> None:
        summary = self._answer(brief.key, brief.summary_prompt(self._prompts), outcome)
        if outcome.answers:
            with self._lock:
                self._tally.add(bool(summary.reason))
                outcome.enough = self._tally.ends_it
        if self._config.cite and not summary.reason:
            sentences = sentences_of(summary.text)
            self._answer(brief.cite_key, brief.citations_prompt(self._prompts, sentences), outcome)

    def _answer(self, key: str, prompt: str, outcome: Outcome) -> Answer:
        """The answer of that key, which is asked for once."""
        with self._alone(key):
            found = kept_of(self._answers, key, self._config)
            if found is None:
                found = replace(self._ask(prompt), max_tokens=self._config.max_tokens)
                self._answers.add(key, found)
                outcome.answers += 1
            return found

    @contextmanager
    def _alone(self, key: str) -> Iterator[None]:
        """No other thread asks for the answer of that key in the block."""
        while True:
            with self._lock:
                other = self._asked.get(key)
                if other is None:
                    mine = self._asked[key] = threading.Event()
                    break
            other.wait()
        try:
            yield
        finally:
            with self._lock:
                del self._asked[key]
            mine.set()

    def _ask(self, prompt: str) -> Answer:
        held, answer = self._budget.take(len(prompt), self._config.max_tokens), Answer("")
        try:
            if self._ended:
                raise Stopped
            answer = self._server.ask(prompt)
        finally:
            self._budget.settle(held, len(prompt), answer.prompt_tokens, answer.completion_tokens)
        if self._config.budget and not answer.tokens and not answer.reason:
            self._ended = True
            raise UserError(f"{self._config.shown} does not tell what an answer costs (`usage`): leave --budget out")
        return answer


def kept_of(answers: Answers, key: str, config: TeachConfig) -> Answer | None:
    """The answer of that key; None where it is to be asked for."""
    found = answers.get(key, config.max_tokens)
    return None if found and found.reason and config.again and answers.is_old(key) else found


def sentences_of(summary: str) -> list[str]:
    return [summary[start:end] for start, end in sentence_spans(summary)]


def ask_here(asker: Asker, briefs: Iterable[Brief], at_once: int) -> Iterator[Outcome]:
    """Outcomes as they come, of so many briefs ``at_once``. Threads end with the process, or when this is left."""
    todo: SimpleQueue[Brief | None] = SimpleQueue()
    made: SimpleQueue[Outcome] = SimpleQueue()

    def work() -> None:
        while (brief := todo.get()) is not None:
            made.put(asker(brief))

    threads, waiting = 0, 0
    try:
        for brief in briefs:
            if threads < at_once:
                threading.Thread(target=work, daemon=True).start()
                threads += 1
            todo.put(brief)
            waiting += 1
            if waiting == at_once:
                yield made.get()
                waiting -= 1
        for _ in range(waiting):
            yield made.get()
    finally:
        for _ in range(threads):
            todo.put(None)
