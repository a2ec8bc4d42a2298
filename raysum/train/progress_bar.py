"""The progress bar of a training."""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from raysum.config.sections import TrainConfig
from raysum.runtime.progress import bar, log, say
from raysum.train.lines import Line, PostedLines, WrittenLines

_POLL = 0.3  # seconds between looks for new lines


@contextmanager
def show_progress(
    label: str,
    lines: WrittenLines | PostedLines,
    start: int,
    settings: TrainConfig,
    watch: Callable[[Line], None] = lambda line: None,
) -> Iterator[None]:
    """Show a bar on stderr during the block, from step ``start`` to the last step, and pass metrics lines to ``watch``.

    If ``train.minutes`` ends the training earlier, the last step is estimated from the speed so far.
    """
    done = threading.Event()

    def follow() -> None:
        shown, last, has_started = dict[str, str](), False, False
        seen = set[tuple[int, bool]]()  # steps of lines, and whether they are validations
        with bar(total=settings.steps, label=label, unit="step") as progress:
            progress.initial = progress.n = start
            while not last:
                last = done.wait(_POLL)
                for line in lines.close() if last else lines.new():
                    step, event, is_validation = line.get("step", 0), line.get("event"), "valid_loss" in line
                    if event == "slow":
                        say(f"{label}: {line.get('message')}")
                    elif event == "start":
                        if has_started:
                            progress.n, seen = step, {each for each in seen if each[0] <= step}
                            say(f"{label}: workers started again; training resumes from step {step}")
                        has_started = True
                    elif event is None and step > start and (step, is_validation) not in seen:
                        seen.add((step, is_validation))
                        log("info", "metrics", metrics=line)
                        watch(line)
                        _add(shown, line, settings.best_metric, label)
                        if settings.minutes and not is_validation:
                            allowed = round(step * 60 * settings.minutes / line["seconds"])
                            progress.total = min(settings.steps, max(step, allowed))
                        progress.set_postfix(shown, refresh=False)
                        progress.update(max(step - progress.n, 0))

    follower = threading.Thread(target=follow, daemon=True)
    follower.start()
    try:
        yield
    finally:
        done.set()
        follower.join()


def _add(shown: dict[str, str], line: Line, metric: str, label: str) -> None:
    """Add the values of a line to those beside the bar."""
    if "valid_loss" in line:
        if "valid_seconds" in line and metric not in shown:
            say(f"{label}: each validation by {metric} takes {line['valid_seconds']:.0f} s")
        shown["valid"] = f"{line['valid_loss']:.3f}"
        shown |= {metric: f"{line[metric]:.2f}"} if "valid_seconds" in line else {}
    else:
        shown |= {"loss": f"{line['loss']:.3f}", "tokens/s": f"{line['tokens_per_s']:,.0f}"}
        if "new_lr" in line:
            shown["lr"] = f"{line['lr']:.1e}, new {line['new_lr']:.1e}"
