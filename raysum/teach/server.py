"""The teacher's server: one question at a time and thread, asked again where that may help, never faster than it wants.

The protocol is that of OpenAI's chat completions, as vLLM, llama.cpp and hosted models speak it.
"""

import json
import logging
import math
import random
import re
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import replace
from datetime import datetime, timezone
from email.utils import parsedate_to_datetime
from typing import Any

import httpx

from raysum.errors import UserError
from raysum.teach.answers import CUT, Answer
from raysum.teach.config import KEY, TeachConfig

LARGEST = 4 << 20  # bytes of an answer that are read
EMPTY, REFUSED = "the answer is empty", "the teacher refuses"
TOO_LARGE = f"the answer is longer than {LARGEST >> 20} MiB"
NO_ANSWER = "no answer"
_FIRST, _LONGEST = 0.5, 60.0  # seconds between tries
_QUIET = 30.0  # seconds without a first answer, after which that is said
_LONGER = 10  # times the wait that was said last: it is said again
_SHOWN, _READ = 300, 1 << 16  # characters of what a server says of an error, and bytes that these are sought in
_KEY = 16  # characters of a key, at least
_MOST_TOKENS = 10**9  # of a prompt or an answer: more is a mistake of the server's
_LIMIT, _MODERN = "max_tokens", "max_completion_tokens"  # the second is for models that refuse the first
_CONTROL = re.compile(r"[\0-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f]")
_THOUGHT, _THOUGHT_ENDS = "<think>", "</think>"  # some servers leave out the first
_LONGEST_NAME = 200  # characters of a model's name
_NO = re.compile(
    r"((i['’]m|i am) )?sorry\W+(but )?i (can|am|will)|i (can['’]t|cannot|can not) (help|assist)", re.IGNORECASE
)
_BLOCKED = ("content_filter", "content_policy_violation")  # codes of refusals that come as errors


class Unanswered(Exception):
    """The server answers others, but not this question."""


class Stopped(Exception):
    """No more is asked."""


class _Again(Exception):
    """It may go well the next time, after ``wait`` seconds where the server tells them."""

    def __init__(self, told: str, wait: float | None = None, limited: bool = False):
        super().__init__(told)
        self.wait, self.limited = wait, limited


