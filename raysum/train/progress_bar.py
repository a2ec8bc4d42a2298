"""The progress bar of a training, which follows metrics.jsonl, wherever its writer runs."""

import os
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import IO

from raysum.config.sections import TrainConfig
from raysum.runs.folder import Run
from raysum.runtime.progress import bar, say
from raysum.runtime.storage import parsed

_POLL = 0.3  # seconds between looks at metrics.jsonl


@contextmanager
def followed(run: Run, start: int, settings: TrainConfig) -> Iterator[None]:
    """The bar, on stderr, for the length of the block: of a training from step ``start`` to the last one, or
    to the one that its minutes will allow, as far as is known."""
    done = threading.Event()
    follower = threading.Thread(target=_follow, args=(run, start, settings, done), daemon=True)
    follower.start()
    try:
        yield
    finally:
        done.set()
        follower.join()


def _follow(run: Run, start: int, settings: TrainConfig, done: threading.Event) -> None:
    label, shown, last = f"training {run.path.name}", dict[str, str](), False
    # Appending makes the file where there is none, and begins at its end.
    with ExitStack() as files, bar(total=settings.steps, label=label, unit="step") as progress:
        metrics = files.enter_context(run.metrics.open("ab+"))
        progress.initial = progress.n = start
        while not last:
            last = done.wait(_POLL)
            if _is_replaced(metrics, run.metrics):  # by Run.rewind
                metrics, newest = files.enter_context(run.metrics.open("ab+")), run.latest()
                metrics.seek(0)
                progress.n = newest.step if newest else 0
                say(f"{label}: a worker was lost; training goes on from step {progress.n}")
            for line in parsed(metrics):
                step = line["step"]
                if "valid_loss" in line:
                    shown["valid"] = f"{line['valid_loss']:.3f}"
                    if settings.judged_by in line.keys() - shown.keys() - {"valid_loss"}:
                        say(f"{label}: a validation takes {line['valid_seconds']:.0f} s by {settings.judged_by}")
                    shown |= {settings.judged_by: f"{line[settings.judged_by]:.2f}"} if "valid_seconds" in line else {}
                else:
                    shown |= {"loss": f"{line['loss']:.3f}", "tokens/s": f"{line['tokens_per_s']:,.0f}"}
                    if "new_lr" in line:
                        shown["lr"] = f"{line['lr']:.1e}, new {line['new_lr']:.1e}"
                    if settings.minutes:
                        allowed = round(step * 60 * settings.minutes / line["seconds"])
                        progress.total = min(settings.steps, max(step, allowed))
                progress.set_postfix(shown, refresh=False)
                progress.update(max(step - progress.n, 0))


def _is_replaced(file: IO[bytes], path: Path) -> bool:
    """Whether ``path`` is another file by now than the one that was opened there."""
    return path.exists() and not os.path.samestat(os.fstat(file.fileno()), path.stat())
