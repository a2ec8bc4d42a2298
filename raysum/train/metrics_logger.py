"""Metrics of a training: summed over the workers and written to the run folder."""

import math
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import torch
from tensorboardX.event_file_writer import EventsWriter
from tensorboardX.proto.event_pb2 import Event, SessionLog
from tensorboardX.summary import scalar
from torch import distributed

from raysum.errors import UserError
from raysum.runs.events import add_event
from raysum.runs.folder import Run
from raysum.runtime.processes import peak_rss_mb
from raysum.runtime.storage import append_line
from raysum.stream.collators.base import Kind
from raysum.stream.reader import MicroBatch

if TYPE_CHECKING:
    from raysum.train.gauges import Gauges

_SUMS = ("loss", "source_tokens", "target_tokens", "padding", "waited", "digest")
_SECONDS = ("waited", "stepped")
_LINE = "since_line"  # in the state of a checkpoint
_TOTALS = ("source_tokens", "target_tokens", "padding", *_SECONDS)


class Meter:
    """Sums over all workers, since the last line and since the run began.

    Both continue from the ``state`` of a checkpoint, so the lines are those of an uninterrupted training. ``padding``
    counts computed positions without a token. ``waited`` are the worker seconds spent waiting for data in steps (an
    upper bound on a GPU, which may still compute), ``stepped`` the worker seconds of all steps.
    """

    def __init__(self, device: torch.device, state: dict[str, Any]):
        self.device, self.totals = device, {name: state.get(name, 0) for name in _TOTALS}
        self.seconds, self.begun = state.get("seconds", 0.0), time.monotonic()
        self._mine: dict[str, Any] = dict.fromkeys(_SUMS, 0.0)
        line = state.get(_LINE, {})  # checkpoints of earlier versions have none
        self._since_line = {name: line.get(name, 0.0) for name in _SUMS}
        self._planned = line.get("planned", 0)  # loss denominators of the steps since the last line
        self._norm: float | torch.Tensor | None = None  # of the last step's gradient
        self._counted = self._saved = self.begun
        self._line_time = self.begun - line.get("seconds", 0.0)
        self._first = True

    def next_batch(self, coming: Iterator[MicroBatch]) -> MicroBatch:
        """Return the next batch. The wait for the first one is the start of the stream, and does not count."""
        began = time.monotonic()
        batch = next(coming)
        if self._first:
            self._leave_out(time.monotonic() - began)
        else:
            self._mine["waited"] += time.monotonic() - began
        self._first = False
        return batch

    def add(self, loss: float | torch.Tensor, kind: Kind, batch: MicroBatch) -> None:
        """Count one micro-batch of this worker; a placeholder batch counts as padding."""
        tokens, padding = kind.tokens(batch.arrays), kind.padding(batch.arrays)
        if not batch.real:
            self._mine["padding"] += sum(tokens) + padding
            return
        for name, value in zip(_SUMS, (loss, *tokens, padding, 0, batch.digest), strict=True):
            self._mine[name] += value

    def step_done(self, weight: int, grad_norm: float | torch.Tensor | None) -> None:
        self._planned += weight
        self._norm = grad_norm

    def line(self, step: int, rates: dict[str, float]) -> dict[str, Any]:
        """Return the metrics line of the steps since the last one. Every worker calls it.

        Raises UserError if the loss is not finite, or the number of target tokens differs from the plan.
        """
        state = self.state()
        sums, now = self._since_line, time.monotonic()
        targets = sums["target_tokens"]
        if targets != self._planned:
            raise UserError(
                f"the dataset plans {self._planned} target tokens up to step {step}, but its shards contain "
                f"{targets:.0f}: a file was changed; restore it from a copy, or prepare the dataset again"
            )
        loss = sums["loss"] / targets
        if not math.isfinite(loss):
            raise UserError(
                f"the loss is {loss} at step {step}; lower optim.lr, or set deepspeed.gradient_clipping=1.0"
            )
        spent, tokens = now - self._line_time, sums["source_tokens"] + sums["target_tokens"]
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
        self._since_line, self._planned, self._line_time = dict.fromkeys(_SUMS, 0.0), 0, now
        return line

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Leave the duration of the block out of ``tokens_per_s`` and of the shares of time."""
        began = time.monotonic()
        yield
        self._leave_out(time.monotonic() - began)

    def _leave_out(self, seconds: float) -> None:
        self._line_time, self._counted = self._line_time + seconds, self._counted + seconds

    def is_over(self, minutes: float | None) -> bool:
        """Return whether the run has taken ``minutes``. Every worker calls it and gets the same result."""
        if minutes is None:
            return False
        return self._on_any_rank(self.seconds + time.monotonic() - self.begun >= 60 * minutes)

    def is_save_due(self, minutes: float) -> bool:
        """Return whether the last :meth:`saved` is ``minutes`` ago. Every worker calls it and gets the same result."""
        return self._on_any_rank(time.monotonic() - self._saved >= 60 * minutes)

    def saved(self) -> None:
        self._saved = time.monotonic()

    def _on_any_rank(self, condition: bool) -> bool:
        ranks = torch.tensor(float(condition), device=self.device)
        distributed.all_reduce(ranks, distributed.ReduceOp.MAX)
        return bool(ranks)

    def state(self) -> dict[str, Any]:
        """Return the counts since the run began and since the last line. Every worker calls it."""
        sums = torch.tensor([self._mine[name] for name in _SUMS], dtype=torch.float64, device=self.device)
        distributed.all_reduce(sums)
        for name, value in zip(_SUMS, sums.tolist(), strict=True):
            self._since_line[name] += value
            self._mine[name] = 0.0
            if name in self.totals:
                self.totals[name] += value
        now = time.monotonic()
        self.totals["stepped"] += (now - self._counted) * distributed.get_world_size()
        self._counted = now
        counts = {name: round(value, 3) if name in _SECONDS else int(value) for name, value in self.totals.items()}
        line = {**self._since_line, "planned": self._planned, "seconds": round(now - self._line_time, 3)}
        return {**counts, "seconds": self.seconds + now - self.begun, _LINE: line}


class Reporter:
    """Write lines to metrics.jsonl and TensorBoard (first worker only), and keep the ``latest`` value of every metric.

    All workers ``report`` the latest values to Ray Train, only at checkpoints: each report waits half a second. The
    first worker sets the ``gauges``.
    """

    def __init__(
        self,
        run: Run,
        first: bool,
        report: Callable[[dict[str, Any]], None] = lambda line: None,
        gauges: "Gauges | None" = None,
    ):
        self.run, self.first, self.report, self._gauges = run, first, report, gauges
        self.latest: dict[str, Any] = {}
        self._board: EventsWriter | None = None
        self._done = 0

    def resume(self, step: int) -> None:
        """Remove the lines of the steps after ``step``, which are repeated."""
        self._done = step
        if self.first:
            self.run.rewind(step)

    def write(self, line: dict[str, Any]) -> None:
        self.latest |= line
        if self._gauges:
            self._gauges.set(line)
        if self.first:
            append_line(self.run.metrics, line)
            if figures := {name: value for name, value in line.items() if name.startswith("valid_")}:
                self.run.add_validation(line["step"], figures)
            for name in line.keys() - {"step", "batch_hash"}:
                self._draw(line["step"], summary=scalar(name, line[name]))
            if self._board is not None:
                self._board.flush()

    def add_event(self, event: str, **values: Any) -> None:
        """Append an event to events.jsonl (first worker only)."""
        if self.first:
            add_event(self.run.path, event, **values)
        if self._gauges and event == "checkpoint":
            self._gauges.saved()

    def _draw(self, step: int, **event: Any) -> None:
        """Write to TensorBoard without a writer thread: such a thread blocks forever when the disk is full."""
        if self._board is None:
            self.run.tensorboard.mkdir(parents=True, exist_ok=True)
            suffix = f".{self._done:08d}"  # a training may restart within one second
            self._board = EventsWriter(str(self.run.tensorboard / "events"), suffix)
            restart = SessionLog(status=SessionLog.START)  # TensorBoard drops its points from this step on
            self._draw(self._done + 1, session_log=restart)
        self._board.write_event(Event(wall_time=time.time(), step=step, **event))

    def close(self) -> None:
        if self._board is not None:
            self._board.close()
