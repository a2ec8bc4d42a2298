"""A disk that fills up while a real command writes: one message, and nothing that was saved before is lost."""

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from small_datasets import write_dataset

from raysum.run import Run
from raysum.train.checkpoints import newest_sound

CONFIG = {
    "model": {"width": 32, "ffn": 64, "heads": 2, "pooling_heads": 2, "encoder": "L", "decoder": "P"},
    "train": {"batch_tokens": 200, "micro_batches": 4, "threads": 1, "log_every": 1, "save_every": 10},
    "optim": {"lr": 0.01, "schedule": "constant", "warmup_steps": 0},
}


@pytest.fixture
def folder(tmp_path) -> Path:
    write_dataset(tmp_path / "data", {"train": 300})
    (tmp_path / "config.yaml").write_text(json.dumps(CONFIG))
    return tmp_path


def start(folder: Path, out: str, *settings: str) -> subprocess.Popen:
    command = [sys.executable, "-m", "raysum", "train", "config.yaml", "data=data", f"out={out}", *settings]
    surroundings = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[1])}
    return subprocess.Popen(command, cwd=folder, stderr=subprocess.PIPE, text=True, env=surroundings)


def refused(process: subprocess.Popen, run: Run) -> None:
    """The command ends by one message that names the run; its last checkpoint is whole, and nothing else is there."""
    _, told = process.communicate(timeout=550)
    assert process.returncode == 2, told
    assert "Traceback" not in told and told.count("raysum: ") == 1
    assert f"raysum: cannot write {run.path}: " in told and "free space there" in told
    assert newest_sound(run)
    assert all(item.name.startswith("step-") for item in run.checkpoint_folder.iterdir())


def test_no_file_can_grow_any_more_while_a_checkpoint_is_saved(folder):
    """The limit of the size of files stands for a full disk, which only root can make."""
    import resource

    run, process = Run(folder / "run"), start(folder, "run", "train.workers=0", "train.steps=2000")
    until(run.checkpoints, process)
    resource.prlimit(process.pid, resource.RLIMIT_FSIZE, (run.metrics.stat().st_size + 5000,) * 2)
    refused(process, run)
    done = newest_sound(run).step
    for out in ("run", "whole"):
        assert start(folder, out, "train.workers=0", f"train.steps={done + 10}").wait(300) == 0
    found, expected = (load_file(Run(folder / out).checkpoint("latest").weights) for out in ("run", "whole"))
    assert all(torch.equal(found[name], expected[name]) for name in expected)


@pytest.mark.slow
@pytest.mark.skipif(os.geteuid() != 0, reason="only root may mount a small disk")
@pytest.mark.parametrize("workers", [0, 2])
def test_a_full_disk(folder, workers):
    (folder / "disk").mkdir()
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=6m", "tmpfs", folder / "disk"]).returncode:
        pytest.skip("mounting is not possible here")
    try:
        run = Run(folder / "disk" / "run")
        stage = ["deepspeed.zero_optimization.stage=2"] if workers else []
        process = start(folder, "disk/run", f"train.workers={workers}", "train.steps=2000", *stage)
        until(run.checkpoints, process)
        with (folder / "disk" / "other").open("wb") as other:
            try:
                while True:
                    other.write(bytes(1 << 16))
                    other.flush()
            except OSError:
                pass
        refused(process, run)
    finally:
        subprocess.run(["umount", "-l", folder / "disk"], check=True)


def until(condition, process: subprocess.Popen) -> None:
    end = time.monotonic() + 200
    while not condition():
        assert process.poll() is None and time.monotonic() < end
        time.sleep(0.02)
