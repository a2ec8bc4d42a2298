"""The progress bar of a training. It reads metrics.jsonl, so the workers may run on any host."""

import os
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

from raysum.config.sections import TrainConfig
from raysum.runs.folder import Run
from raysum.runtime.progress import bar, log, say
from raysum.runtime.storage import parsed

_POLL = 0.3  # seconds between looks at metrics.jsonl


@contextmanager
def show_progress(
    run: Run, start: int, settings: TrainConfig, watch: Callable[[dict[str, Any]], None] = lambda line: None
) -> Iterator[None]:
    """Show a bar on stderr during the block, from step ``start`` to the last step, and pass each line to ``watch``.

    If ``train.minutes`` ends the training earlier, the last step is estimated from the speed so far.
    """
    done = threading.Event()
    follower = threading.Thread(target=_follow, args=(run, start, settings, done, watch), daemon=True)
    follower.start()
    try:
        yield
    finally:
        done.set()
        follower.join()


def _follow(
    run: Run, start: int, settings: TrainConfig, done: threading.Event, watch: Callable[[dict[str, Any]], None]
) -> None:
    label, metric, shown, last = f"training {run.path.name}", settings.best_metric, dict[str, str](), False
    seen = set[tuple[int, bool]]()  # steps of lines, and whether they are validations
    # Mode "a" creates a missing file and starts at the end of an existing one.
    with ExitStack() as files, bar(total=settings.steps, label=label, unit="step") as progress:
        metrics, events = (files.enter_context(file.open("ab+")) for file in (run.metrics, run.events_file))
        progress.initial = progress.n = start
        while not last:
            last = done.wait(_POLL)
            if os.fstat(metrics.fileno()).st_nlink == 0:  # replaced by Run.rewind
                metrics, newest = files.enter_context(run.metrics.open("ab+")), run.latest()
                metrics.seek(0)
                progress.n = newest.step if newest else 0
                seen = {each for each in seen if each[0] <= progress.n}
                if not last:  # else the end of a training on another host was fetched
                    say(f"{label}: workers started again; training resumes from step {progress.n}")
            for event in parsed(events):
                if event.get("event") == "slow":
                    say(f"{label}: {event.get('message')}")
            for line in parsed(metrics):
                step, is_validation = line["step"], "valid_loss" in line
                log("info", "metrics", metrics=line)
                if (step, is_validation) not in seen:
                    seen.add((step, is_validation))
                    watch(line)
                if is_validation:
                    if "valid_seconds" in line and metric not in shown:
                        say(f"{label}: each validation by {metric} takes {line['valid_seconds']:.0f} s")
                    shown["valid"] = f"{line['valid_loss']:.3f}"
                    shown |= {metric: f"{line[metric]:.2f}"} if "valid_seconds" in line else {}
                else:
                    shown |= {"loss": f"{line['loss']:.3f}", "tokens/s": f"{line['tokens_per_s']:,.0f}"}
                    if "new_lr" in line:
                        shown["lr"] = f"{line['lr']:.1e}, new {line['new_lr']:.1e}"
                    if settings.minutes:
                        allowed = round(step * 60 * settings.minutes / line["seconds"])
                        progress.total = min(settings.steps, max(step, allowed))
                progress.set_postfix(shown, refresh=False)
                progress.update(max(step - progress.n, 0))
