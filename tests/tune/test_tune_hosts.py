"""Searches on clusters of several raylets that lose a node."""

import json
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from helpers.factbook_data import write_factbook, write_run
from helpers.processes import Command
from raysum.runs.folder import Run
from raysum.runtime.storage import read_lines
from raysum.tune.record import RECORD, SearchRecord, read_search

STEPS = 240
TRAINING = {
    "about": "learning rates, of which the last one fails",
    "kind": "train",
    "preset": "pht",
    "metric": "valid_loss",
    "searcher": "grid",
    "scheduler": "fifo",
    "retries": 1,
    "max_concurrent": 2,
    "search": {"optim.lr": {"grid": [0.001, 0.002, 10000.0]}},
    "config": {
        **{"model.width": 16, "model.ffn": 32, "model.heads": 2, "model.pooling_heads": 2},
        **{"model.encoder": "L", "model.decoder": "P", "optim.schedule": "constant", "optim.warmup_steps": 0},
        **{"optim.weight_decay": 0.01},
        **{"train.steps": STEPS, "train.save_every": 20, "train.validate_every": 20, "train.log_every": 20},
        **{"train.batch_tokens": 600, "train.threads": 1},
    },
}
DECODING = {
    "about": "lengths",
    "kind": "decode",
    "examples": 200,
    "max_concurrent": 4,
    "search": {"decode.length_penalty": {"grid": [0.5, 0.7, 0.9, 1.1]}},
}
MEMORY = 100 << 20


@pytest.fixture
def cluster(monkeypatch) -> Iterator:
    """A cluster whose head has no CPUs, as in cluster/: all work is on two other nodes."""
    from ray.cluster_utils import Cluster

    monkeypatch.setenv("RAY_AUTH_MODE", "disabled")
    head = {"num_cpus": 0, "object_store_memory": MEMORY, "include_dashboard": False}
    cluster = Cluster(initialize_head=True, head_node_args=head)
    yield cluster
    cluster.shutdown()


def start(folder: Path, space: dict, out: str, cluster, *overrides: str) -> Command:
    (folder / "space.yaml").write_text(yaml.safe_dump(space))
    arguments = ["space.yaml", f"data={folder / 'data'}", f"out={folder / out}", f"train.address={cluster.address}"]
    with (folder / f"{out}.log").open("w") as log:
        environment = os.environ | {"RAY_AUTH_MODE": "disabled"}
        return Command(
            "tune", *arguments, *overrides, cwd=folder, stdout=subprocess.DEVNULL, stderr=log, env=environment
        )


def search_of(folder: Path) -> SearchRecord:
    return read_search(folder, running=False)


def begun(folder: Path) -> list[str]:
    """The trials in the order of their starts by Ray Tune."""
    return [line["trial"] for line in read_lines(folder / RECORD) if "config" in line and "metrics" not in line]


@pytest.mark.long
@pytest.mark.slow
@pytest.mark.timeout(900)
def test_trainings_survive_a_lost_node_and_count_only_failures_of_their_own(tmp_path, cluster):
    write_factbook(tmp_path / "data", {"train": 200, "valid": 8})
    kept, lost = (cluster.add_node(num_cpus=2, object_store_memory=MEMORY) for _ in range(2))
    assert start(tmp_path, TRAINING, "whole", cluster).process.wait(400) == 0, (tmp_path / "whole.log").read_text()
    command = start(tmp_path, TRAINING, "search", cluster)
    runs = [Run(tmp_path / "search" / "trials" / name) for name in ("lr=0.001", "lr=0.002")]
    command.wait_until(lambda: all(run.checkpoints() for run in runs))
    cluster.remove_node(lost, allow_graceful=False)
    assert command.process.wait(400) == 0, (tmp_path / "search.log").read_text()
    starts = [len([event for event in run.events() if event.event == "start"]) for run in runs]
    assert sorted(starts) == [1, 2], "one training per node"
    for run in runs:
        whole = Run(tmp_path / "whole" / "trials" / run.path.name)
        assert run.latest().step == STEPS and run.validations() == pytest.approx(whole.validations(), rel=1e-5)
    trials = {trial.name: trial for trial in search_of(tmp_path / "search").trials}
    assert [trial.error for trial in trials.values()].count(None) == 2 and "loss" in trials["lr=1e+04"].error
    assert sorted(begun(tmp_path / "search")) == ["lr=0.001", "lr=0.002", "lr=1e+04", "lr=1e+04"]  # one retry
    assert search_of(tmp_path / "whole").trials[0].name == search_of(tmp_path / "search").trials[0].name


@pytest.mark.long
@pytest.mark.slow
@pytest.mark.timeout(900)
def test_decodings_survive_a_lost_node(tmp_path, cluster):
    run = write_run(tmp_path / "pht", write_factbook(tmp_path / "data", {"train": 8, "valid": 200}))
    _, lost = (cluster.add_node(num_cpus=2, object_store_memory=MEMORY) for _ in range(2))
    use = f"run={run.path}"
    assert start(tmp_path, DECODING, "whole", cluster, use).process.wait(400) == 0, (tmp_path / "whole.log").read_text()
    command = start(tmp_path, DECODING, "search", cluster, use)
    record = tmp_path / "search" / RECORD
    command.wait_until(lambda: record.exists() and "metrics" in record.read_text())
    cluster.remove_node(lost, allow_graceful=False)
    assert command.process.wait(400) == 0, (tmp_path / "search.log").read_text()
    logs = Path(cluster.head_node.get_logs_dir_path()).glob("worker-*.err")  # trials run on the head
    assert any("the trial starts again" in log.read_text() for log in logs)
    results = [{trial.name: trial.metrics for trial in search_of(tmp_path / out).trials} for out in ("search", "whole")]
    assert len(results[0]) == 4 and results[0] == results[1], json.dumps(results)
