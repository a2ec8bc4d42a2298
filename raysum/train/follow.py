"""The progress bar of a training, which follows metrics.jsonl, wherever its writer runs."""

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from raysum.run import Run
from raysum.runtime.progress import bar, say

_POLL = 0.3  # seconds between looks at metrics.jsonl


@contextmanager
def followed(run: Run, steps: int, start: int, label: str) -> Iterator[None]:
    """The bar, on stderr, for the length of the block."""
    done = threading.Event()
    follower = threading.Thread(target=_follow, args=(run, steps, start, label, done), daemon=True)
    follower.start()
    try:
        yield
    finally:
        done.set()
        follower.join()


def _follow(run: Run, steps: int, start: int, label: str, done: threading.Event) -> None:
    position = run.metrics.stat().st_size if run.metrics.exists() else 0
    shown: dict[str, str] = {}
    with bar(total=steps, label=label, unit="step") as progress:
        progress.initial = progress.n = start
        last = False
        while not last:
            last = done.wait(_POLL)
            lines, position = _new_lines(run, position)
            for line in lines:
                step = line["step"]
                if step < progress.n:
                    say(f"{label}: a worker was lost; training goes on from step {step}")
                if "valid_loss" in line:
                    shown["valid"] = f"{line['valid_loss']:.3f}"
                else:
                    shown |= {"loss": f"{line['loss']:.3f}", "tokens/s": f"{line['tokens_per_s']:,.0f}"}
                progress.set_postfix(shown, refresh=False)
                progress.update(step - progress.n)


def _new_lines(run: Run, position: int) -> tuple[list[dict[str, Any]], int]:
    """Whole lines of metrics.jsonl after byte ``position``, and the byte after them."""
    if not run.metrics.exists():
        return [], position
    with run.metrics.open("rb") as file:
        file.seek(position)
        found = file.read()
    whole = found[: found.rfind(b"\n") + 1]
    return [line for line in map(_parsed, whole.splitlines()) if line], position + len(whole)


def _parsed(line: bytes) -> dict[str, Any] | None:
    try:
        return json.loads(line)
    except ValueError:  # torn by a killed writer
        return None