class Server:
    """Asked by many threads. What a message says holds neither the key nor a password in the address.

    ``tell`` is called with what there is to say of waits: the first of each kind, and much longer ones.
    """

    def __init__(self, config: TeachConfig, key: str, tell: Callable[[str], None]):
        self._tell, self._told, self._lock = tell, dict[str, float](), threading.Lock()
        self._config, self._secrets = config, config.secrets
        headers = {"Accept-Encoding": "identity"}  # a packed answer may be small, and fill memory
        headers |= {"Authorization": f"Bearer {key}"} if key else {}
        limits = httpx.Limits(max_connections=config.concurrency, max_keepalive_connections=config.concurrency)
        timeout = httpx.Timeout(config.timeout, connect=min(config.timeout, 30), pool=None)
        logging.getLogger("httpx").setLevel(logging.WARNING)  # it would tell each address, with what is secret in it
        login = None if key else config.login
        self._http = httpx.Client(headers=headers, auth=login, timeout=timeout, limits=limits)
        self._limit = _LIMIT
        self._paused_until = 0.0
        self._answered, self._last = 0, 0.0  # answers, and when the last of them came
        self._stopped = threading.Event()
        self._watch = threading.Timer(_QUIET, self._say_quiet)
        self._watch.daemon = True

    def stop(self) -> None:
        """Let what waits for another try end as :class:`Stopped`."""
        self._stopped.set()
        self._watch.cancel()

    def ask(self, prompt: str) -> Answer:
        """The answer to a prompt. Raises UserError for a mistake of the user's and where nothing answers any more,
        Unanswered where the server gives up on this prompt alone, Stopped after :meth:`stop`."""
        failures, before, seen, began = 0, self._answered, self._answered, time.monotonic()
        with self._lock:
            if self._watch.ident is None:
                self._watch.start()
        while True:
            self._wait(max(0.0, self._paused_until - time.monotonic()))
            try:
                answer = self._once(prompt)
            except _Again as failure:
                if not (failure.limited and self._answered > seen):  # limits that let others through wear nobody out
                    failures += 1
                seen = self._answered
                if failures > self._config.retries:
                    told = f"{failure} ({failures} tries)"
                    if self._answered > before:
                        raise Unanswered(self._public(told)) from None
                    raise self._mistake(f"{told}; see whether it is up. The same command goes on") from None
                self._pause(failure, failures, began)
            else:
                self._answered, self._last = self._answered + 1, time.monotonic()
                return answer

    def _pause(self, failure: _Again, failures: int, began: float) -> None:
        """Before the next try; where the server asks for it, also of all others. Raises UserError where there would be
        no answer for too long."""
        wait = min(_FIRST * 2 ** min(failures, 30), _LONGEST) * random.uniform(0.5, 1.0)
        if failure.wait is not None:
            wait = failure.wait + random.uniform(0, _FIRST)
        silent, patience = time.monotonic() - max(began, self._last), self._config.patience
        if silent + wait > patience:
            asked = f", and asks to wait for {failure.wait:.0f} s" if failure.wait else ""
            told = f"{failure}{asked}; nothing is answered for longer than --patience {patience:g}"
            raise self._mistake(f"{told}. What was answered is kept: the same command goes on")
        if failure.wait is not None:
            self._paused_until = max(self._paused_until, time.monotonic() + failure.wait)
        self._say_wait(failure, wait)
        self._wait(wait)

    def _say_wait(self, failure: _Again, wait: float) -> None:
        kind = str(failure).partition(":")[0]
        with self._lock:
            if kind in self._told and wait < _LONGER * self._told[kind]:
                return
            self._told[kind] = wait
        limit = f"it ends after {self._config.patience:g} s without any answer (--patience)"
        self._tell(self._public(f"{self._config.shown} {failure}; next try in {math.ceil(wait)} s; {limit}"))

    def _say_quiet(self) -> None:
        if not (self._answered or self._told or self._stopped.is_set()):
            limits = f"a request may take {self._config.timeout:g} s (--timeout)"
            self._tell(f"{self._config.shown} has not answered yet, after {_QUIET:g} s; {limits}")

    def _wait(self, seconds: float) -> None:
        if self._stopped.wait(seconds) or self._stopped.is_set():
            raise Stopped

    def _once(self, prompt: str) -> Answer:
        body = {"model": self._config.model, "messages": [{"role": "user", "content": prompt}]}
        limit, parameters = self._limit, dict(self._config.parameters)
        parameters[limit] = parameters.pop(_LIMIT)
        try:
            status, headers, content = self._exchange(body | parameters)
        except (httpx.UnsupportedProtocol, httpx.InvalidURL):
            raise self._mistake("is no address; write for example http://127.0.0.1:8000/v1") from None
        except httpx.ConnectError as error:
            if not self._answered:
                raise self._mistake(f"does not answer ({error}); start the server, or mend --teacher") from None
            raise _Again(f"does not answer ({error})") from None
        except httpx.TransportError as error:
            raise _Again(f"breaks off ({error or type(error).__name__})") from None
        if content is None:
            return Answer("", TOO_LARGE)
        if status == 200:
            try:
                return self._without_secrets(_answer(json.loads(content)))
            except (ValueError, LookupError, TypeError, AttributeError, RecursionError) as error:
                torn = isinstance(error, json.JSONDecodeError) and content.lstrip().startswith(b"{")
                told = f"answers with something else than a chat completion: {self._opening(content)!r}"
            if not self._answered and not torn:
                raise self._mistake(f"{told}; is --teacher the API's base, such as http://HOST/v1?")
            raise _Again(told)
        if status == 400 and limit == _LIMIT and _MODERN in self._error(content)[0]:
            self._limit = _MODERN
            return self._once(prompt)
        return self._refused(status, headers, content)

    def _exchange(self, body: dict[str, Any]) -> tuple[int, Mapping[str, str], bytes | None]:
        """Status, headers and what was answered; None where that is too long to be read."""
        ends, content = time.monotonic() + self._config.timeout, bytearray()
        with self._http.stream("POST", self._config.endpoint, json=body) as response:
            for part in response.iter_raw():
                content += part
                if len(content) > LARGEST:
                    return response.status_code, response.headers, None
                if time.monotonic() > ends:
                    raise httpx.ReadTimeout(f"not done after {self._config.timeout:g} s")
            return response.status_code, response.headers, bytes(content)

    def _refused(self, status: int, headers: Mapping[str, str], content: bytes) -> Answer:
        said, code = self._error(content)
        if status in (408, 429) or status >= 500:
            raise _Again(f"answers {status}: {said}", _retry_after(headers), status == 429)
        if code in _BLOCKED:
            return Answer(self._public(said), REFUSED)
        told = f"answers {status}: {said}"
        if status in (401, 403):
            raise self._mistake(f"{told}; set the key in the environment variable {KEY}")
        if 300 <= status < 400:
            raise self._mistake(f"answers {status}, a redirection; name the place that it leads to")
        if status == 404:
            raise self._mistake(f"{told}; is --teacher the API's base, as http://HOST/v1, and --model a model of it?")
        raise self._mistake(f"{told}; a shorter --context or other settings may help")

    def _mistake(self, told: str) -> UserError:
        return UserError(self._public(f"{self._config.shown} {told}"))

    def _error(self, content: bytes) -> tuple[str, str]:
        """What a server says of an error, in one short line, and its code."""
        with suppress(ValueError, AttributeError, RecursionError):
            told = json.loads(content)
            told = told.get("error", told)
            if isinstance(told, str):
                return self._opening(told.encode(errors="replace")), ""
            said = told.get("message") or told.get("detail")
            return self._opening(str(said or told).encode(errors="replace")), str(told.get("code"))
        return self._opening(content), ""

    def _opening(self, content: bytes) -> str:
        line = " ".join(self._public(content[:_READ].decode("utf-8", "replace")).split())
        return line if len(line) <= _SHOWN else f"{line[:_SHOWN]} ..."

    def _without_secrets(self, answer: Answer) -> Answer:
        """A server may repeat a key; what is shorter than one may be a word of the summary."""
        return replace(answer, text=self._public(answer.text, _KEY), served=self._public(answer.served, _KEY))

    def _public(self, text: str, shortest: int = 0) -> str:
        for secret in self._secrets:
            text = text.replace(secret, "***") if len(secret) >= shortest else text
        return text


