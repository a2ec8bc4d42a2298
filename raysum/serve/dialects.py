"""Summaries and their citations in the formats of other services."""

import json
from collections.abc import Iterator, Mapping
from typing import Any, Protocol

_MOST_HELD_BACK = 40  # characters of a word that is still growing


class Dialect(Protocol):
    """An answer to one request: ``whole``, or ``begin``, some ``delta`` and ``end`` or ``fail`` as server-sent events.

    Summaries are dictionaries as of ``/v1/summarize``. ``sends_deltas``: the deltas have the text, so that ``end`` must
    not change it.
    """

    sends_deltas: bool

    def whole(self, summary: Mapping[str, Any]) -> dict[str, Any]: ...

    def begin(self) -> Iterator[bytes]: ...

    def delta(self, text: str) -> Iterator[bytes]: ...

    def end(self, summary: Mapping[str, Any]) -> Iterator[bytes]: ...

    def fail(self, message: str, status: int) -> Iterator[bytes]: ...


def stable(prefix: str) -> str:
    """Return the part of a growing summary that can be sent: all but the last word.

    The next prefix may continue this word, or move the space before it.
    """
    return prefix[: max(prefix.rfind(" "), len(prefix) - _MOST_HELD_BACK, 0)].rstrip()


def server_sent(values: Any, name: str | None = None) -> bytes:
    """Return a server-sent event."""
    head = f"event: {name}\n" if name else ""
    return f"{head}data: {json.dumps(values, ensure_ascii=False)}\n\n".encode()
