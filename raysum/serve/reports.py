"""Problems of a running service, which the process that started it prints for its operator."""

from collections import deque

from raysum.runtime.progress import say

_known, _new = set[str](), deque[str](maxlen=100)


def report_problem(message: str) -> None:
    """Print a problem of this process once, here and where the service was started."""
    if message not in _known:
        _known.add(message)
        _new.append(message)
        say(message)


def reported_problems() -> list[str]:
    """Return the problems since the last call."""
    messages = [*_new]
    _new.clear()
    return messages
