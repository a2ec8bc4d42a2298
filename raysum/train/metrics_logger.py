"""Metrics of a training: summed over the workers and written to the run folder."""

import math
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from tensorboardX.event_file_writer import EventsWriter
from tensorboardX.proto.event_pb2 import Event, SessionLog
from tensorboardX.summary import scalar
from torch import distributed

from raysum.errors import UserError
from raysum.runs.folder import Run
from raysum.runtime.processes import peak_rss_mb
from raysum.runtime.storage import append_line
from raysum.stream.collators.base import Kind
from raysum.stream.loader import MicroBatch
from raysum.train.pace import Pace

_SUMS = ("loss", "source_tokens", "target_tokens", "padding", "waited", "digest")
_TOTALS = ("source_tokens", "target_tokens", "padding", "waited", "stepped")


class Meter:
    """Sums over all workers, since the last line and since the run began.

    Both continue from the ``state`` of a checkpoint, so the lines are those of an uninterrupted training. ``padding``
    counts computed positions without a token. ``waited`` are the worker seconds spent waiting for data in steps (an
    upper bound on a GPU, which may still compute), ``stepped`` the worker seconds of all steps.
    """

    def __init__(self, device: torch.device, state: dict[str, Any]):
        now, line = time.monotonic(), state.get("since_line", {})
        self._device = device
        self._own: dict[str, Any] = dict.fromkeys(_SUMS, 0.0)  # of this worker, until the next sum over all
        self._totals = {name: state.get(name, 0) for name in _TOTALS}
        self._since_line = {name: line.get(name, 0.0) for name in _SUMS}
        self._planned = line.get("planned", 0)  # loss denominators of the steps since the last line
        self._norm: float | torch.Tensor | None = None  # of the last step's gradient
        self._began, self._line_began = now - state.get("seconds", 0.0), now - line.get("seconds", 0.0)
        self._counted = self._saved = now
        self._is_first = True
        self.pace = Pace(device)

    def next_batch(self, coming: Iterator[MicroBatch]) -> MicroBatch:
        """Return the next batch. The wait for the first one is the start of the stream, and does not count."""
        began = time.monotonic()
        batch = next(coming)
        waited = time.monotonic() - began
        if self._is_first:
            self._leave_out(waited)
        else:
            self._own["waited"] += waited
        self._is_first = False
        return batch

    def add(self, loss: float | torch.Tensor, kind: Kind, batch: MicroBatch) -> None:
        """Count one micro-batch of this worker; a placeholder batch counts as padding."""
        tokens, padding = kind.tokens(batch.arrays), kind.padding(batch.arrays)
        if not batch.real:
            self._own["padding"] += sum(tokens) + padding
            return
        for name, value in zip(_SUMS, (loss, *tokens, padding, 0, batch.digest), strict=True):
            self._own[name] += value

    def step_done(self, weight: int, grad_norm: float | torch.Tensor | None) -> None:
        self._planned += weight
        self._norm = grad_norm

    def line(self, step: int, rates: dict[str, float]) -> dict[str, Any]:
        """Return the metrics line of the steps since the last one. Every worker calls it.

        Raises UserError if the loss is not finite, or the number of target tokens differs from the plan.
        """
        state, sums, now = self.state(), self._since_line, time.monotonic()
        targets, tokens = sums["target_tokens"], sums["source_tokens"] + sums["target_tokens"]
        if targets != self._planned:
            raise UserError(
                f"the dataset plans {self._planned} target tokens up to step {step}, but its shards contain "
                f"{targets:.0f}: a file was changed; restore it from a copy, or prepare the dataset again"
            )
        loss, spent = sums["loss"] / targets, now - self._line_began
        if not math.isfinite(loss):
            fix = "lower optim.lr, or set deepspeed.gradient_clipping=1.0"
            raise UserError(f"the loss is {loss} at step {step}; {fix}")
        line = {
            "step": step,
            "loss": loss,
            **rates,
            "tokens_per_s": tokens / spent,
            "wait_share": sums["waited"] / (spent * distributed.get_world_size()),
            "padding_share": sums["padding"] / (tokens + sums["padding"]),
            **{name: state[name] for name in ("source_tokens", "target_tokens", "seconds")},
            "peak_rss_mb": peak_rss_mb(),
            "batch_hash": int(sums["digest"]),
        }
        if self._norm is not None:  # ZeRO can be set to skip it
            line["grad_norm"] = float(self._norm)
        self._since_line, self._planned, self._line_began = dict.fromkeys(_SUMS, 0.0), 0, now
        return line

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Leave the duration of the block out of ``tokens_per_s`` and of the shares of time."""
        began = time.monotonic()
        yield
        self._leave_out(time.monotonic() - began)

    def _leave_out(self, seconds: float) -> None:
        self._line_began, self._counted = self._line_began + seconds, self._counted + seconds

    def is_over(self, minutes: float | None) -> bool:
        """Return whether the run has taken ``minutes``. Every worker calls it and gets the same result."""
        return minutes is not None and self._is_late(self._began, minutes)

    def is_save_due(self, minutes: float) -> bool:
        """Return whether the last :meth:`saved` is ``minutes`` ago. Every worker calls it and gets the same result."""
        return self._is_late(self._saved, minutes)

    def saved(self) -> None:
        self._saved = time.monotonic()

    def _is_late(self, began: float, minutes: float) -> bool:
        """Return whether ``began`` is ``minutes`` ago on any worker."""
        late = torch.tensor(float(time.monotonic() - began >= 60 * minutes), device=self._device)
        distributed.all_reduce(late, distributed.ReduceOp.MAX)
        return bool(late)

    def state(self) -> dict[str, Any]:
        """Return the counts since the run began and since the last line. Every worker calls it."""
        sums = torch.tensor([*self._own.values()], dtype=torch.float64, device=self._device)
        distributed.all_reduce(sums)
        now, seconds = time.monotonic(), ("waited", "stepped")
        for name, value in zip(_SUMS, sums.tolist(), strict=True):
            self._since_line[name] += value
            self._own[name] = 0.0
            if name in self._totals:
                self._totals[name] += value
        self._totals["stepped"] += (now - self._counted) * distributed.get_world_size()
        self._counted = now
        counts = {name: round(value, 3) if name in seconds else int(value) for name, value in self._totals.items()}
        line = {**self._since_line, "planned": self._planned, "seconds": round(now - self._line_began, 3)}
        return {**counts, "seconds": now - self._began, "since_line": line}


class Reporter:
    """Write lines to metrics.jsonl and TensorBoard (first worker only), and keep the ``latest`` value of every metric.

    Each line and event goes to the functions ``watch``. All workers ``report`` the latest values to Ray Train, only at
    checkpoints: each report waits half a second.
    """

    def __init__(
        self,
        run: Run,
        is_first: bool,
        report: Callable[[dict[str, Any]], None] = lambda latest: None,
        watch: Sequence[Callable[[dict[str, Any]], None]] = (),
    ):
        self.run, self.report, self.latest = run, report, dict[str, Any]()
        self._is_first, self._watch = is_first, watch
        self._board: EventsWriter | None = None

    def start(self, step: int, hosts: list[str]) -> None:
        """Remove the lines of the steps after ``step``, which are repeated on ``hosts``."""
        if self._is_first:
            self.run.rewind(step)
            self.run.tensorboard.mkdir(parents=True, exist_ok=True)
            suffix = f".{step:08d}"  # a training may restart within one second
            self._board = EventsWriter(str(self.run.tensorboard / "events"), suffix)
            restart = SessionLog(status=SessionLog.START)  # TensorBoard drops its points from this step on
            self._board.write_event(Event(wall_time=time.time(), step=step + 1, session_log=restart))
        self.add_event("start", step, hosts=hosts)

    def write(self, line: dict[str, Any]) -> None:
        self.latest |= line
        self._show(line)
        if self._board is not None:
            append_line(self.run.metrics, line)
            if figures := {name: value for name, value in line.items() if name.startswith("valid_")}:
                self.run.add_validation(line["step"], figures)
            for name in line.keys() - {"step", "batch_hash"}:  # no writer thread, which would hang on a full disk
                point = scalar(name, line[name])
                self._board.write_event(Event(wall_time=time.time(), step=line["step"], summary=point))
            self._board.flush()

    def _show(self, line: dict[str, Any]) -> None:
        for watch in self._watch:
            watch(line)

    def add_event(self, event: str, step: int, **values: Any) -> None:
        """Append an event to events.jsonl (first worker only)."""
        self._show({"event": event, "step": step, f"{event}_time": time.time(), **values})
        if self._is_first:
            self.run.add_event(event, step=step, **values)

    def close(self) -> None:
        if self._board is not None:
            self._board.close()
