"""One writer of a folder: two real commands, a dead holder, and what is left behind."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from helpers.project import ROOT
from helpers.small_datasets import write_dataset
from raysum.errors import UserError
from raysum.runtime.lock import LOCK, folder_lock
from raysum.runtime.storage import check_vacant, new_folder

HOLD = """
import sys, time
from pathlib import Path
from raysum.runtime.lock import folder_lock
with folder_lock(Path(sys.argv[1]), Path(sys.argv[1]) / ".lock"):
    print("held", flush=True)
    time.sleep(60)
"""


@pytest.fixture
def holder(tmp_path):
    """Another process, which holds ``tmp_path / "out"``."""
    process = subprocess.Popen([sys.executable, "-c", HOLD, str(tmp_path / "out")], stdout=subprocess.PIPE, text=True)
    assert process.stdout.readline() == "held\n"
    yield process
    process.kill()
    process.wait()


def test_a_second_process_is_refused_and_told_of_the_first(holder, tmp_path):
    out = tmp_path / "out"
    with (
        pytest.raises(UserError, match=f"out is being written by process {holder.pid} on .* since 20"),
        folder_lock(out, out / LOCK),
    ):
        pytest.fail("two hold one folder")
    assert json.loads((out / LOCK).read_text())["process"] == holder.pid
    check_vacant(out)  # a lock is nothing that one would write over


def test_the_lock_of_a_dead_process_is_taken_over_and_leaves_nothing(holder, tmp_path):
    out = tmp_path / "out"
    os.kill(holder.pid, signal.SIGKILL)
    holder.wait()
    assert (out / LOCK).exists()
    with folder_lock(out, out / LOCK):
        assert json.loads((out / LOCK).read_text())["process"] == os.getpid()
        (out / "file").touch()
    assert [item.name for item in out.iterdir()] == ["file"]


def test_folders_that_were_made_for_a_lock_alone_go_with_it(tmp_path):
    out = tmp_path / "runs" / "one"
    with pytest.raises(UserError, match="mistake"), folder_lock(out, out / LOCK):
        raise UserError("mistake")
    assert not list(tmp_path.iterdir())


def test_a_folder_in_the_making_is_one_process_own(tmp_path):
    out = tmp_path / "data"
    with new_folder(out) as first:
        (first / "shard").touch()
        with pytest.raises(UserError, match=f"data is being written by process {os.getpid()}"), new_folder(out):
            pytest.fail("two make one folder")
        assert (first / "shard").exists(), "the second must not remove what the first has written"
    assert {item.name for item in tmp_path.iterdir()} == {"data"} and [*out.iterdir()] == [out / "shard"]


def test_of_two_trainings_into_one_folder_one_is_refused(tmp_path):
    write_dataset(tmp_path / "data", {"train": 100})
    command = [sys.executable, "-m", "raysum", "train", "quickstart", "data=data", "out=run", "train.workers=0"]
    command += [
        "train.steps=400",
        "model.width=16",
        "model.heads=2",
        "model.copy_heads=2",
        "model.pooling_heads=2",
        "model.ffn=16",
    ]
    (tmp_path / "first.log").touch()
    with (tmp_path / "first.log").open("w") as log:
        first = subprocess.Popen(command, cwd=tmp_path, stderr=log, stdout=log, env=surroundings())
    try:
        wait_for(tmp_path / "run" / "config.yaml", first)
        second = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, env=surroundings())
        assert second.returncode == 2, second.stderr
        assert f"run is being written by process {first.pid} on " in second.stderr
        assert first.poll() is None, (tmp_path / "first.log").read_text()
    finally:
        first.kill()
        first.wait()


def surroundings() -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": str(ROOT)}


def wait_for(path: Path, process: subprocess.Popen) -> None:
    end = time.monotonic() + 120
    while not path.exists():
        assert process.poll() is None and time.monotonic() < end
        time.sleep(0.05)
