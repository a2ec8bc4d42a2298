"""SIGTERM, by which containers stop: a verb ends as by Ctrl-C, keeps what was saved, and leaves nothing running."""

import json
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from processes import Command
from small_datasets import write_dataset
from test_full_disk import CONFIG

from raysum.run import Run
from raysum.train.checkpoints import newest_sound


@pytest.fixture
def folder(tmp_path) -> Path:
    write_dataset(tmp_path / "data", {"train": 300, "valid": 20})
    (tmp_path / "config.yaml").write_text(json.dumps(CONFIG))
    return tmp_path


def stop(folder: Path, arguments: list[str], when) -> None:
    """Start a verb, end it by SIGTERM ``when`` that holds: it says so, and all its processes end within 30 s."""
    with (folder / "log").open("w") as log:
        command = Command(*arguments, cwd=folder, stderr=log, stdout=log)
    end = time.monotonic() + 300
    while not when():
        assert command.process.poll() is None and time.monotonic() < end, (folder / "log").read_text()
        time.sleep(0.05)
    command.process.send_signal(signal.SIGTERM)
    code = command.process.wait(30)
    told = (folder / "log").read_text()
    assert code == 143 and "raysum: stopped\n" in told and "Traceback" not in told, (code, told)
    command.wait_until_none_lives()


@pytest.mark.parametrize("workers", [0, pytest.param(1, marks=pytest.mark.slow)])
def test_a_training_is_stopped_and_keeps_its_checkpoint(folder, workers):
    run = Run(folder / "run")
    command = ["train", "config.yaml", "data=data", "out=run", f"train.workers={workers}", "train.steps=5000"]
    stop(folder, command, run.checkpoints)
    assert newest_sound(run) and not list(run.path.glob(".lock")) and not (run.path / "ray").exists()
    assert all(item.name.startswith("step-") for item in run.checkpoint_folder.iterdir())


@pytest.mark.slow
def test_a_preparation_is_stopped_and_leaves_nothing(folder):
    subprocess.run([sys.executable, "-c", CORPUS], cwd=folder, check=True)
    before = {item.name for item in folder.iterdir()} | {"log"}
    shards = folder / ".out.unfinished"
    stop(folder, ["prepare", "corpus", "--out", "out", "--pieces", "500"], lambda: list(shards.glob("*.shard")))
    assert {item.name for item in folder.iterdir()} == before


CORPUS = """
from pathlib import Path
from raysum.prepare.factbook import corpus
corpus.write(Path("corpus"), train=20000, valid=10, test=10)
"""


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
