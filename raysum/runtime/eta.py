"""The stages of a long work: each is announced, none is silent for long, and how long all will take is foreseen."""

import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from raysum.runtime.progress import say

BEAT = 30.0  # seconds after which a stage says that it is still at work
_TRUST = 20.0  # seconds of stages before what they took counts for more than what was expected


class Stages:
    """``expected`` are the seconds that each stage takes elsewhere; the first ones tell how this machine compares.

    ``fixed`` are those of them that are the same on every machine, as of a training that has so much time.
    """

    def __init__(self, expected: Mapping[str, float], beat: float = BEAT, fixed: Mapping[str, float] | None = None):
        self.expected, self.beat, self.fixed = dict(expected), beat, dict(fixed or {})
        self.seconds: dict[str, float] = {}  # of the stages that have ended

    @contextmanager
    def stage(self, name: str, text: str) -> Iterator[None]:
        """The length of one of the stages, which come in their order; ``text`` says what is done."""
        place = f"[{list(self.expected).index(name) + 1}/{len(self.expected)}]"
        say(f"\n{place} {text} (about {span(self.left(name, 0.0))} left)")
        began, ended = time.monotonic(), threading.Event()

        def tell() -> None:
            while not ended.wait(self.beat):
                spent = time.monotonic() - began
                say(f"{place} at work for {span(spent)}, about {span(self.left(name, spent))} left in all")

        teller = threading.Thread(target=tell, daemon=True)
        teller.start()
        try:
            yield
        finally:
            ended.set()
            teller.join()
        self.seconds[name] = time.monotonic() - began

    def left(self, name: str, spent: float) -> float:
        """Seconds until all stages have ended, ``spent`` seconds after ``name`` has begun."""
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
    """For people: ``40 s``, ``2.5 min``, ``30 min``, ``1 h 20 min``."""
    minutes = round(seconds / 60)
    if seconds < 600:
        return f"{seconds:.0f} s" if seconds < 90 else f"{seconds / 60:.1f} min"
    return f"{minutes} min" if minutes < 60 else f"{minutes // 60} h {minutes % 60} min"
