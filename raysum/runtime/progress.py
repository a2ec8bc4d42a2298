"""Progress bars on stderr, or of a notebook; where stderr is a file, one line when the work ends.

A notebook gets them as its output, as it paints all of stderr as an error.
"""

import math
import sys
import warnings
from collections.abc import Iterable
from typing import Any, TextIO

from tqdm import TqdmWarning

from raysum.errors import spelled

with warnings.catch_warnings():
    warnings.simplefilter("ignore", TqdmWarning)  # that a notebook without ipywidgets has plain bars
    from tqdm.auto import tqdm


def bar(items: Iterable[Any] | None = None, total: int | None = None, label: str = "", unit: str = "it") -> tqdm:
    """A tqdm bar: the caller updates it, or iterates over it when ``items`` are given. Of bytes where unit is B."""
    shown = tqdm(
        items,
        total=total,
        desc=label,
        unit=unit,
        unit_scale=unit == "B",
        file=_stream(),
        dynamic_ncols=True,
        leave=True,
        mininterval=0.2 if _watched() else math.inf,
        delay=0 if _watched() else 1,  # a bar without begins with a line
        ascii=None if _watched() else True,
    )
    shown.delay = 0  # a bar with ends without a line
    return shown


def say(text: str) -> None:
    """One line: what is being done, or what was found."""
    if _watched():
        tqdm.write(spelled(text), file=_stream())  # above the bars, which are drawn again
    else:
        print(spelled(text), file=sys.stderr, flush=True)


def _watched() -> bool:
    """Whether what is written can be written over: in a terminal, or a notebook."""
    return sys.stderr.isatty() or _in_notebook()


def _in_notebook() -> bool:
    return "ipykernel" in sys.modules


def _stream() -> TextIO:
    return sys.stdout if _in_notebook() else sys.stderr
