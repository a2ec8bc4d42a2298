"""Requests to the teacher's server through the ``openai`` client: when to try again, how long, and what to report.

The protocol is OpenAI's chat completions, as vLLM, llama.cpp and hosted models implement it.
"""

import json
import logging
import math
import random
import re
import threading
import time
from contextlib import closing, suppress
from dataclasses import replace
from typing import Any

import httpx

from raysum.errors import UserError
from raysum.runtime.compat import openai_client
from raysum.runtime.extras import needs
from raysum.runtime.progress import say
from raysum.teach.answers import CUT, Answer
from raysum.teach.config import KEY, TeachConfig

LARGEST = 4 << 20  # bytes of a response that are read
EMPTY, REFUSED = "the answer is empty", "the teacher refuses"
TOO_LARGE = f"the answer is longer than {LARGEST >> 20} MiB"
_FIRST, _LONGEST = 0.5, 60.0  # seconds between tries
_QUIET = 30.0  # seconds without a first answer before a message says so
_LONGER = 10  # a wait of the same kind is reported again if it is so many times as long
_SHOWN, _SEARCHED = 300, 1 << 16  # characters of a server's error message, and bytes in which they are looked for
_KEY_LENGTH = 16  # shorter secrets may be words of a summary
_MOST_TOKENS = 10**9  # of a prompt or an answer: a higher count is the server's mistake
_LIMIT, _MODERN_LIMIT = "max_tokens", "max_completion_tokens"  # some models refuse the first
_CONTROL = re.compile(r"[\0-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f]")
_THOUGHT, _THOUGHT_ENDS = "<think>", "</think>"  # some servers leave out the first
_LONGEST_NAME = 200  # characters of a model's name
_REFUSAL = re.compile(
    r"((i['’]m|i am) )?sorry\W+(but )?i (can|am|will)|i (can['’]t|cannot|can not) (help|assist)", re.IGNORECASE
)
_BLOCKED = ("content_filter", "content_policy_violation")  # codes of refusals that come as errors


class Unanswered(Exception):
    """The server answers other requests, but not this one."""


class Stopped(Exception):
    """The job ends: nothing more is asked."""


class _TooLarge(Exception):
    """The response has more than ``LARGEST`` bytes."""


class _NotACompletion(httpx.RemoteProtocolError):
    """A response of status 200 without a chat completion."""

    def __init__(self, content: bytes, is_torn: bool):
        super().__init__("no chat completion")
        self.content, self.is_torn = content, is_torn


class _HttpClient(httpx.Client):
    """Send the body of each request to the configured URL with our own headers, and read a limited response.

    The OpenAI client adds headers from OPENAI_* variables of the environment; none of them is sent. Redirects are not
    followed, and compressed responses are not unpacked: a few KB could fill the memory.
    """

    def __init__(self, config: TeachConfig, key: str):
        headers = {"Accept-Encoding": "identity", "Content-Type": "application/json"}
        headers |= {"Authorization": f"Bearer {key}"} if key else {}
        super().__init__(
            headers=headers,
            auth=None if key else config.login,
            timeout=httpx.Timeout(config.timeout, connect=min(config.timeout, 30), pool=None),
            limits=httpx.Limits(max_connections=config.concurrency, max_keepalive_connections=config.concurrency),
        )
        self.endpoint, self.seconds = config.endpoint, config.timeout

    def send(self, request: httpx.Request, **options: Any) -> httpx.Response:
        """Return the response; a completion's ``extensions`` hold the ``answer``.

        Raises httpx.TransportError if there is none or it is no completion.
        """
        content, ends = bytearray(), time.monotonic() + self.seconds
        own = self.build_request("POST", self.endpoint, content=request.content)
        with closing(super().send(own, stream=True)) as response:
            for part in response.iter_raw():
                content += part
                if len(content) > LARGEST:
                    raise _TooLarge
                if time.monotonic() > ends:
                    raise httpx.ReadTimeout(f"not done after {self.seconds:g} s")
        answer = _answer_of(bytes(content)) if response.status_code == 200 else None
        headers = {name: response.headers[name] for name in ("Retry-After",) if name in response.headers}
        return httpx.Response(
            response.status_code,
            headers=headers,
            content=bytes(content),
            request=request,
            extensions={"answer": answer},
        )


