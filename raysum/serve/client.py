"""A small client of `raysum serve`."""

import json
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import httpx

from raysum.errors import UserError

_RETRIED = (429, 500, 502, 503, 504)  # a limit of the key, a replica died, the queue is full, or the server stops
_LONGEST_PAUSE = 30  # seconds, also if the server asks for more


class _NoAnswerError(UserError):
    """The connection fails, so another attempt may succeed."""


class Client:
    """Requests summaries from the server at ``address`` and retries failed requests.

    ``timeout`` is the limit of one attempt in seconds, ``retries`` the number of attempts after the first. The pauses
    between attempts start at 0.25 s and double, unless the server sends Retry-After. ``key`` is for servers with keys;
    by default, it is the environment variable RAYSUM_KEY.

    >>> Client("http://127.0.0.1:8000").summarize("Florence", ["text of a document", "text of another"])["summary"]
    """

    def __init__(
        self,
        address: str = "http://127.0.0.1:8000",
        timeout: float = 300.0,
        retries: int = 5,
        key: str | None = None,
    ):
        self.address = address.rstrip("/")
        self.retries = retries
        key = (key or os.environ.get("RAYSUM_KEY", "")).strip()  # a file of it may end with a line end
        if not (key.isascii() and key.isprintable()):
            raise UserError("the key has characters that no key has; set RAYSUM_KEY or key= to one")
        self._http = httpx.Client(timeout=timeout, headers={"Authorization": f"Bearer {key}"} if key else {})

    def __enter__(self) -> "Client":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        self._http.close()

    def summarize(
        self,
        title: str = "",
        documents: list[str | dict[str, str]] | None = None,
        id: str | None = None,
        **options: Any,
    ) -> dict[str, Any]:
        """The summary of a cluster as an object with ``id``, ``summary``, ``sentences`` and ``attention``.

        ``options`` are decoding settings of this request (``num_beams=8``).
        Raises UserError where nothing answers, or the server refuses the request.
        """
        return self._ask("POST", "/v1/summarize", _body(title, documents, id, options))

    def stream(
        self,
        title: str = "",
        documents: list[str | dict[str, str]] | None = None,
        id: str | None = None,
        **options: Any,
    ) -> Iterator[tuple[str, dict[str, Any]]]:
        """Yield the names and values of the events of a summary, the last of which is ``("result", summary)``.

        >>> for event, values in Client().stream("Florence", ["text of a document", "text of another"]):
        ...     print(event, values)

        The events are ``queued``, ``reading``, ``prefix`` and ``sentence``, see the route /v1/summarize/stream. Nothing
        is retried. Raises UserError if nothing answers, or if the server refuses the request or fails.
        """
        event, body = "", _body(title, documents, id, options)
        with self._errors(), self._http.stream("POST", f"{self.address}/v1/summarize/stream", json=body) as answer:
            if answer.status_code != 200:
                answer.read()
                raise UserError(f"{self.address} answers {answer.status_code}: {_message(answer)}")
            for line in answer.iter_lines():
                name, _, value = line.partition(": ")
                if name == "event":
                    event = value
                elif name == "data":
                    values = json.loads(value)
                    if event == "error":
                        raise UserError(f"{self.address} answers {values['status']}: {values['error']}")
                    yield event, values
        if event != "result":
            raise UserError(f"the stream of {self.address} ended before its result; ask again")

    def health(self) -> dict[str, Any]:
        """The server's ``status``, ``run`` and ``step``."""
        return self._ask("GET", "/healthz")

    def _ask(self, method: str, path: str, body: dict[str, Any] | None = None) -> dict[str, Any]:
        problem = ""
        for attempt in range(self.retries + 1):
            pause = 0.25 * 2**attempt
            try:
                with self._errors():
                    answer = self._http.request(method, self.address + path, json=body)
            except _NoAnswerError as error:
                problem = str(error)
            else:
                if answer.status_code == 200:
                    return answer.json()
                problem = f"{self.address} answers {answer.status_code}: {_message(answer)}"
                if answer.status_code not in _RETRIED:
                    raise UserError(problem)
                wait = answer.headers.get("Retry-After", "")
                pause = min(int(wait), _LONGEST_PAUSE) if wait.isdecimal() else pause  # it may be a date
            if attempt < self.retries:
                time.sleep(pause)
        raise UserError(problem)

    @contextmanager
    def _errors(self) -> Iterator[None]:
        """Raises UserError in place of errors of the address and the connection."""
        try:
            yield
        except (httpx.UnsupportedProtocol, httpx.InvalidURL):
            raise UserError(f"{self.address!r} is not a URL; use for example http://127.0.0.1:8000") from None
        except httpx.TransportError as error:
            reason = error or type(error).__name__
            raise _NoAnswerError(f"nothing answers at {self.address} ({reason}); is `raysum serve` running?") from None


def _body(title: str, documents: Any, id: str | None, options: dict[str, Any]) -> dict[str, Any]:
    body = {"title": title, "documents": documents or [], "options": options}
    return body if id is None else body | {"id": id}


def _message(answer: httpx.Response) -> str:
    try:
        return str(answer.json()["error"])
    except (ValueError, KeyError, TypeError):
        return answer.text[:200]
