"""A disk that fills up while a real command writes: one message, and nothing that was saved before is lost."""

import json
import os
import resource
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from helpers.factbook_data import write_factbook
from helpers.project import ROOT
from helpers.small_datasets import write_dataset
from helpers.small_runs import TRAINING
from raysum.evaluate.evaluation import evaluate
from raysum.runs.folder import Run
from raysum.train.checkpoints import newest_sound


@pytest.fixture
def folder(tmp_path) -> Path:
    write_dataset(tmp_path / "data", {"train": 300})
    (tmp_path / "config.yaml").write_text(json.dumps(TRAINING))
    return tmp_path


def start(folder: Path, out: str, *settings: str) -> subprocess.Popen:
    command = [sys.executable, "-m", "raysum", "train", "config.yaml", "data=data", f"out={out}", *settings]
    surroundings = {**os.environ, "PYTHONPATH": str(ROOT)}
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
@pytest.mark.parametrize("workers", [0, pytest.param(2, marks=pytest.mark.long)])
def test_a_full_disk(folder, workers):
    (folder / "disk").mkdir()
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=6m", "tmpfs", folder / "disk"]).returncode:
        pytest.skip("mounting is not possible here")
    try:
        run = Run(folder / "disk" / "run")
        stage = ["deepspeed.zero_optimization.stage=2"] if workers else []
        process = start(folder, "disk/run", f"train.workers={workers}", "train.steps=2000", *stage)
        until(run.checkpoints, process)
        with suppress(OSError), (folder / "disk" / "other").open("wb") as other:
            while True:
                other.write(bytes(1 << 16))
                other.flush()
        refused(process, run)
    finally:
        subprocess.run(["umount", "-l", folder / "disk"], check=True)


def limited(folder: Path, most: int, *arguments: str, **options) -> tuple[int, str]:
    """Exit code and messages of a command whose files cannot grow above ``most`` bytes."""
    surroundings = {**os.environ, "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-m", "raysum", *arguments]
    done = subprocess.run(
        command,
        cwd=folder,
        env=surroundings,
        stderr=subprocess.PIPE,
        text=True,
        timeout=300,
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (most, most)),
        **options,
    )
    assert "Traceback" not in done.stderr and done.stderr.count("raysum: ") == 1, done.stderr
    return done.returncode, done.stderr


@pytest.mark.parametrize("most", [500, 5000, 240_000])
def test_no_dataset_is_left_where_it_cannot_be_written(tmp_path, most):
    text = "The river Arno flows through the city of Florence and its old bridges number %d."
    lines = [{"id": str(i), "title": "Arno", "summary": "It flows.", "documents": [text % i]} for i in range(300)]
    (tmp_path / "c.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    code, told = limited(tmp_path, most, "prepare", "c.jsonl", "--out=data", "--vocab-size=100")
    left = sorted(item.name for item in tmp_path.iterdir())
    assert code == 2 and f"raysum: cannot write {tmp_path}/data: " in told and left == ["c.jsonl"]


@pytest.mark.parametrize("most", [10, 3000])
def test_results_of_before_stay_where_new_ones_cannot_be_written(tmp_path, most):
    write_factbook(tmp_path / "data", {"valid": 20})
    command = ["evaluate", "lead", "--data=data", "--split=valid", "--out=results"]
    code, told = limited(tmp_path, most, *command)
    assert code == 2 and "raysum: cannot write results: " in told and not (tmp_path / "results").exists()
    evaluate("lead", tmp_path / "data", split="valid", out=tmp_path / "results")
    before = {file: file.read_bytes() for file in (tmp_path / "results").iterdir()}
    assert limited(tmp_path, most, *command, "--limit=19")[0] == 2
    assert {file: file.read_bytes() for file in (tmp_path / "results").iterdir()} == before


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no /dev/full here")
@pytest.mark.parametrize(
    "command", [["config", "list"], ["config", "show", "pht"], ["config", "show", "pht", "--json"]]
)
def test_what_is_printed_to_a_full_disk_is_one_message(tmp_path, command):
    with open("/dev/full", "w") as full:
        code, told = limited(tmp_path, 10**9, *command, stdout=full)
    assert (code, told) == (
        2,
        "raysum: cannot write the output of the command: No space left on device; free space there\n",
    )


def until(condition, process: subprocess.Popen) -> None:
    end = time.monotonic() + 200
    while not condition():
        assert process.poll() is None and time.monotonic() < end
        time.sleep(0.02)