class ChatServer:
    """Answers prompts. Many threads share it. Its messages hold neither the key nor a password of the URL."""

    def __init__(self, config: TeachConfig, key: str):
        self._config, self._secrets = config, config.secrets
        for library in ("httpx", "openai"):  # their messages hold URLs, which may hold secrets
            logging.getLogger(library).setLevel(logging.WARNING)
        self._openai = needs("openai", "`raysum teach`")
        unused = dict.fromkeys(("admin_api_key", "organization", "project", "webhook_secret"), "")  # not from OPENAI_*
        self._client = openai_client(
            self._before_retry, api_key="unused", base_url=config.shown, http_client=_HttpClient(config, key), **unused
        )
        self._limit_name, self._paused_until = _LIMIT, 0.0
        self._answered, self._last = 0, 0.0  # the number of answers, and the time of the last one
        self._lock, self._reported = threading.Lock(), dict[str, float]()
        self._request = threading.local()  # of this thread: its start, failures, and the number of answers then
        self._stopped = threading.Event()
        self._watch = threading.Timer(_QUIET, self._say_quiet)
        self._watch.daemon = True

    def stop(self) -> None:
        """End all waits for another try with :class:`Stopped`."""
        self._stopped.set()
        self._watch.cancel()

    def ask(self, prompt: str) -> Answer:
        """Return the answer to a prompt.

        Raises UserError for a user's mistake and if the server stopped answering, Unanswered if it fails for this
        prompt only, and Stopped after :meth:`stop`.
        """
        request = self._request
        request.start, request.failures = time.monotonic(), 0
        request.answered_before = request.answered_at_failure = self._answered
        with self._lock:
            if self._watch.ident is None:
                self._watch.start()
        self._sleep(0)
        try:
            answer = self._complete(prompt)
        except _TooLarge:
            answer = Answer("", TOO_LARGE)
        except self._openai.APIStatusError as error:
            answer = self._refused(error.response)
        self._answered, self._last = self._answered + 1, time.monotonic()
        return answer

    def _complete(self, prompt: str) -> Answer:
        limit_name, parameters = self._limit_name, dict(self._config.parameters)
        parameters[limit_name] = parameters.pop(_LIMIT)
        messages = [{"role": "user", "content": prompt}]
        create = self._client.chat.completions.with_raw_response.create
        try:
            response = create(model=self._config.model, messages=messages, **parameters)
        except self._openai.BadRequestError as error:
            if limit_name != _LIMIT or _MODERN_LIMIT not in self._error(error.response.content)[0]:
                raise
            self._limit_name = _MODERN_LIMIT
            return self._complete(prompt)
        answer = response.http_response.extensions["answer"]
        return replace(
            answer, text=self._public(answer.text, _KEY_LENGTH), served=self._public(answer.served, _KEY_LENGTH)
        )

    def _before_retry(self, error: BaseException | None, retry_after: float | None) -> None:
        """Wait before the next try; if the server says how long, all other requests wait, too.

        Raises UserError or Unanswered if there is none.
        """
        failure, request = self._described(error), self._request
        is_limit = isinstance(error, httpx.HTTPStatusError) and error.response.status_code == 429
        if not (is_limit and self._answered > request.answered_at_failure):  # a rate limit that lets others through
            request.failures += 1
        request.answered_at_failure = self._answered
        if request.failures > self._config.retries:
            failure = f"{failure} ({request.failures} tries)"
            if self._answered > request.answered_before:
                raise Unanswered(self._public(failure))
            raise self._mistake(f"{failure}; check that it runs. The same command continues")
        wait = min(_FIRST * 2 ** min(request.failures, 30), _LONGEST) * random.uniform(0.5, 1.0)
        if retry_after is not None:
            wait = retry_after + random.uniform(0, _FIRST)
        silent, limit = time.monotonic() - max(request.start, self._last), self._config.give_up_after
        if silent + wait > limit:
            asked = f", and asks to wait for {retry_after:.0f} s" if retry_after else ""
            raise self._mistake(
                f"{failure}{asked}; there would be no answer for more than --give-up-after {limit:g} s. "
                "All answers are saved: the same command continues"
            )
        if retry_after is not None:
            self._paused_until = max(self._paused_until, time.monotonic() + retry_after)
        self._say_wait(failure, wait)
        self._sleep(wait)

    def _described(self, error: BaseException | None) -> str:
        """Return what went wrong. Raises UserError for what another try cannot mend."""
        if isinstance(error, httpx.HTTPStatusError):
            return f"answers {error.response.status_code}: {self._error(error.response.content)[0]}"
        if isinstance(error, _NotACompletion):
            failure = f"answers with something else than a chat completion: {self._opening(error.content)!r}"
            if not self._answered and not error.is_torn:
                raise self._mistake(f"{failure}; is --teacher the API's base, such as http://HOST/v1?")
            return failure
        if isinstance(error, httpx.ConnectError):
            if not self._answered:
                raise self._mistake(f"does not answer ({error}); start the server, or correct --teacher")
            return f"does not answer ({error})"
        return f"breaks off ({error or type(error).__name__})"

    def _refused(self, response: httpx.Response) -> Answer:
        """Return a refusal that came as an error. Raises UserError for any other error status."""
        status, (message, code) = response.status_code, self._error(response.content)
        if code in _BLOCKED:
            return Answer(self._public(message), REFUSED)
        failure = f"answers {status}: {message}"
        if status in (401, 403):
            raise self._mistake(f"{failure}; set the key in the environment variable {KEY}")
        if 300 <= status < 400:
            raise self._mistake(f"answers {status}, a redirection; give the address that it leads to")
        if status == 404:
            raise self._mistake(
                f"{failure}; is --teacher the API's base, as http://HOST/v1, and --model a model of it?"
            )
        raise self._mistake(f"{failure}; a lower --max-characters or other settings may help")

    def _sleep(self, seconds: float) -> None:
        """Wait for so many seconds, and until the end of the pause that the server asked for."""
        end = time.monotonic() + seconds
        while True:
            rest = max(end, self._paused_until) - time.monotonic()
            if self._stopped.wait(max(rest, 0.0)) or self._stopped.is_set():
                raise Stopped
            if rest <= 0:
                return

    def _say_wait(self, failure: str, wait: float) -> None:
        """Report the first wait of each kind, and then only waits that are ten times as long."""
        kind = failure.partition(":")[0]
        with self._lock:
            if kind in self._reported and wait < _LONGER * self._reported[kind]:
                return
            self._reported[kind] = wait
        limit = f"it ends after {self._config.give_up_after:g} s without any answer (--give-up-after)"
        say(self._public(f"{self._config.shown} {failure}; next try in {math.ceil(wait)} s; {limit}"))

    def _say_quiet(self) -> None:
        if not (self._answered or self._reported or self._stopped.is_set()):
            limit = f"a request may take {self._config.timeout:g} s (--timeout)"
            say(f"{self._config.shown} has not answered yet, after {_QUIET:g} s; {limit}")

    def _mistake(self, problem: str) -> UserError:
        return UserError(self._public(f"{self._config.shown} {problem}"))

    def _error(self, content: bytes) -> tuple[str, str]:
        """Return a server's error message as one short line, and its code."""
        with suppress(ValueError, AttributeError, RecursionError):
            error = json.loads(content)
            error = error.get("error", error)
            if isinstance(error, str):
                return self._opening(error.encode(errors="replace")), ""
            message = error.get("message") or error.get("detail")
            return self._opening(str(message or error).encode(errors="replace")), str(error.get("code"))
        return self._opening(content), ""

    def _opening(self, content: bytes) -> str:
        """Return the first line of a response, without secrets: before it is cut, since the cut may split a key."""
        line = " ".join(self._public(content[:_SEARCHED].decode("utf-8", "replace")).split())
        return line if len(line) <= _SHOWN else f"{line[:_SHOWN]} ..."

    def _public(self, text: str, shortest: int = 0) -> str:
        """Return the text with stars in place of secrets of at least ``shortest`` characters."""
        for secret in self._secrets:
            text = text.replace(secret, "***") if len(secret) >= shortest else text
        return text


