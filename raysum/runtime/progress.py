"""Progress bars on stderr; plain lines now and then where stderr is not a terminal."""

import sys
from collections.abc import Iterable
from typing import Any

from tqdm import tqdm


def bar(items: Iterable[Any] | None = None, total: int | None = None, label: str = "", unit: str = "it") -> tqdm:
    """A tqdm bar: the caller updates it, or iterates over it when ``items`` are given."""
    terminal = sys.stderr.isatty()
    return tqdm(
        items,
        total=total,
        desc=label,
        unit=unit,
        file=sys.stderr,
        dynamic_ncols=True,
        leave=True,
        mininterval=0.2 if terminal else 10.0,
        ascii=None if terminal else True,
    )


def say(text: str) -> None:
    """One line on stderr: what is being done, or what was found."""
    tqdm.write(text, file=sys.stderr)
