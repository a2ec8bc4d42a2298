"""SIGTERM, by which containers stop: a verb ends as by Ctrl-C, keeps what was saved, and leaves nothing running."""

import fcntl
import json
import os
import re
import select
import signal
import subprocess
import sys
import termios
import time
from pathlib import Path

import pytest

from helpers.processes import LOOPBACK, Command
from helpers.small_datasets import write_dataset
from helpers.small_runs import TRAINING
from raysum.runs.folder import Run
from raysum.train.checkpoints import newest_sound


@pytest.fixture
def folder(tmp_path) -> Path:
    write_dataset(tmp_path / "data", {"train": 300, "valid": 20})
    (tmp_path / "config.yaml").write_text(json.dumps(TRAINING))
    return tmp_path


def stop(folder: Path, arguments: list[str], when, by: int = signal.SIGTERM) -> None:
    """Start a verb, end it by a signal ``when`` that holds: it says so, and all its processes end within 30 s.

    Until then only this machine can connect to them."""
    with (folder / "log").open("w") as log:
        command = Command(*arguments, cwd=folder, stderr=log, stdout=log)
    end = time.monotonic() + 300
    while not when():
        assert command.process.poll() is None and time.monotonic() < end, (folder / "log").read_text()
        time.sleep(0.05)
    heard = command.listening()
    assert set().union(*heard.values()) <= LOOPBACK, heard
    command.process.send_signal(by)
    code = command.process.wait(30)
    told = (folder / "log").read_text()
    assert code == 128 + by and "raysum: stopped\n" in told and "Traceback" not in told, (code, told)
    command.wait_until_none_lives()


@pytest.mark.parametrize(
    ("workers", "by"),
    [
        (0, signal.SIGTERM),
        (0, signal.SIGHUP),
        pytest.param(1, signal.SIGTERM, marks=pytest.mark.slow),
        pytest.param(1, signal.SIGHUP, marks=pytest.mark.long),
    ],
)
def test_a_training_is_stopped_and_keeps_its_checkpoint(folder, workers, by):
    run = Run(folder / "run")
    command = ["train", "config.yaml", "data=data", "out=run", f"train.workers={workers}", "train.steps=5000"]
    stop(folder, command, run.checkpoints, by)
    assert newest_sound(run) and not list(run.path.glob(".lock")) and not (run.path / "ray").exists()
    assert all(item.name.startswith("step-") for item in run.checkpoint_folder.iterdir())


def test_a_training_ends_with_its_terminal(folder):
    run, (ours, terminal) = Run(folder / "run"), os.openpty()

    def take_over() -> None:
        os.setsid()
        fcntl.ioctl(terminal, termios.TIOCSCTTY, 0)

    command = ["train", "config.yaml", "data=data", "out=run", "train.workers=0", "train.steps=5000"]
    process = subprocess.Popen(
        [sys.executable, "-m", "raysum", *command],
        cwd=folder, stdin=terminal, stdout=terminal, stderr=terminal, preexec_fn=take_over,
    )  # fmt: skip
    os.close(terminal)
    while not run.checkpoints():
        assert process.poll() is None
        if select.select([ours], [], [], 0.1)[0]:
            os.read(ours, 1 << 16)
    os.close(ours)
    assert process.wait(30) == 128 + signal.SIGHUP
    assert newest_sound(run) and all(item.name.startswith("step-") for item in run.checkpoint_folder.iterdir())


def test_under_nohup_a_closed_terminal_ends_nothing():
    process = subprocess.Popen(
        [sys.executable, "-m", "raysum", "summarize", "lead", "-"], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
        preexec_fn=lambda: signal.signal(signal.SIGHUP, signal.SIG_IGN),
    )  # fmt: skip
    while not caught(process.pid) >> (signal.SIGTERM - 1) & 1:
        time.sleep(0.05)
    process.send_signal(signal.SIGHUP)
    told, _ = process.communicate(b"The Arno is a river.", timeout=60)
    assert process.returncode == 0 and b"The Arno is a river." in told


def caught(pid: int) -> int:
    (line,) = re.findall("SigCgt:(.*)", Path(f"/proc/{pid}/status").read_text())
    return int(line, 16)


@pytest.mark.long
@pytest.mark.slow
def test_a_preparation_is_stopped_and_leaves_nothing(folder):
    subprocess.run([sys.executable, "-c", CORPUS], cwd=folder, check=True)
    before = {item.name for item in folder.iterdir()} | {"log"}
    shards = folder / ".out.unfinished"
    stop(folder, ["prepare", "corpus", "--out", "out", "--vocab-size", "500"], lambda: list(shards.glob("*.shard")))
    assert {item.name for item in folder.iterdir()} == before


CORPUS = """
from pathlib import Path
from raysum.examples.factbook import corpus
corpus.write(Path("corpus"), train=20000, valid=10, test=10)
"""


@pytest.mark.long
@pytest.mark.slow
def test_a_search_is_stopped(folder):
    (folder / "space.yaml").write_text(SPACE)
    command = ["tune", "space.yaml", "data=data", "out=search", "train.threads=1"]
    stop(folder, command, lambda: list(folder.glob("search/trials/*/checkpoints/step-*")))


SPACE = """
about: learning rates
kind: train
preset: config.yaml
metric: valid_loss
searcher: grid
scheduler: fifo
search: {optim.lr: {grid: [0.01, 0.02]}}
config: {train.steps: 5000, train.workers: 1}
"""
