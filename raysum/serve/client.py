"""Clients of `raysum serve`: one that waits for its answers, and one for asyncio."""

import asyncio
import base64
import json
import os
import time
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any, Generic, TypeVar

import httpx

from raysum.errors import UserError

_RETRIED = (429, 500, 502, 503, 504)  # a limit of the key, a replica died, the queue is full, or the server stops
_RUNNING, _POLL = "in_progress", 1.0  # the status of a batch, and seconds between two looks at it
_LAST_PORT = 65535
_FIRST_PAUSE, _LONGEST_PAUSE = 0.25, 30  # seconds: after the first attempt, and if the server asks for more


class NoServerError(UserError):
    """No server of raysum is at the address."""


class NoAnswerError(UserError):
    """Another attempt may succeed, after the ``pause`` in seconds that the server asks for, if any.

    ``is_busy``: a server has answered that it cannot now; otherwise it is a NoServerError after the last attempt.
    """

    def __init__(self, message: str, is_busy: bool, pause: float | None = None):
        super().__init__(message)
        self.is_busy, self.pause = is_busy, pause


_Event = tuple[str, dict[str, Any]]
_Answer = TypeVar("_Answer")  # the object in an answer, or a coroutine that returns it
_Stream = TypeVar("_Stream")  # an iterator over events, or one for asyncio


class _Connection(Generic[_Answer, _Stream]):
    """The address of a server, its key, the requests, and the meaning of answers.

    ``_ask`` sends a request by its method and path, and ``_streamed`` one for a stream. ``content`` is a function that
    returns arguments of httpx, so that its errors are raised when the request is awaited or iterated.
    """

    _HTTP: type[httpx.Client] | type[httpx.AsyncClient]
    _ask: Callable[..., _Answer]
    _streamed: Callable[..., _Stream]

    def __init__(
        self, address: str = "http://127.0.0.1:8000", timeout: float = 300.0, retries: int = 5, key: str | None = None
    ):
        self.address = address.rstrip("/")
        self.retries = retries
        key = (key or os.environ.get("RAYSUM_KEY", "")).strip()  # a file of it may end with a line end
        if not (key.isascii() and key.isprintable()):
            raise UserError("the key has characters that no key has; set RAYSUM_KEY or key= to one")
        headers = {"Authorization": f"Bearer {key}"} if key else {}
        self._http: Any = self._HTTP(timeout=timeout, headers=headers)

    def summarize(
        self,
        title: str = "",
        documents: Sequence[str | dict[str, str] | Path] = (),
        id: str | None = None,
        **options: Any,
    ) -> _Answer:
        """The summary of a cluster as an object with ``id``, ``summary``, ``sentences`` and ``attention``.

        A document is a text, an object with ``source`` and ``text``, or the path of a file of any supported kind, which
        is uploaded. ``options`` are decoding settings of this request (``num_beams=8``), the parts of its ``outline``,
        and the ``model`` of a service with several. Raises UserError where a file cannot be read, nothing answers, or
        the server refuses the request.
        """
        return self._ask("POST", "/v1/summarize", partial(_body, title, documents, id, options))

    def stream(
        self,
        title: str = "",
        documents: Sequence[str | dict[str, str] | Path] = (),
        id: str | None = None,
        **options: Any,
    ) -> _Stream:
        """Yield the names and values of the events of a summary, the last of which is ``("result", summary)``.

        >>> for event, values in Client().stream("Florence", ["text of a document", "text of another"]):
        ...     print(event, values)  # for AsyncClient: async for

        The events are ``queued``, ``reading``, ``prefix`` and ``sentence``, see the route /v1/summarize/stream. Nothing
        is retried. Raises UserError if nothing answers, or if the server refuses the request or fails.
        """
        return self._streamed(partial(_body, title, documents, id, options))

    def health(self) -> _Answer:
        """The server's ``status``, ``run`` and ``step``."""
        return self._ask("GET", "/healthz")

    def start_batch(self, requests: Mapping[str, Mapping[str, Any]]) -> _Answer:
        """Send requests (bodies of /v1/summarize) by their ids, and return the batch with its ``id``."""
        return self._ask("POST", "/v1/batches", partial(_lines, requests))

    def batch(self, id: str) -> _Answer:
        """The ``status`` of a batch, and its ``request_counts``: total, completed and failed."""
        return self._ask("GET", f"/v1/batches/{id}")

    def cancel_batch(self, id: str) -> _Answer:
        """End a batch and return it. Its results so far stay."""
        return self._ask("POST", f"/v1/batches/{id}/cancel")

    def foreign(self) -> NoServerError:
        """Return the error that another program answers."""
        return NoServerError(f"{self.address} does not answer as `raysum serve` does; check the address")

    def _problem(self, answer: httpx.Response) -> str:
        """Return what an answer says that has no summary. Raises NoServerError if another program refuses."""
        try:
            return f"{self.address} answers {answer.status_code}: {answer.json()['error']}"
        except (ValueError, RecursionError, KeyError, TypeError):
            if answer.status_code not in _RETRIED:  # which a proxy may also answer
                raise self.foreign() from None
            return f"{self.address} answers {answer.status_code}"

    def _object(self, content: str | bytes) -> dict[str, Any]:
        """Return the object in an answer or a line. Raises UserError if there is none: another program answers."""
        try:
            found = json.loads(content)
        except (ValueError, RecursionError):
            found = None
        if not isinstance(found, dict):
            raise self.foreign()
        return found

    def _found(self, answer: httpx.Response) -> dict[str, Any]:
        """Return the object in an answer. Raises NoAnswerError if another attempt may succeed, otherwise UserError."""
        if answer.status_code == 200:
            return self._object(answer.content)
        if answer.status_code not in _RETRIED:
            raise UserError(self._problem(answer))
        wait = answer.headers.get("Retry-After", "")  # it may be a date
        raise NoAnswerError(self._problem(answer), True, min(int(wait), _LONGEST_PAUSE) if wait.isdecimal() else None)

    def _pause(self, error: NoAnswerError, attempt: int) -> float:
        """Return the seconds between this attempt, from 0, and the next. Raises UserError after the last attempt."""
        if attempt >= self.retries:
            raise (UserError if error.is_busy else NoServerError)(str(error)) from None
        return _FIRST_PAUSE * 2**attempt if error.pause is None else error.pause

    def _is_url(self) -> bool:
        try:
            url = httpx.URL(self.address)
            return url.scheme in ("http", "https") and bool(url.host) and (url.port or 0) <= _LAST_PORT
        except (httpx.InvalidURL, UnicodeError):  # a wrong international name
            return False

    @contextmanager
    def _errors(self) -> Iterator[None]:
        """Raises UserError in place of errors of the address and the connection."""
        if not self._is_url():
            raise NoServerError(f"{self.address!r} is not a URL; use for example http://127.0.0.1:8000")
        try:
            yield
        except httpx.RequestError as error:
            reason = error or type(error).__name__
            message = f"nothing answers at {self.address} ({reason}); is `raysum serve` running?"
            raise NoAnswerError(message, is_busy=False) from None


