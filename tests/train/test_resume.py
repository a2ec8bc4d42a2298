"""Trainings under Ray that lose a worker, the driver, or half of their workers: the weights come out the same."""

import contextlib
import json
import os
import random
import shutil
import signal
import subprocess
import time
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from helpers.processes import Command
from helpers.small_datasets import write_dataset
from helpers.small_runs import without_times
from raysum.runs.folder import Run
from raysum.runtime.storage import read_lines

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

STEPS = 60
CONFIG = {
    "model": {"width": 16, "ffn": 32, "heads": 2, "pooling_heads": 2, "encoder": "L", "decoder": "P"},
    "train": {"steps": STEPS, "batch_tokens": 200, "micro_batches": 4, "workers": 2, "threads": 1}
    | {"log_every": 3, "save_every": 10, "validate_every": 25},
    "optim": {"lr": 0.01, "schedule": "constant", "warmup_steps": 0},
    "deepspeed": {"zero_optimization": {"stage": 2}},
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    """The dataset, the config, and the runs of this module; an epoch has about 25 steps."""
    folder = tmp_path_factory.mktemp("resume")
    write_dataset(folder / "data", {"train": 600, "valid": 40})
    (folder / "config.yaml").write_text(json.dumps(CONFIG))
    return folder


def start(folder: Path, name: str, *overrides: str) -> Command:
    arguments = [str(folder / "config.yaml"), f"data={folder / 'data'}", f"out={folder / name}", *overrides]
    with (folder / f"{name}.log").open("a") as log:
        return Command("train", *arguments, stdout=subprocess.DEVNULL, stderr=log)


def finish(folder: Path, name: str, command: Command) -> Run:
    """Wait for the end of the command; nothing of it may run on."""
    assert command.process.wait() == 0, (folder / f"{name}.log").read_text()
    command.wait_until_none_lives()
    return Run(folder / name)


def wait_until(condition, problem: str, seconds: float = 300) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, problem
        time.sleep(0.02)


def lines(run: Run) -> list[dict]:
    return [line for line in read_lines(run.metrics) if "loss" in line]


def reached(run: Run, step: int) -> bool:
    return any(line["step"] >= step for line in lines(run))


def weights(run: Run) -> dict[str, torch.Tensor]:
    return load_file(run.checkpoint(str(STEPS)).weights)


def same(left: dict[str, torch.Tensor], right: dict[str, torch.Tensor]) -> bool:
    return left.keys() == right.keys() and all(torch.equal(left[name], right[name]) for name in left)


@pytest.fixture(scope="module")
def whole(folder) -> Run:
    return finish(folder, "whole", start(folder, "whole"))


def test_a_run_is_whole_and_flat_in_memory(whole):
    found = lines(whole)
    assert [line["step"] for line in found] == list(range(3, STEPS + 1, 3))
    assert found[-1]["loss"] < 0.9 * found[0]["loss"]
    assert list(whole.validations()) == [25, 50, STEPS]
    assert found[-1]["peak_rss_mb"] < 1.1 * found[4]["peak_rss_mb"]
    assert not (whole.path / "ray").exists()


@pytest.fixture(scope="module")
def killed(folder) -> Path:
    """A run of 2 workers whose driver was killed after step 25; each test goes on with a copy."""
    command, run = start(folder, "killed"), Run(folder / "killed")
    wait_until(lambda: reached(run, 25), "training did not reach step 25")
    command.process.kill()
    command.process.wait()
    command.wait_until_none_lives()
    return run.path


@pytest.mark.long
def test_a_killed_and_then_an_interrupted_driver_go_on_by_the_same_command_with_fewer_workers(folder, whole, killed):
    command, run = go_on(folder, killed, 1)
    before = lines(run)[-1]["step"]
    wait_until(lambda: reached(run, before + 1), "training did not go on")
    command.process.send_signal(signal.SIGINT)
    assert command.process.wait(30) == 130
    assert "raysum: stopped" in Path(f"{run.path}.log").read_text()
    command.wait_until_none_lives()
    finish(folder, run.path.name, start(folder, run.path.name, "train.workers=0"))
    assert run.latest().state["workers"] == 1
    assert "resumes from step" in Path(f"{run.path}.log").read_text()
    found, expected = (without_times(read_lines(each.metrics)) for each in (run, whole))
    assert found == [{name: as_with_fewer_workers(value) for name, value in line.items()} for line in expected]


def test_after_a_killed_driver_and_then_a_killed_worker_the_weights_are_the_same(folder, whole, killed):
    command, run = go_on(folder, killed, 2)
    before = lines(run)[-1]["step"]
    wait_until(lambda: reached(run, before + 1), "training did not go on")
    command.living("RayTrainWorker")[-1].kill()
    finish(folder, run.path.name, command)
    assert run.latest().state["workers"] == 2
    assert same(weights(run), weights(whole))
    assert without_times(read_lines(run.metrics)) == without_times(read_lines(whole.metrics))


def as_with_fewer_workers(value: float) -> object:
    """Sums of gradients are rounded otherwise; counts and hashes are the same."""
    return value if isinstance(value, int) else pytest.approx(value, rel=1e-3)


def go_on(folder: Path, killed: Path, workers: int) -> tuple[Command, Run]:
    """The same command on a copy of the killed run."""
    name = f"resumed-{workers}"
    shutil.copytree(killed, folder / name)
    return start(folder, name, f"train.workers={workers}"), Run(folder / name)


@pytest.mark.long
@pytest.mark.timeout(3 * 3600)
@pytest.mark.parametrize(("workers", "victim"), [(0, "all"), (2, "all"), (2, "worker")])
def test_kills_at_random_moments_change_no_bit(folder, workers, victim):
    """RAYSUM_KILLS kills of the whole tree of processes (20), or of one worker (10), each after a random time."""
    kills = int(os.environ.get("RAYSUM_KILLS", 20 if victim == "all" else 10))
    name, option, began = f"hunted-{workers}-{victim}", f"train.workers={workers}", time.monotonic()
    whole = finish(folder, f"{name}-whole", start(folder, f"{name}-whole", option))
    expected, metrics = weights(whole), without_times(read_lines(whole.metrics))
    seconds, moments = time.monotonic() - began, random.Random(7)
    for _ in range(kills):
        command, run = start(folder, name, option), Run(folder / name)
        with contextlib.suppress(subprocess.TimeoutExpired):
            command.process.wait(moments.uniform(0, 1.2 * seconds))
        if command.process.poll() is None:
            if victim == "all":
                command.kill()
                continue
            for worker in command.living("RayTrainWorker")[-1:]:
                worker.kill()
        finish(folder, name, command)
        assert same(weights(run), expected) and without_times(read_lines(run.metrics)) == metrics
        shutil.rmtree(run.path)
    run = finish(folder, name, start(folder, name, option))
    assert same(weights(run), expected) and without_times(read_lines(run.metrics)) == metrics
    assert all(item.name.startswith("step-") for item in run.checkpoint_folder.iterdir())


@pytest.mark.long
def test_zero_stages_give_equal_losses(folder, whole, ray_session):
    from raysum.config.loading import load_config
    from raysum.train.fit import fit

    expected = [line["loss"] for line in lines(whole)][:2]
    for stage, workers in ((0, 0), (1, 0), (3, 2)):  # starting workers takes half a minute
        overrides = [f"data={folder / 'data'}", f"out={folder / f'stage-{stage}'}", "train.steps=6"]
        overrides.append(f"train.workers={workers}")
        run = fit(load_config(str(folder / "config.yaml"), [*overrides, f"deepspeed.zero_optimization.stage={stage}"]))
        assert [line["loss"] for line in lines(run)] == pytest.approx(expected, rel=1e-4), stage
