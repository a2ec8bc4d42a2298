"""Progress bars on stderr. If stderr is a file, a bar writes one line at its end.

In a notebook bars go to stdout, since notebooks show stderr as an error.
"""

import math
import sys
import warnings
from collections.abc import Iterable
from typing import Any, TextIO

from tqdm import TqdmWarning

from raysum.errors import spelled

with warnings.catch_warnings():
    warnings.simplefilter("ignore", TqdmWarning)  # notebooks without ipywidgets have plain bars
    from tqdm.auto import tqdm


def bar(items: Iterable[Any] | None = None, total: int | None = None, label: str = "", unit: str = "it") -> tqdm:
    """Return a tqdm bar, which the caller updates or, with ``items``, iterates over. Unit "B" counts bytes."""
    progress = tqdm(
        items,
        total=total,
        desc=label,
        unit=unit,
        unit_scale=unit == "B",
        file=_stream(),
        dynamic_ncols=True,
        leave=True,
        mininterval=0.2 if _is_interactive() else math.inf,
        delay=0 if _is_interactive() else 1,  # without a delay a bar starts with a line
        ascii=None if _is_interactive() else True,
    )
    progress.delay = 0  # with a delay it ends without one
    return progress


def say(text: str) -> None:
    """Print a one-line message."""
    if _is_interactive():
        tqdm.write(spelled(text), file=_stream())  # above the bars
    else:
        print(spelled(text), file=sys.stderr, flush=True)


def _is_interactive() -> bool:
    """Return whether output can be overwritten, as in a terminal or a notebook."""
    return sys.stderr.isatty() or _in_notebook()


def _in_notebook() -> bool:
    return "ipykernel" in sys.modules


def _stream() -> TextIO:
    return sys.stdout if _in_notebook() else sys.stderr
