"""Many threads ask the teacher for summaries and citations, within the budget of tokens."""

import math
import threading
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace

from raysum.errors import UserError
from raysum.teach.answers import CUT, Answer, Answers
from raysum.teach.config import TeachConfig
from raysum.teach.prompts import Question, Task
from raysum.teach.server import EMPTY, REFUSED, TOO_LARGE, ChatServer, Stopped, Unanswered
from raysum.text.sentences import sentence_spans

REASONS = (CUT, EMPTY, REFUSED, TOO_LARGE)  # of rejected answers
_FEWEST = 10  # answers before too many rejected ones end the job
_TOKENS = 0.3  # per character, before the server has counted any


@dataclass
class Tally:
    """Count of the answers to a job's clusters, and of the rejected ones."""

    most: float  # the share that may be rejected
    answers: int = 0
    rejected: int = 0

    def add(self, is_rejected: bool) -> None:
        self.answers += 1
        self.rejected += is_rejected

    @property
    def is_over(self) -> bool:
        return self.rejected > self.most * self.answers

    @property
    def ends_job(self) -> bool:
        return self.is_over and self.answers >= _FEWEST


class Spent(Exception):
    """The next request might cost more than the rest of the budget."""


class CostBudget:
    """A limit of tokens for many threads: a request reserves its highest cost first, then pays what it cost.

    ``spent`` tokens were paid before. None is no limit.
    """

    def __init__(self, limit: int | None, spent: int):
        self._limit, self.spent, self._reserved = limit, spent, 0
        self._characters, self._tokens = 0, 0  # of the prompts that the server has counted
        self._changed = threading.Condition()

    def take(self, characters: int, answer: int) -> int:
        """Reserve and return the tokens of a prompt of ``characters`` and an ``answer`` of that many tokens.

        Waits while other requests reserve too many. Raises Spent if the rest is too small even without them.
        """
        if self._limit is None:
            return 0
        with self._changed:
            while True:
                rate = self._tokens / self._characters if self._characters else _TOKENS
                need = math.ceil(rate * characters) + answer
                if self.spent + self._reserved + need <= self._limit:
                    self._reserved += need
                    return need
                if not self._reserved:
                    raise Spent
                self._changed.wait()

    def settle(self, reserved: int, characters: int = 0, prompt: int = 0, answer: int = 0) -> None:
        """Replace a reservation by the tokens of the prompt and the answer: 0 if there was none."""
        with self._changed:
            self._reserved -= reserved
            self.spent += prompt + answer
            if prompt:
                self._characters += characters
                self._tokens += prompt
            self._changed.notify_all()


class Asker:
    """Asks questions and saves the answers.

    After a user's mistake, a spent budget or too many rejected answers it asks nothing new, and lets requests on their
    way end. ``tally`` holds the answers of earlier runs.
    """

    def __init__(self, task: Task, answers: Answers, tally: Tally):
        self._config, self._prompts, self._tally, self._answers = task.config, task.prompts, tally, answers
        self._server = ChatServer(task.config, task.api_key)
        self._budget = CostBudget(task.config.budget, answers.prompt_tokens + answers.completion_tokens)
        self._lock = threading.Lock()
        self._has_ended = False
        self._error: BaseException | None = None
        self.is_spent = False
        self.missing: dict[str, str] = {}  # why the server gave no answer, by key

    def run(self, questions: Iterable[Question], report: Callable[[int], None]) -> None:
        """Ask the questions, several at a time; ``report`` receives the spent tokens after each one.

        Raises the first error of a thread once no request is on its way.
        """
        slots = threading.Semaphore(self._config.concurrency)

        def work(question: Question) -> None:
            try:
                if self._teach(question):
                    with self._lock:
                        report(self._budget.spent)
            finally:
                slots.release()

        try:
            for question in questions:
                slots.acquire()
                if self._has_ended:
                    slots.release()
                    break
                threading.Thread(target=work, args=(question,), daemon=True).start()
            for _ in range(self._config.concurrency):
                slots.acquire()
        finally:
            self._server.stop()
        if self._error:
            raise self._error

    def _teach(self, question: Question) -> bool:
        """Ask for a summary and, if wanted, for its citations; return whether that is done. Raises nothing."""
        try:
            known = saved_answer(self._answers, question.key, self._config)
            summary = known or self._ask(question.key, question.summary_prompt(self._prompts))
            if not known:
                with self._lock:
                    self._tally.add(bool(summary.reason))
                    if self._tally.ends_job:
                        self._end()
            is_cited = saved_answer(self._answers, question.cite_key, self._config)
            if self._config.cite and not summary.reason and not is_cited:
                prompt = question.citations_prompt(self._prompts, sentences_of(summary.text))
                self._ask(question.cite_key, prompt)
            return True
        except Unanswered as error:
            self.missing[question.key] = str(error)
            return True
        except Spent:
            self.is_spent = True
            self._end()
        except Stopped:
            pass
        except BaseException as error:  # noqa: BLE001 - the main thread raises it
            self._error = self._error or error
            self._end()
        return False

    def _end(self) -> None:
        self._has_ended = True
        self._server.stop()

    def _ask(self, key: str, prompt: str) -> Answer:
        reserved, answer = self._budget.take(len(prompt), self._config.max_tokens), Answer("")
        try:
            if self._has_ended:
                raise Stopped
            answer = replace(self._server.ask(prompt), max_tokens=self._config.max_tokens)
        finally:
            self._budget.settle(reserved, len(prompt), answer.prompt_tokens, answer.completion_tokens)
        if self._config.budget and not (answer.prompt_tokens or answer.completion_tokens or answer.reason):
            raise UserError(f"{self._config.shown} does not report the cost of answers (`usage`): leave --budget out")
        self._answers.add(key, answer)
        return answer


def saved_answer(answers: Answers, key: str, config: TeachConfig) -> Answer | None:
    """Return the saved answer, or None if the teacher must be asked."""
    return answers.get(key, config.max_tokens, config.retry_rejected)


def sentences_of(summary: str) -> list[str]:
    return [summary[start:end] for start, end in sentence_spans(summary)]
