"""Trainings with a range of workers on clusters of several raylets, which lose nodes and get new ones."""

import contextlib
import json
import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from helpers.processes import Command
from helpers.project import ROOT
from helpers.small_datasets import write_dataset
from helpers.small_runs import TRAINING
from raysum.config.loading import load_config
from raysum.errors import UserError
from raysum.runs.folder import Event, Run
from raysum.runtime.storage import read_lines

STEPS = 120


@pytest.mark.parametrize(
    ("workers", "message"),
    [
        ("8..2", r"a range of workers is SMALLEST..LARGEST"),
        ("0..4", r"a range of workers is SMALLEST..LARGEST"),
        ("2..", r"must be a number of workers from 0 to 100000, or a range such as 2..8"),
        ("5..7", r"5 to 7 workers do not divide micro_batches 8; use one of 1, 2, 4, 8 workers"),
    ],
)
def test_a_wrong_range_is_one_message(workers, message):
    with pytest.raises(UserError, match=message):
        load_config("pht", [f"train.workers={workers}"])


def test_a_range_has_the_counts_that_divide_a_step():
    config = load_config("pht", ["train.workers=2..8"])
    assert config.train.workers.counts(8) == [8, 4, 2] and config.train.workers.counts(6) == [6, 3, 2]
    assert config.model_dump(mode="json")["train"]["workers"] == "2..8"


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    """A dataset, the config of trainings on it, and the run of one process without interruption."""
    folder = tmp_path_factory.mktemp("elastic")
    write_dataset(folder / "data", {"train": 300})
    train = TRAINING["train"] | {"steps": STEPS, "save_every": 20, "keep": 2, "validate_every": 10**6}
    config = TRAINING | {"train": train, "deepspeed": {"zero_optimization": {"stage": 2}}}
    config["optim"] = TRAINING["optim"] | {"lr": 0.001}  # Adam multiplies rounding errors by its rate in each step
    (folder / "config.yaml").write_text(json.dumps(config))
    assert train_command(folder, "whole", "train.workers=0").process.wait(300) == 0
    return folder


def train_command(folder: Path, out: str, *overrides: str) -> Command:
    arguments = [str(folder / "config.yaml"), f"data={folder / 'data'}", f"out={folder / out}", *overrides]
    with (folder / f"{out}.log").open("w") as log:
        environment = os.environ | {"RAY_AUTH_MODE": "disabled"}
        return Command("train", *arguments, stdout=subprocess.DEVNULL, stderr=log, env=environment)


def own_address() -> str:
    """The address of this machine, by which a node does not use that of an earlier session of this process."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as route, contextlib.suppress(OSError):
        route.connect(("192.0.2.1", 53))  # sends nothing
        return route.getsockname()[0]
    return "127.0.0.1"


NODE = {"node_ip_address": own_address(), "object_store_memory": 150 << 20}


@pytest.fixture
def cluster(monkeypatch) -> Iterator:
    """A cluster whose head holds one worker and the readers."""
    from ray.cluster_utils import Cluster

    monkeypatch.setenv("RAY_AUTH_MODE", "disabled")
    cluster = Cluster(initialize_head=True, head_node_args=NODE | {"num_cpus": 1})
    yield cluster
    cluster.shutdown()


def losses(run: Run) -> dict[int, float]:
    return {line["step"]: line["loss"] for line in read_lines(run.metrics)}


def starts(run: Run) -> list[Event]:
    return [event for event in run.events() if event.event == "start"]


def check_losses(run: Run, whole: Run) -> None:
    assert losses(run) == pytest.approx(losses(whole), rel=1e-5)


@pytest.mark.long
@pytest.mark.slow
def test_a_training_continues_without_a_lost_node_and_uses_a_new_one(folder, cluster):
    _, lost = (cluster.add_node(num_cpus=2, **NODE) for _ in range(2))
    run = Run(folder / "run")
    command = train_command(folder, "run", f"train.address={cluster.address}", "train.workers=2..4")
    command.wait_until(run.checkpoints)
    cluster.remove_node(lost, allow_graceful=False)
    command.wait_until(lambda: len(starts(run)) == 2)
    cluster.add_node(num_cpus=2, **NODE)
    assert command.process.wait(400) == 0, (folder / "run.log").read_text()
    assert [len(event.hosts) for event in starts(run)] == [4, 2, 4]
    check_losses(run, Run(folder / "whole"))


@pytest.mark.long
@pytest.mark.slow
def test_a_training_saves_before_a_node_drains_and_continues_on_the_others(folder, cluster):
    cluster.add_node(num_cpus=2, **NODE)
    leaving = cluster.add_node(num_cpus=2, **NODE)
    run = Run(folder / "drained")
    command = train_command(folder, "drained", f"train.address={cluster.address}", "train.workers=2..4")
    command.wait_until(run.checkpoints)
    drain = f"drain-node --address={cluster.address} --node-id={leaving.node_id} --deadline-remaining-seconds=60"
    drain += " --reason=DRAIN_NODE_REASON_PREEMPTION --reason-message=spot"
    subprocess.run([sys.executable, "-m", "ray.scripts.scripts", *drain.split()], check=True)
    assert command.process.wait(400) == 0, (folder / "drained.log").read_text()
    assert [len(event.hosts) for event in starts(run)] == [4, 2]
    names = [event.event for event in run.events()]
    second = names.index("start", 1)
    assert "failure" not in names and run.events()[second].step == run.events()[second - 1].step
    check_losses(run, Run(folder / "whole"))


@pytest.mark.long
@pytest.mark.slow
def test_a_spot_node_drains_at_sigterm_and_the_training_saves_before_it_continues(folder, monkeypatch, tmp_path):
    from ray._private.services import node_ip_address_from_perspective
    from ray.cluster_utils import Cluster

    monkeypatch.setenv("RAY_AUTH_MODE", "disabled")
    own = node_ip_address_from_perspective(None)  # `ray start` does not join a head on 127.0.0.1
    cluster = Cluster(initialize_head=True, head_node_args=NODE | {"node_ip_address": own, "num_cpus": 1})
    cluster.add_node(num_cpus=2, **NODE | {"node_ip_address": own})
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    options = [f"--address={cluster.address}", "--num-cpus=2", f"--object-store-memory={150 << 20}"]
    with (tmp_path / "node.log").open("w") as log:
        settings = os.environ | {"PATH": path, "PYTHONPATH": str(ROOT), "RAY_AUTH_MODE": "disabled"}
        script = ["bash", str(ROOT / "cluster" / "spot-node.sh"), *options]
        node = subprocess.Popen(script, env=settings | {"SPOT_SECONDS": "120"}, stdout=log, stderr=log)
    try:
        run = Run(folder / "spot")
        end = time.monotonic() + 120
        while "Ray runtime started" not in (said := (tmp_path / "node.log").read_text()):
            assert node.poll() is None and time.monotonic() < end, said
            time.sleep(0.1)
        command = train_command(folder, "spot", f"train.address={cluster.address}", "train.workers=2..4")
        command.wait_until(run.checkpoints)
        node.terminate()
        assert node.wait(180) == 0 and "draining node" in (tmp_path / "node.log").read_text()
        assert command.process.wait(400) == 0, (folder / "spot.log").read_text()
    finally:
        node.kill()
        cluster.shutdown()
    assert [len(event.hosts) for event in starts(run)] == [4, 2]
    names = [event.event for event in run.events()]
    second = names.index("start", 1)
    assert "failure" not in names and run.events()[second].step == run.events()[second - 1].step
    check_losses(run, Run(folder / "whole"))
