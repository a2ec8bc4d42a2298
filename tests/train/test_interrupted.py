"""Commands that end early keep what was saved, and leave nothing else: stopped by a signal, or by a full disk."""

import fcntl
import json
import os
import re
import resource
import select
import signal
import subprocess
import sys
import termios
import time
from contextlib import suppress
from pathlib import Path

import pytest

from helpers.factbook_data import write_factbook
from helpers.processes import LOOPBACK, Command
from helpers.small_datasets import write_dataset
from helpers.small_runs import TRAINING
from helpers.small_trainings import same, weights
from raysum.evaluate.evaluation import evaluate
from raysum.runs.folder import Run
from raysum.runtime.storage import read_lines
from raysum.train.checkpoints import newest_sound


@pytest.fixture
def folder(tmp_path) -> Path:
    write_dataset(tmp_path / "data", {"train": 300, "valid": 20})
    (tmp_path / "config.yaml").write_text(json.dumps(TRAINING))
    return tmp_path


def training(workers: int, steps: int = 5000, out: str = "run") -> list[str]:
    return ["train", "config.yaml", "data=data", f"out={out}", f"train.workers={workers}", f"train.steps={steps}"]


def check_whole(run: Run) -> None:
    """Its last checkpoint is whole, and nothing else is there."""
    assert newest_sound(run) and not list(run.path.glob(".lock")) and not (run.path / "ray").exists()
    assert all(item.name.startswith("step-") for item in run.checkpoint_folder.iterdir())


# Stopped


def stop(folder: Path, arguments: list[str], when, by: int = signal.SIGTERM) -> None:
    """Start a verb, end it by a signal ``when`` that holds: it says so, and all its processes end within 30 s.

    Until then only this machine can connect to them."""
    with (folder / "log").open("w") as log:
        command = Command(*arguments, cwd=folder, stderr=log, stdout=log)
    command.wait_until(when)
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
    stop(folder, training(workers), run.checkpoints, by)
    check_whole(run)
    if by == signal.SIGTERM:  # it saves first
        *_, line = read_lines(run.metrics)
        assert run.latest().step == line["step"]


@pytest.mark.long
def test_a_training_ends_with_its_terminal(folder):
    run, (ours, terminal) = Run(folder / "run"), os.openpty()

    def take_over() -> None:
        os.setsid()
        fcntl.ioctl(terminal, termios.TIOCSCTTY, 0)

    streams = dict.fromkeys(("stdin", "stdout", "stderr"), terminal)
    command = [sys.executable, "-m", "raysum", *training(0)]
    process = subprocess.Popen(command, cwd=folder, preexec_fn=take_over, **streams)
    os.close(terminal)
    while not run.checkpoints():
        assert process.poll() is None
        if select.select([ours], [], [], 0.1)[0]:
            os.read(ours, 1 << 16)
    os.close(ours)
    assert process.wait(30) == 128 + signal.SIGHUP
    check_whole(run)


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
    corpus = "from raysum.examples.factbook import corpus; corpus.write(Path('corpus'), train=20000, valid=10, test=10)"
    subprocess.run([sys.executable, "-c", f"from pathlib import Path; {corpus}"], cwd=folder, check=True)
    before = {item.name for item in folder.iterdir()} | {"log"}
    shards = folder / ".out.unfinished"
    stop(folder, ["prepare", "corpus", "--out", "out", "--vocab-size", "500"], lambda: list(shards.glob("*.shard")))
    assert {item.name for item in folder.iterdir()} == before


@pytest.mark.long
@pytest.mark.slow
def test_a_search_is_stopped(folder):
    space = {"about": "learning rates", "kind": "train", "preset": "config.yaml", "metric": "valid_loss"}
    space |= {"searcher": "grid", "scheduler": "fifo", "search": {"optim.lr": {"grid": [0.01, 0.02]}}}
    space["config"] = {"train.steps": 5000, "train.workers": 1}
    (folder / "space.yaml").write_text(json.dumps(space))
    command = ["tune", "space.yaml", "data=data", "out=search", "train.threads=1"]
    stop(folder, command, lambda: list(folder.glob("search/trials/*/checkpoints/step-*")))


# A full disk


def start(folder: Path, arguments: list[str]) -> Command:
    return Command(*arguments, cwd=folder, stderr=subprocess.PIPE, text=True)