class Client(_Connection[dict[str, Any], Iterator[_Event]]):
    """Requests summaries from the server at ``address`` and retries failed requests.

    ``timeout`` is the limit of one attempt in seconds, ``retries`` the number of attempts after the first. The pauses
    between attempts start at 0.25 s and double, unless the server sends Retry-After. ``key`` is for servers with keys;
    by default, it is the environment variable RAYSUM_KEY.

    >>> Client("http://127.0.0.1:8000").summarize("Florence", ["text of a document", "text of another"])["summary"]
    """

    _HTTP = httpx.Client

    def __enter__(self) -> "Client":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        self._http.close()

    def _streamed(self, content: Callable[[], dict[str, Any]]) -> Iterator[_Event]:
        events, arguments = _Events(self.address, self.foreign()), content()
        with self._errors(), self._http.stream("POST", f"{self.address}/v1/summarize/stream", **arguments) as answer:
            if answer.status_code != 200:
                answer.read()
                raise UserError(self._problem(answer))
            for line in answer.iter_lines():
                yield from events.of(line)
        events.check_end()

    def batch_results(self, id: str, wait: bool = True) -> Iterator[dict[str, Any]]:
        """Yield the results of a batch when it ends, each with ``custom_id`` and ``response`` (a summary) or ``error``.

        Without ``wait``, yield the results so far.
        """
        while wait and self.batch(id).get("status") == _RUNNING:
            time.sleep(_POLL)
        with self._errors(), self._http.stream("GET", f"{self.address}/v1/batches/{id}/results") as answer:
            if answer.status_code != 200:
                answer.read()
                raise UserError(self._problem(answer))
            for line in answer.iter_lines():
                yield self._object(line)

    def _ask(self, method: str, path: str, content: Callable[[], dict[str, Any]] = dict) -> dict[str, Any]:
        arguments, attempt = content(), 0
        while True:
            try:
                with self._errors():
                    return self._found(self._http.request(method, self.address + path, **arguments))
            except NoAnswerError as error:
                pause = self._pause(error, attempt)
            time.sleep(pause)
            attempt += 1


