"""Progress bars on stderr, or of a notebook; plain lines now and then where stderr is no terminal."""

import sys
import warnings
from collections.abc import Iterable
from typing import Any

from tqdm import TqdmWarning

with warnings.catch_warnings():
    warnings.simplefilter("ignore", TqdmWarning)  # that a notebook without ipywidgets has plain bars
    from tqdm.auto import tqdm


def bar(items: Iterable[Any] | None = None, total: int | None = None, label: str = "", unit: str = "it") -> tqdm:
    """A tqdm bar: the caller updates it, or iterates over it when ``items`` are given."""
    terminal = sys.stderr.isatty() or "ipykernel" in sys.modules
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
