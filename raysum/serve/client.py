"""A small client of `raysum serve`."""

import time
from typing import Any

import httpx

from raysum.errors import UserError

_RETRIED = (500, 502, 503, 504)  # a replica died, the queue is full, or the server stops
_LONGEST_PAUSE = 30  # seconds, also if the server asks for more


class Client:
    """Requests summaries from the server at ``address`` and retries failed requests.

    ``timeout`` is the limit of one attempt in seconds, ``retries`` the number of attempts after the first. The pauses
    between attempts start at 0.25 s and double, unless the server sends Retry-After.

    >>> Client("http://127.0.0.1:8000").summarize("Florence", ["text of a document", "text of another"])["summary"]
    """

    def __init__(self, address: str = "http://127.0.0.1:8000", timeout: float = 300.0, retries: int = 5):
        self.address = address.rstrip("/")
        self.retries = retries
        self._http = httpx.Client(timeout=timeout)

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
        body = {"title": title, "documents": documents or [], "options": options}
        return self._ask("POST", "/v1/summarize", body if id is None else body | {"id": id})

    def health(self) -> dict[str, Any]:
        """The server's ``status``, ``run`` and ``step``."""
        return self._ask("GET", "/healthz")

    def _ask(self, method: str, path: str, body: dict[str, Any] | None = None) -> dict[str, Any]:
        problem = ""
        for attempt in range(self.retries + 1):
            pause = 0.25 * 2**attempt
            try:
                answer = self._http.request(method, self.address + path, json=body)
            except (httpx.UnsupportedProtocol, httpx.InvalidURL):
                raise UserError(f"{self.address!r} is not a URL; use for example http://127.0.0.1:8000") from None
            except httpx.TransportError as error:
                problem = (
                    f"nothing answers at {self.address} ({error or type(error).__name__}); is `raysum serve` running?"
                )
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


def _message(answer: httpx.Response) -> str:
    try:
        return str(answer.json()["error"])
    except (ValueError, KeyError, TypeError):
        return answer.text[:200]
