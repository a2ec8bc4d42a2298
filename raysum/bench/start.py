"""Start-up time: until the first training step, and until the end of the first trial of a search."""

import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable
from itertools import product
from pathlib import Path
from statistics import median
from typing import Annotated, Any, ClassVar, Literal

import psutil
from pydantic import Field

from raysum.bench.base import Bench, Row
from raysum.bench.machine import Machine
from raysum.errors import UserError
from raysum.examples.factbook import corpus
from raysum.runtime.processes import cores
from raysum.runtime.session import NO_DASHBOARD

_CLUSTERS = {"train": 2000, "valid": 60, "test": 60}  # examples of the generated dataset
_INTERVAL = 0.1  # seconds between two samples of the processes
_TIMEOUT = 300  # seconds
# Words in the command lines of Ray's own processes; a session's other processes are the driver or workers.
_RAY = {"ray": ("raylet", "gcs_server"), "dashboard": ("dashboard", "Head", "agent", "monitor.py")}


class StartBench(Bench):
    """A row for each command, number of workers and dashboard setting: medians of ``repeats`` starts."""

    NAME: ClassVar[str] = "start"
    threads: ClassVar[int] = cores()
    commands: list[Literal["train", "tune"]] = Field(["train", "tune"], min_length=1, description="what to start")
    workers: list[Annotated[int, Field(ge=0)]] = Field(
        [2, 0], min_length=1, description="workers of the training; 0 = in the process itself"
    )
    dashboard: list[bool] = Field([True], min_length=1, description="whether Ray has its dashboard")
    repeats: int = Field(3, gt=0, description="starts of each; the median counts")

    def cases(self, scratch: Path) -> Iterable[tuple[Any, ...]]:
        prepare_run(scratch, trained="tune" in self.commands, aligned="tune" in self.commands)
        counts = {"train": self.workers, "tune": self.workers[:1]}
        variants = ((command, workers) for command in self.commands for workers in counts[command])
        return [(scratch, *variant, dashboard) for variant, dashboard in product(variants, self.dashboard)]

    def measured(self, _: Machine, folder: Path, command: str, workers: int, dashboard: bool) -> Row:
        """Return the figures of a case. Raises UserError if the command fails."""
        starts = [_start(folder, command, workers, dashboard) for _ in range(self.repeats)]
        seconds = [start.pop("seconds") for start in starts]
        row: Row = {"start": command, "dashboard": "yes" if dashboard else "no"}
        row |= {"workers": workers} if command == "train" else {}
        row |= {"seconds": median(seconds), "fastest": min(seconds), "slowest": max(seconds)}
        return row | {name: median(start[name] for start in starts) for name in starts[0]}


def prepare_run(folder: Path, trained: bool = True, aligned: bool = False) -> Path:
    """Write a dataset of the factbook into ``folder`` and return the path of its run.

    If ``trained``, the run has two steps, and if ``aligned`` also an attention predictor.
    """
    clusters, data, run = str(corpus.write(folder / "corpus", **_CLUSTERS)), str(folder / "data"), folder / "run"
    few = [f"data={data}", "train.workers=0", "train.steps=2", "train.batch_tokens=2000"]
    sizes = ["--vocab-size=2000", "--max-paragraphs=10", "--paragraph-tokens=40"]
    commands = [["prepare", clusters, f"--out={data}", *sizes]]
    commands += [["train", "quickstart", f"out={run}", *few]] * trained
    commands += [["train", "alignment", f"run={run}", *few]] * aligned
    for command in commands:
        done = subprocess.run(raysum_command(*command), capture_output=True, text=True)
        if done.returncode:
            raise UserError(f"raysum {' '.join(command)} failed: {done.stderr[-2000:]}")
    return run


def _start(folder: Path, command: str, workers: int, dashboard: bool) -> dict[str, float]:
    """Return the figures of one start: seconds, CPU seconds by kind of process, and the number of processes."""
    scratch = Path(tempfile.mkdtemp(dir=folder))
    out, log = scratch / "out", scratch / "log"
    options, file, mark = {
        "train": (["quickstart", f"train.workers={workers}", "train.log_every=1"], out / "metrics.jsonl", b"\n"),
        "tune": (["beta", f"run={folder / 'run'}", "decode.max_length=20"], log, b": rouge2 "),
    }[command]
    line = raysum_command(command, *options, f"data={folder / 'data'}", f"out={out}")
    environment = os.environ | ({} if dashboard else {NO_DASHBOARD: "1"})
    began = time.monotonic()
    with log.open("wb") as output:
        process = psutil.Popen(line, stdout=output, stderr=output, stdin=subprocess.DEVNULL, env=environment)
    try:
        cpu = _watch(process, lambda: file.exists() and mark in file.read_bytes())
        seconds = time.monotonic() - began
    finally:
        if process.poll() is None:
            process.send_signal(signal.SIGINT)
        process.wait(_TIMEOUT)
    if not cpu:
        raise UserError(f"{' '.join(line)} gave no result: {log.read_text(errors='replace')[-2000:]}")
    kinds = ("driver", "workers", *_RAY)
    by_kind = {f"cpu_{kind}_s": sum(spent for of, spent in cpu.values() if of == kind) for kind in kinds}
    return {"seconds": seconds, "cpu_s": sum(by_kind.values()), **by_kind, "processes": len(cpu)}


def _watch(process: psutil.Popen, reached: Callable[[], bool]) -> dict[int, tuple[str, float]]:
    """Return the kind and CPU seconds of each process until the first result; empty if there is none."""
    cpu: dict[int, tuple[str, float]] = {}
    deadline = time.monotonic() + _TIMEOUT
    while not reached():
        if process.poll() is not None or time.monotonic() > deadline:
            return {}
        for watched in [process, *process.children(recursive=True)]:
            try:
                times, words = watched.cpu_times(), " ".join(watched.cmdline())
            except psutil.Error:
                continue  # it has ended
            kind = next((kind for kind, marks in _RAY.items() if any(mark in words for mark in marks)), "workers")
            cpu[watched.pid] = ("driver" if watched.pid == process.pid else kind, times.user + times.system)
        time.sleep(_INTERVAL)
    return cpu


def raysum_command(*arguments: str) -> list[str]:
    """Return the command that runs raysum with ``arguments`` by the Python of this process."""
    return [sys.executable, "-m", "raysum", *arguments]
