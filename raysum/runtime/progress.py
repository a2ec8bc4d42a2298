"""Progress bars on stderr; plain lines now and then where stderr is not a terminal."""

import sys
from collections.abc import Iterable, Iterator
from typing import TypeVar

from tqdm import tqdm

Item = TypeVar("Item")


def track(items: Iterable[Item], total: int | None = None, label: str = "", unit: str = "it") -> Iterator[Item]:
    """Yield ``items`` while a bar with ``label`` shows how many of ``total`` are done."""
    yield from bar(items, total=total, label=label, unit=unit)


def bar(items: Iterable[Item] | None = None, total: int | None = None, label: str = "", unit: str = "it") -> tqdm:
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
