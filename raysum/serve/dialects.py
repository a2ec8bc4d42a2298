"""The events of a stream in the formats of other services."""

import json
from typing import Any

_MOST_HELD_BACK = 40  # characters of a word that is still growing


def stable(prefix: str) -> str:
    """Return the part of a growing summary that can be sent: all but the last word.

    The next prefix may continue this word, or move the space before it.
    """
    return prefix[: max(prefix.rfind(" "), len(prefix) - _MOST_HELD_BACK, 0)].rstrip()


def server_sent(values: Any, name: str | None = None) -> bytes:
    head = f"event: {name}\n" if name else ""
    return f"{head}data: {json.dumps(values, ensure_ascii=False)}\n\n".encode()