class AsyncClient(_Connection[Coroutine[Any, Any, dict[str, Any]], AsyncIterator[_Event]]):
    """:class:`Client` for asyncio: the same arguments and methods, which are awaited; iterators need ``async for``.

    >>> async with AsyncClient("http://127.0.0.1:8000") as client:
    ...     await asyncio.gather(*(client.summarize(title, documents) for title, documents in clusters))
    """

    _HTTP = httpx.AsyncClient

    async def __aenter__(self) -> "AsyncClient":
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        await self._http.aclose()

    async def _streamed(self, content: Callable[[], dict[str, Any]]) -> AsyncIterator[_Event]:
        events, arguments = _Events(self.address, self.foreign()), content()
        with self._errors():
            async with self._http.stream("POST", f"{self.address}/v1/summarize/stream", **arguments) as answer:
                if answer.status_code != 200:
                    await answer.aread()
                    raise UserError(self._problem(answer))
                async for line in answer.aiter_lines():
                    for event in events.of(line):
                        yield event
        events.check_end()

    async def batch_results(self, id: str, wait: bool = True) -> AsyncIterator[dict[str, Any]]:
        """As :meth:`Client.batch_results`."""
        while wait and (await self.batch(id)).get("status") == _RUNNING:
            await asyncio.sleep(_POLL)
        with self._errors():
            async with self._http.stream("GET", f"{self.address}/v1/batches/{id}/results") as answer:
                if answer.status_code != 200:
                    await answer.aread()
                    raise UserError(self._problem(answer))
                async for line in answer.aiter_lines():
                    yield self._object(line)

    async def _ask(self, method: str, path: str, content: Callable[[], dict[str, Any]] = dict) -> dict[str, Any]:
        arguments, attempt = content(), 0
        while True:
            try:
                with self._errors():
                    return self._found(await self._http.request(method, self.address + path, **arguments))
            except NoAnswerError as error:
                pause = self._pause(error, attempt)
            await asyncio.sleep(pause)
            attempt += 1


class _Events:
    """The events in the lines of a stream; ``foreign`` is the error if another program writes them."""

    def __init__(self, address: str, foreign: UserError):
        self._address, self._foreign, self._event = address, foreign, ""

    def of(self, line: str) -> Iterator[_Event]:
        """Yield the event that a line completes, if it does. Raises UserError for an event ``error``."""
        name, _, value = line.partition(": ")
        if name == "event":
            self._event = value
        elif name == "data":
            try:
                values = json.loads(value)
                problem = f"{values['status']}: {values['error']}" if self._event == "error" else ""
            except (ValueError, RecursionError, KeyError, TypeError):
                raise self._foreign from None
            if problem:
                raise UserError(f"{self._address} answers {problem}")
            yield self._event, values

    def check_end(self) -> None:
        """Raises UserError unless the last event was the result."""
        if not self._event:
            raise self._foreign
        if self._event != "result":
            raise UserError(f"the stream of {self._address} ended before its result; ask again")


def _lines(requests: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    """Return the content of a request for a batch, as an argument of httpx. Raises UserError if they have no ids."""
    if not isinstance(requests, Mapping):
        raise UserError("requests have no ids: put them into a dictionary, {id: request}")
    lines = (json.dumps({"custom_id": custom_id, "body": body}) for custom_id, body in requests.items())
    return {"content": "".join(f"{line}\n" for line in lines).encode()}


def _body(title: str, documents: Any, id: str | None, options: dict[str, Any]) -> dict[str, Any]:
    """Return the content of a request for a summary, as an argument of httpx."""
    if isinstance(documents, str | bytes | Path | Mapping) or not isinstance(documents, Iterable):
        raise UserError("documents is not a list: put one document into brackets, [document]")
    others = {"id": id, **{name: options.pop(name, None) for name in ("outline", "model")}}
    body = {"title": title, "documents": [*map(_document, documents)], "options": options}
    return {"json": body | {name: value for name, value in others.items() if value not in (None, [])}}


def _document(document: Any) -> Any:
    """Return a document of a request. Raises UserError if it is bytes, or a file that cannot be read."""
    if isinstance(document, bytes):
        raise UserError("a document is bytes: decode it to a text, or give the Path of its file")
    if not isinstance(document, Path):
        return document
    try:
        return {"source": document.name, "data": base64.b64encode(document.read_bytes()).decode()}
    except OSError as error:
        raise UserError(f"cannot read {document}: {error.strerror}") from None