def refused(command: Command, run: Run) -> None:
    """The command ends by one message that names the run."""
    _, told = command.process.communicate(timeout=550)
    assert command.process.returncode == 2 and "Traceback" not in told and told.count("raysum: ") == 1, told
    assert f"raysum: cannot write {run.path}: " in told and "free space there" in told
    check_whole(run)


@pytest.mark.long
def test_no_file_can_grow_any_more_while_a_checkpoint_is_saved(folder):
    """The limit of the size of files stands for a full disk, which only root can make."""
    run, command = Run(folder / "run"), start(folder, training(0))
    command.wait_until(run.checkpoints)
    resource.prlimit(command.process.pid, resource.RLIMIT_FSIZE, (run.metrics.stat().st_size + 5000,) * 2)
    refused(command, run)
    done = newest_sound(run).step
    for out in ("run", "whole"):
        assert start(folder, training(0, done + 10, out)).process.wait(300) == 0
    assert same(weights(run, "latest"), weights(Run(folder / "whole"), "latest"))


@pytest.mark.slow
@pytest.mark.skipif(os.geteuid() != 0, reason="only root may mount a small disk")
@pytest.mark.parametrize("workers", [0, pytest.param(2, marks=pytest.mark.long)])
def test_a_full_disk(folder, workers):
    (folder / "disk").mkdir()
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=6m", "tmpfs", folder / "disk"]).returncode:
        pytest.skip("mounting is not possible here")
    try:
        run = Run(folder / "disk" / "run")
        stage = ["deepspeed.zero_optimization.stage=2"] if workers else []
        command = start(folder, [*training(workers, out="disk/run"), *stage])
        command.wait_until(run.checkpoints)
        with suppress(OSError), (folder / "disk" / "other").open("wb") as other:
            while True:
                other.write(bytes(1 << 16))
                other.flush()
        refused(command, run)
    finally:
        subprocess.run(["umount", "-l", folder / "disk"], check=True)


def limited(folder: Path, most: int, *arguments: str, **options) -> str:
    """The one message of a command that fails because its files cannot grow above ``most`` bytes."""
    limit = {"preexec_fn": lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (most, most))}
    command = [sys.executable, "-m", "raysum", *arguments]
    done = subprocess.run(command, cwd=folder, stderr=subprocess.PIPE, text=True, timeout=300, **limit, **options)
    assert done.returncode == 2 and "Traceback" not in done.stderr and done.stderr.count("raysum: ") == 1, done.stderr
    return done.stderr


@pytest.mark.parametrize("most", [500, 5000, 240_000])
def test_no_dataset_is_left_where_it_cannot_be_written(tmp_path, most):
    text = "The river Arno flows through the city of Florence and its old bridges number %d."
    lines = [{"id": str(i), "title": "Arno", "summary": "It flows.", "documents": [text % i]} for i in range(300)]
    (tmp_path / "c.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    told = limited(tmp_path, most, "prepare", "c.jsonl", "--out=data", "--vocab-size=100")
    assert f"raysum: cannot write {tmp_path}/data: " in told
    assert [item.name for item in tmp_path.iterdir()] == ["c.jsonl"]


@pytest.mark.parametrize("most", [10, 3000])
def test_results_of_before_stay_where_new_ones_cannot_be_written(tmp_path, most):
    results = tmp_path / "results"
    write_factbook(tmp_path / "data", {"valid": 20})
    command = ["evaluate", "lead", "--data=data", "--split=valid", "--out=results"]
    assert "raysum: cannot write results: " in limited(tmp_path, most, *command) and not results.exists()
    evaluate("lead", tmp_path / "data", split="valid", out=results)
    before = {file: file.read_bytes() for file in results.iterdir()}
    limited(tmp_path, most, *command, "--limit=19")
    assert {file: file.read_bytes() for file in results.iterdir()} == before


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no /dev/full here")
@pytest.mark.parametrize("command", ["config list", "config show pht", "config show pht --json"])
def test_what_is_printed_to_a_full_disk_is_one_message(tmp_path, command):
    with open("/dev/full", "w") as full:
        told = limited(tmp_path, 10**9, *command.split(), stdout=full)
    message = "cannot write the output of the command: No space left on device; free space there"
    assert told == f"raysum: {message}\n"
