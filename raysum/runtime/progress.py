"""Progress on stderr: messages, bars, and the stages of a long command. In a file, a bar is one line at its end.

In a notebook bars go to stdout, since notebooks show stderr as an error. With ``RAYSUM_LOG_FORMAT=json``, messages are
JSON lines for a log collector, and there are no bars.
"""

import json
import math
import os
import sys
import threading
import time
import warnings
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from datetime import datetime, timezone
from typing import Any, TextIO

from tqdm import TqdmWarning

from raysum.errors import spelled

with warnings.catch_warnings():
    warnings.simplefilter("ignore", TqdmWarning)  # notebooks without ipywidgets have plain bars
    from tqdm.auto import tqdm

LOG_FORMAT = "RAYSUM_LOG_FORMAT"  # environment variable
BEAT = 30.0  # seconds between progress messages of a stage
_TRUST = 20.0  # seconds of finished stages after which measured times count more than expected ones

_run: list[str] = []  # the runs and searches that this process works on, the innermost last


@contextmanager
def logged_run(place: str) -> Iterator[None]:
    """Tag the JSON messages of the block with the run or search at ``place``."""
    _run.append(place)
    try:
        yield
    finally:
        _run.pop()


def log(level: str, message: str, **values: Any) -> bool:
    """Print one JSON line if ``RAYSUM_LOG_FORMAT`` is ``json``; return whether it is."""
    if os.environ.get(LOG_FORMAT) != "json":
        return False
    now = datetime.now(timezone.utc).isoformat(timespec="milliseconds")
    line = {"time": now, "level": level, "run": _run[-1] if _run else None, "message": message.strip(), **values}
    print(json.dumps(line), file=sys.stderr, flush=True)
    return True


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
        mininterval=0.2 if is_interactive() else math.inf,
        delay=0 if is_interactive() else 1,  # without a delay a bar starts with a line
        ascii=None if is_interactive() else True,
        disable=os.environ.get(LOG_FORMAT) == "json",
    )
    progress.delay = 0  # with a delay it ends without one
    return progress


def say(text: str) -> None:
    """Print a one-line message."""
    if log("warning" if text.startswith("warning: ") else "info", text):
        return
    if is_interactive():
        tqdm.write(spelled(text), file=_stream())  # above the bars
    else:
        print(spelled(text), file=sys.stderr, flush=True)


def is_interactive() -> bool:
    """Return whether output can be overwritten, as in a terminal or a notebook."""
    return sys.stderr.isatty() or "ipykernel" in sys.modules


def _stream() -> TextIO:
    return sys.stdout if "ipykernel" in sys.modules else sys.stderr


class Stages:
    """Stages by name with their ``expected`` seconds on a reference machine; finished stages correct the estimate.

    ``fixed`` are the seconds of a stage that do not depend on the machine, such as a training with a time limit.
    """

    def __init__(self, expected: Mapping[str, float], beat: float = BEAT, fixed: Mapping[str, float] | None = None):
        self.expected, self.beat, self.fixed = dict(expected), beat, dict(fixed or {})
        self.seconds: dict[str, float] = {}  # of the stages that have ended

    @contextmanager
    def stage(self, name: str, text: str) -> Iterator[None]:
        """Run the block as the stage ``name`` and announce it with ``text``. Stages run in their order."""
        number = f"[{list(self.expected).index(name) + 1}/{len(self.expected)}]"
        say(f"\n{number} {text} (about {span(self.remaining(name, 0.0))} left)")
        began, ended = time.monotonic(), threading.Event()

        def report() -> None:
            while not ended.wait(self.beat):
                spent = time.monotonic() - began
                say(f"{number} running for {span(spent)}, about {span(self.remaining(name, spent))} left in total")

        reporter = threading.Thread(target=report, daemon=True)
        reporter.start()
        try:
            yield
        finally:
            ended.set()
            reporter.join()
        self.seconds[name] = time.monotonic() - began

    def remaining(self, name: str, spent: float) -> float:
        """Return the estimated seconds until all stages end, ``spent`` seconds after ``name`` started."""
        same = {other: self.fixed.get(other, 0.0) for other in self.expected}
        varies = {other: seconds - same[other] for other, seconds in self.expected.items()}
        done = sum(varies[other] for other in self.seconds)
        took = sum(max(seconds - same[other], 0.0) for other, seconds in self.seconds.items())
        now = took + max(spent - same[name], 0.0)
        pace = max((_TRUST + took) / (_TRUST + done), now / max(done + varies[name], 1.0))
        coming = (other for other in self.expected if other not in {name, *self.seconds})
        left = sum(same[other] + pace * varies[other] for other in coming)
        return left + max(same[name] + pace * varies[name] - spent, 0.0)


def span(seconds: float) -> str:
    """Format a duration: ``40 s``, ``2.5 min``, ``30 min``, ``1 h 20 min``."""
    minutes = round(seconds / 60)
    if seconds < 600:
        return f"{seconds:.0f} s" if seconds < 90 else f"{seconds / 60:.1f} min"
    return f"{minutes} min" if minutes < 60 else f"{minutes // 60} h {minutes % 60} min"
