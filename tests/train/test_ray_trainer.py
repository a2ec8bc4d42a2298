"""Trainings under Ray: what they ask of a cluster, and the figures that Ray's metrics endpoint exports of them."""

import json
import re
import subprocess
import sys
import threading
import time
import urllib.request
from pathlib import Path

import psutil
import pytest

import raysum
from helpers.project import ROOT
from helpers.small_datasets import write_dataset
from helpers.small_runs import TRAINING
from helpers.small_trainings import trained
from raysum.config.loading import load_config
from raysum.errors import UserError
from raysum.runtime import forkserver
from raysum.runtime.placement import Capacity, Share, reserve
from raysum.runtime.storage import read_lines
from raysum.train.group import interface_of

DASHBOARD = ROOT / "cluster" / "grafana" / "raysum.json"


@pytest.mark.parametrize(
    ("cpus", "gpus", "workers", "expected"), [(16, 0, 4, 4), (16, 8, 4, 2), (16, 2, 4, 4), (3, 0, 4, 0)]
)
def test_trainings_side_by_side_take_gpus_or_else_cpus(cpus, gpus, workers, expected):
    assert Capacity(cpus, gpus).trainings(workers) == expected


def test_an_address_has_its_interface():
    named = {one.address: name for name, own in psutil.net_if_addrs().items() for one in own}
    assert interface_of("127.0.0.1") == named["127.0.0.1"]
    assert interface_of("192.0.2.1") is None  # of no machine (RFC 5737)


def test_processes_are_not_copied_beside_gpus_of_any_maker(tmp_path, monkeypatch):
    (tmp_path / "kfd").touch()
    monkeypatch.setattr(forkserver, "_GPUS", (str(tmp_path / "kfd"),))
    monkeypatch.setattr(forkserver, "_server", None)
    forkserver.start("train")
    assert forkserver._server is None


@pytest.mark.parametrize(
    ("each", "expected"), [((None, 0.5), 16), ((None, 0), 16), ((8, 0.5), 2), ((4, None), 4), ((8, 0), 2)]
)
def test_trainings_side_by_side_take_what_their_workers_reserve(each, expected):
    assert Capacity(16, 8).trainings(1, *each) == expected


def test_two_workers_never_share_a_gpu():
    assert load_config("pht", [], {"train": {"workers": 1, "gpus_per_worker": 0.25}}).train.gpus_per_worker == 0.25
    with pytest.raises(UserError, match=r"gpus_per_worker 0.5 is for one worker, as 2 workers .*: use 0 or 1"):
        load_config("pht", [], {"train": {"workers": 2, "gpus_per_worker": 0.5}})


@pytest.mark.slow
def test_workers_that_no_node_holds_are_refused_and_others_waited_for(ray_session, tmp_path, capsys):
    with pytest.raises(UserError, match=r"3 workers with 2 CPUs each do not fit .* hold 2: .*train.workers=2"):
        reserve([3], 2, None, 0)
    with pytest.raises(UserError, match="1 workers with 0.5 CPUs and 1 GPUs each do not fit"):
        reserve([1], 0.5, 1, 0)
    with pytest.raises(UserError, match=r"2 workers with 2 CPUs each do not fit .* readers .*, which need 0.5 CPU"):
        reserve([2], 2, None, 0)
    with pytest.raises(UserError, match=r"do not fit on the 1 nodes of the cluster after train.wait_minutes=0.01, "):
        reserve([3], 2, None, 0.01)
    assert "Waiting 0.01 minutes for nodes: 3 workers" in capsys.readouterr().err
    assert reserve([1], 2, 0, 5).each == Share(2, 0)
    data, model = write_dataset(tmp_path / "data", {"train": 40}), TRAINING["model"] | {"decoder": "F"}
    train = {"workers": 2, "placement": "pack", "cpus_per_worker": 1.5, "gpus_per_worker": 0}
    assert trained(data, tmp_path / "run", 1, model, train=train).latest().step == 1
    assert "Waiting" not in capsys.readouterr().err


JOINED = """
import sys, threading
import ray
from ray.cluster_utils import Cluster
from raysum.runtime.placement import reserve

cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 0, "object_store_memory": 80 << 20})
ray.init(cluster.address, logging_level="error")
waiting = threading.Thread(target=lambda: print(reserve([3], None, None, 4).each))
waiting.start()
waiting.join(3)
assert waiting.is_alive()
cluster.add_node(num_cpus=4, object_store_memory=80 << 20)
waiting.join()
ray.shutdown()
cluster.shutdown()
"""


@pytest.mark.slow
def test_a_training_waits_for_a_node_that_joins_later():
    done = subprocess.run([sys.executable, "-c", JOINED], capture_output=True, text=True, timeout=400)
    assert done.stdout.splitlines()[-1:] == ["Share(cpus=1.0, gpus=0.0)"], done.stderr
    assert "Waiting 4 minutes for nodes: 3 workers with 1 CPUs each, and the nodes of the cluster hold 0" in done.stderr


def queries() -> str:
    panels = json.loads(DASHBOARD.read_text())["panels"]
    return " ".join(target["expr"] for panel in panels for target in panel.get("targets", ()))


def exported() -> str:
    import ray

    (node,) = [node for node in ray.nodes() if node["Alive"]]
    return urllib.request.urlopen(f"http://127.0.0.1:{node['MetricsExportPort']}/metrics").read().decode()


@pytest.mark.slow
def test_a_training_exports_what_the_dashboard_shows(tmp_path, ray_session):
    write_dataset(tmp_path / "data", {"train": 60, "valid": 8})
    stop, pages = threading.Event(), list[str]()

    def scrape() -> None:
        while not stop.wait(1):
            pages.append(exported())

    scraping = threading.Thread(target=scrape)
    scraping.start()
    train = TRAINING["train"] | {"workers": 1, "steps": 400, "minutes": 0.25, "validate_every": 20, "save_every": 20}
    train |= {"best_by": "rouge2", "validate_examples": 2}
    began = time.time()
    try:
        raysum.train("pht", data=str(tmp_path / "data"), out=str(tmp_path / "run"), **TRAINING | {"train": train})
    finally:
        stop.set()
        scraping.join()
    values: dict[str, set[float]] = {}
    for line in "\n".join(pages).splitlines():
        if line.startswith("ray_raysum_") and f'run="{tmp_path}/run",trial=""' in line:
            values.setdefault(line.partition("{")[0], set()).add(float(line.rpartition(" ")[2]))
    assert {*re.findall(r"ray_raysum_\w+", queries())} - {"ray_raysum_trial_metric"} == values.keys()
    logged = [line["loss"] for line in read_lines(tmp_path / "run" / "metrics.jsonl") if "loss" in line]
    assert all(min(abs(loss - value) for loss in logged) < 1e-4 for value in values["ray_raysum_training_loss"])
    assert all(began < value < time.time() for value in values["ray_raysum_checkpoint_time_seconds"])


def test_the_dashboard_shows_what_ray_itself_exports():
    """Ray's own dashboards are made from these files."""
    import ray.dashboard.modules.metrics.dashboards as dashboards

    known = "".join(file.read_text() for file in Path(dashboards.__path__[0]).glob("*_panels.py"))
    names = {*re.findall(r"ray_(?:data|serve|node)_\w+", queries())}
    assert len(names) > 8 and not [name for name in sorted(names) if name not in known]