def _answer(value: dict[str, Any]) -> Answer:
    """Raises KeyError and the like where ``value`` is no chat completion."""
    choice = value["choices"][0]
    message, finish, usage = choice["message"], choice.get("finish_reason"), value.get("usage")
    text = message.get("content") or ""
    if isinstance(text, list):
        text = "".join(part.get("text") or "" for part in text)
    text = _plain(text).rpartition(_THOUGHT_ENDS)[2].strip()
    text = "" if text.startswith(_THOUGHT) else text
    reason = ""
    if finish == "length":
        reason = CUT
    elif finish == "content_filter" or message.get("refusal") or _NO.match(text):
        reason = REFUSED
    elif not text:
        reason = EMPTY
    served = value.get("model")
    counts = (usage.get(name) if isinstance(usage, dict) else 0 for name in ("prompt_tokens", "completion_tokens"))
    prompt, completion = (count if type(count) is int and 0 < count <= _MOST_TOKENS else 0 for count in counts)
    text = text or str(message.get("refusal") or "")
    served = _plain(served)[:_LONGEST_NAME] if isinstance(served, str) else ""
    return Answer(text, reason, prompt, completion, served)


def _plain(text: str) -> str:
    """Without what a terminal obeys, and what UTF-8 cannot have."""
    return _CONTROL.sub("", text.encode("utf-8", "replace").decode())


def _retry_after(headers: Mapping[str, str]) -> float | None:
    """Seconds; the header has them, or a date."""
    given = headers.get("Retry-After", "")
    try:
        seconds = float(given)
    except ValueError:
        try:
            then = parsedate_to_datetime(given)
        except (ValueError, TypeError):
            return None
        zone = then.tzinfo or timezone.utc
        seconds = (then.replace(tzinfo=zone) - datetime.now(timezone.utc)).total_seconds()
    return max(seconds, 0.0) if seconds == seconds else None
