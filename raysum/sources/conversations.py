"""Conversations: meetings, chats and threads, as documents whose positions name the speaker and the time."""

from collections.abc import Iterable
from typing import Any


def transcript(source: str, turns: Iterable[tuple[str, str, str]]) -> dict[str, Any]:
    """Return the document of ``turns``, one a line. A turn is its position (speaker and time), its speaker and text."""
    lines, places, length = list[str](), list[tuple[int, str]](), 0
    for place, speaker, text in turns:
        line = " ".join(f"{speaker}: {text}".split())
        places.append((length, place))
        lines.append(line)
        length += len(line) + 1
    return {"source": source, "text": "\n".join(lines), "places": places}