def _answer_of(content: bytes) -> Answer:
    """Return the answer in a chat completion. Raises _NotACompletion."""
    try:
        value = json.loads(content)
        choice, usage, served = value["choices"][0], value.get("usage"), value.get("model")
        message, finish = choice["message"], choice.get("finish_reason")
        text = message.get("content") or ""
        if isinstance(text, list):
            text = "".join(part.get("text") or "" for part in text)
        refusal = str(message.get("refusal") or "")
        text = _plain(text).rpartition(_THOUGHT_ENDS)[2].strip()
    except (ValueError, LookupError, TypeError, AttributeError, RecursionError) as error:
        is_torn = isinstance(error, json.JSONDecodeError) and content.lstrip().startswith(b"{")
        raise _NotACompletion(content, is_torn) from None
    text = "" if text.startswith(_THOUGHT) else text
    reason = "" if text else EMPTY
    if finish == "length":
        reason = CUT
    elif finish == "content_filter" or refusal or _REFUSAL.match(text):
        reason = REFUSED
    counts = (usage.get(name) if isinstance(usage, dict) else 0 for name in ("prompt_tokens", "completion_tokens"))
    prompt, completion = (count if type(count) is int and 0 < count <= _MOST_TOKENS else 0 for count in counts)
    served = _plain(served)[:_LONGEST_NAME] if isinstance(served, str) else ""
    return Answer(text or refusal, reason, prompt, completion, served)


def _plain(text: str) -> str:
    """Return the text without terminal controls and lone surrogates."""
    return _CONTROL.sub("", text.encode("utf-8", "replace").decode())
