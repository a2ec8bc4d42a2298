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

from helpers.processes import Command
from helpers.small_datasets import write_dataset
from helpers.small_runs import TRAINING, without_times
from helpers.small_trainings import losses, same, weights
from raysum.runs.folder import Run
from raysum.runtime.storage import read_lines

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

STEPS = 60
CONFIG = TRAINING | {"deepspeed": {"zero_optimization": {"stage": 2}}}
CONFIG["train"] = TRAINING["train"] | {"steps": STEPS, "workers": 2, "log_every": 3, "validate_every": 25}


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


def lines(run: Run) -> list[dict]:
    return [line for line in read_lines(run.metrics) if "loss" in line]


def reached(run: Run, step: int) -> bool:
    return any(line["step"] >= step for line in lines(run))


def check_same(run: Run, whole: Run) -> None:
    assert same(weights(run, str(STEPS)), weights(whole, str(STEPS)))
    assert without_times(read_lines(run.metrics)) == without_times(read_lines(whole.metrics))


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
    command.wait_until(lambda: reached(run, 25))
    command.process.kill()
    command.process.wait()
    command.wait_until_none_lives()
    return run.path


def go_on(folder: Path, killed: Path, workers: int) -> tuple[Command, Run]:
    """The same command on a copy of the killed run, after its first new line."""
    run = Run(shutil.copytree(killed, folder / f"resumed-{workers}"))
    before, command = lines(run)[-1]["step"], start(folder, run.path.name, f"train.workers={workers}")
    command.wait_until(lambda: reached(run, before + 1))
    return command, run


@pytest.mark.long
def test_a_killed_and_then_an_interrupted_driver_go_on_by_the_same_command_with_fewer_workers(folder, whole, killed):
    command, run = go_on(folder, killed, 1)
    command.process.send_signal(signal.SIGINT)
    assert command.process.wait(30) == 130
    log = Path(f"{run.path}.log")
    assert "raysum: stopped" in log.read_text()
    command.wait_until_none_lives()
    finish(folder, run.path.name, start(folder, run.path.name, "train.workers=0"))
    assert run.latest().state["workers"] == 1 and "resumes from step" in log.read_text()
    found, expected = (without_times(read_lines(each.metrics)) for each in (run, whole))
    assert found == [{name: as_with_fewer_workers(value) for name, value in line.items()} for line in expected]


def as_with_fewer_workers(value: float) -> object:
    """Sums of gradients are rounded otherwise; counts and hashes are the same."""
    return value if isinstance(value, int) else pytest.approx(value, rel=1e-3)


def test_after_a_killed_driver_and_then_a_killed_worker_the_weights_are_the_same(folder, whole, killed):
    command, run = go_on(folder, killed, 2)
    command.living("RayTrainWorker")[-1].kill()
    finish(folder, run.path.name, command)
    assert run.latest().state["workers"] == 2
    check_same(run, whole)


@pytest.mark.long
@pytest.mark.timeout(3 * 3600)
@pytest.mark.parametrize(("workers", "victim"), [(0, "all"), (2, "all"), (2, "worker")])
def test_kills_at_random_moments_change_no_bit(folder, workers, victim):
    """RAYSUM_KILLS kills of the whole tree of processes (20), or of one worker (10), each after a random time."""
    kills = int(os.environ.get("RAYSUM_KILLS", 20 if victim == "all" else 10))
    name, option, began = f"hunted-{workers}-{victim}", f"train.workers={workers}", time.monotonic()
    whole = finish(folder, f"{name}-whole", start(folder, f"{name}-whole", option))
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
        check_same(run, whole)
        shutil.rmtree(run.path)
    run = finish(folder, name, start(folder, name, option))
    check_same(run, whole)
    assert all(item.name.startswith("step-") for item in run.checkpoint_folder.iterdir())


@pytest.mark.long
def test_zero_stages_give_equal_losses(folder, whole, ray_session):
    from raysum.config.loading import load_config
    from raysum.train.fit import fit

    for stage, workers in ((0, 0), (1, 0), (3, 2)):  # starting workers takes half a minute
        values = {"data": str(folder / "data"), "out": str(folder / f"stage-{stage}")}
        values |= {"train": {"steps": 6, "workers": workers}, "deepspeed": {"zero_optimization": {"stage": stage}}}
        run = fit(load_config(str(folder / "config.yaml"), values=values))
        assert losses(run) == pytest.approx(losses(whole)[:2], rel=1e-4), stage
