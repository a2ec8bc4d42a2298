"""How long starting takes: until the first step of a training, and until the first trial of a search has ended."""

import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Literal

import psutil
from pydantic import Field

from raysum.bench.isolate import Row
from raysum.bench.machine import measure
from raysum.bench.result import BenchResult
from raysum.config.sections import Section
from raysum.data.recipe import Recipe
from raysum.data.rows import table_of
from raysum.data.vocabulary import Vocabulary
from raysum.data.writer import DatasetWriter
from raysum.errors import UserError
from raysum.prepare.factbook import corpus
from raysum.prepare.pipeline import prepare_example
from raysum.runtime.progress import track
from raysum.runtime.session import NO_DASHBOARD

_ROWS = {"train": 2000, "valid": 60}  # of an invented dataset
_LOOK = 0.1  # seconds between two looks at the processes
_PATIENCE = 300  # seconds
# What is in the command line of Ray's own processes; all others of a session are the driver, or workers.
_RAY = {"ray": ("raylet", "gcs_server"), "dashboard": ("dashboard", "Head", "agent", "monitor.py")}


class StartBench(Section):
    commands: list[Literal["train", "tune"]] = Field(["train", "tune"], min_length=1)
    workers: list[int] = Field([2, 0], min_length=1, description="of the training; 0: in the process")
    dashboard: list[bool] = Field([True], min_length=1, description="whether Ray has its dashboard")
    repeats: int = Field(3, gt=0)


def bench_start(settings: StartBench) -> BenchResult:
    """A row for each command, number of workers and choice of dashboard: medians of ``repeats`` starts.

    Raises UserError where a command fails.
    """
    machine = measure(os.cpu_count() or 1, ["fp32"])
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        work = [(command, workers, shown) for command in settings.commands for workers in settings.workers
                for shown in settings.dashboard if command == "train" or workers == settings.workers[0]]  # fmt: skip
        _prepare(folder, aligned="tune" in settings.commands)
        rows = [_row(folder, settings.repeats, *one) for one in track(work, label="bench start", unit="row")]
    return BenchResult("start", machine, rows)


def _prepare(folder: Path, aligned: bool) -> None:
    """A dataset of the factbook, and a run of few steps, with its attention predictor if it is to be ``aligned``."""
    clusters = {split: list(corpus.generate(split, count)) for split, count in _ROWS.items()}
    texts = (document["text"] for cluster in clusters["train"] for document in cluster["documents"])
    vocabulary = Vocabulary.train(texts, 2000)
    recipe = Recipe(max_paragraphs=10, paragraph_tokens=40, vocabulary_sha256=vocabulary.sha256)
    (folder / "data").mkdir()
    writer = DatasetWriter(folder / "data", "summarization", recipe, vocabulary)
    rows = {split: [prepare_example(raw, recipe, vocabulary) for raw in some] for split, some in clusters.items()}
    writer.finish([writer.add(split, split, table_of(some, writer.kind)) for split, some in rows.items()])
    if aligned:
        data, few = f"data={folder / 'data'}", ["train.workers=0", "train.steps=2", "train.batch_tokens=2000"]
        for command in (["quickstart", f"out={folder / 'run'}"], ["alignment", f"run={folder / 'run'}"]):
            subprocess.run(_raysum("train", *command, data, *few), check=True, capture_output=True)


def _row(folder: Path, repeats: int, command: str, workers: int, dashboard: bool) -> Row:
    found = [_start(folder, f"{command}-{workers}-{dashboard}-{number}", command, workers, dashboard)
             for number in range(repeats)]  # fmt: skip
    row: Row = {"start": command, "workers": workers, "dashboard": "yes" if dashboard else "no"}
    seconds = [one["seconds"] for one in found]
    row |= {"seconds": median(seconds), "fastest": min(seconds), "slowest": max(seconds)}
    return row | {name: median(one[name] for one in found) for name in found[0] if name != "seconds"}


def _start(folder: Path, name: str, command: str, workers: int, dashboard: bool) -> Row:
    """One start: its seconds, its CPU seconds by kind of process, and how many processes there were."""
    data, out = f"data={folder / 'data'}", folder / name
    if command == "train":
        line = _raysum("train", "quickstart", data, f"out={out}", f"train.workers={workers}", "train.log_every=1")
        metrics = out / "metrics.jsonl"

        def reached() -> bool:
            return metrics.exists() and b"\n" in metrics.read_bytes()
    else:
        line = _raysum("tune", "beta", f"run={folder / 'run'}", data, f"out={out}", "decode.max_length=20")

        def reached() -> bool:
            return b": rouge2 " in log.read_bytes()

    log = folder / f"{name}.log"
    with log.open("wb") as said:
        began = time.monotonic()
        environment = os.environ | ({} if dashboard else {NO_DASHBOARD: "1"})
        process = subprocess.Popen(line, stdout=said, stderr=said, stdin=subprocess.DEVNULL, env=environment)
    cpu = _watch(process, reached)
    seconds = time.monotonic() - began
    if process.poll() is None:
        process.send_signal(signal.SIGINT)
    process.wait(_PATIENCE)
    if not cpu:
        raise UserError(f"{' '.join(line)} ended before its first result: {log.read_text(errors='replace')[-2000:]}")
    kinds = {"driver": 0.0, "workers": 0.0, "ray": 0.0, "dashboard": 0.0}
    for kind, spent in cpu.values():
        kinds[kind] += spent
    return (
        {"seconds": seconds, "cpu_s": sum(kinds.values())}
        | {f"cpu_{kind}_s": spent for kind, spent in kinds.items()}
        | {"processes": len(cpu)}
    )


def _watch(process: "subprocess.Popen[bytes]", reached: Callable[[], bool]) -> dict[int, tuple[str, float]]:
    """Until the first result: kind and CPU seconds of each process; nothing where there never was one."""
    found: dict[int, tuple[str, float]] = {}
    deadline = time.monotonic() + _PATIENCE
    while not reached():
        if process.poll() is not None or time.monotonic() > deadline:
            return {}
        for one in [psutil.Process(process.pid), *psutil.Process(process.pid).children(recursive=True)]:
            try:
                times, words = one.cpu_times(), " ".join(one.cmdline())
            except psutil.Error:
                continue  # it has ended
            kind = next((kind for kind, marks in _RAY.items() if any(mark in words for mark in marks)), "workers")
            found[one.pid] = ("driver" if one.pid == process.pid else kind, times.user + times.system)
        time.sleep(_LOOK)
    return found


def _raysum(*arguments: str) -> list[str]:
    return [sys.executable, "-m", "raysum", *arguments]
