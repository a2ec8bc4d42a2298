"""A small client of `raysum serve`."""

import time
from typing import Any

import httpx

from raysum.errors import UserError

_AGAIN = (500, 502, 503, 504)  # a replica died, the queue is full, or the server stops: asking twice does no harm
_LONGEST_PAUSE = 30  # seconds, whatever the server asks for


class Client:
    """Asks the server at ``address`` for summaries, patiently: refused and failed requests are tried again.

    ``timeout`` is the seconds one try may take, ``retries`` the tries after the first; the waits between them double
    from 0.25 s on, or are what the server asks for (Retry-After).

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
                raise UserError(f"{self.address!r} is no address; write for example http://127.0.0.1:8000") from None
            except httpx.TransportError as error:
                problem = f"nothing answers at {self.address} ({error or type(error).__name__}); is `raysum serve` on?"
            else:
                if answer.status_code == 200:
                    return answer.json()
                problem = f"{self.address} answers {answer.status_code}: {_message(answer)}"
                if answer.status_code not in _AGAIN:
                    raise UserError(problem)
                asked = answer.headers.get("Retry-After", "")
                pause = min(int(asked), _LONGEST_PAUSE) if asked.isdecimal() else pause  # else a date
            if attempt < self.retries:
                time.sleep(pause)
        raise UserError(problem)


def _message(answer: httpx.Response) -> str:
    try:
        return str(answer.json()["error"])
    except (ValueError, KeyError, TypeError):
        return answer.text[:200]
