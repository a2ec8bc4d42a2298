"""The stages of a long command: announce each one, report progress regularly, and estimate the remaining time."""

import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from raysum.runtime.progress import say

BEAT = 30.0  # seconds between progress messages of a stage
_TRUST = 20.0  # seconds of finished stages after which measured times count more than expected ones


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
