"""Figures of a training for Prometheus, as Ray's metrics endpoint exports them."""

import json
import re
import threading
import time
import urllib.request
from pathlib import Path

import pytest

import raysum
from helpers.project import ROOT
from helpers.small_datasets import write_dataset
from helpers.small_runs import TRAINING
from raysum.runtime.storage import read_lines

DASHBOARD = ROOT / "cluster" / "grafana" / "raysum.json"


def queries() -> list[str]:
    panels = json.loads(DASHBOARD.read_text())["panels"]
    return [target["expr"] for panel in panels for target in panel.get("targets", ())]


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
    settings = {**TRAINING, "train": {**TRAINING["train"], "workers": 1, "steps": 400, "minutes": 0.25}}
    settings["train"] |= {"validate_every": 20, "save_every": 20, "best_by": "rouge2", "validate_examples": 2}
    began = time.time()
    try:
        raysum.train("pht", data=str(tmp_path / "data"), out=str(tmp_path / "run"), **settings)
    finally:
        stop.set()
        scraping.join()
    samples = [line for page in pages for line in page.splitlines() if line.startswith("ray_raysum_")]
    values: dict[str, set[float]] = {}
    for line in samples:
        assert f'run="{tmp_path}/run"' in line and 'trial=""' in line
        values.setdefault(line.partition("{")[0], set()).add(float(line.rpartition(" ")[2]))
    wanted = {name for query in queries() for name in re.findall(r"ray_raysum_\w+", query)}
    assert wanted - {"ray_raysum_trial_metric"} == values.keys()
    logged = [line["loss"] for line in read_lines(tmp_path / "run" / "metrics.jsonl") if "loss" in line]
    assert all(min(abs(loss - value) for loss in logged) < 1e-4 for value in values["ray_raysum_training_loss"])
    assert all(began < value < time.time() for value in values["ray_raysum_checkpoint_time_seconds"])


def test_the_dashboard_shows_what_ray_itself_exports():
    """Ray's own dashboards are made from these files."""
    import ray.dashboard.modules.metrics.dashboards as dashboards

    known = "".join(file.read_text() for file in Path(dashboards.__path__[0]).glob("*_panels.py"))
    names = {name for query in queries() for name in re.findall(r"ray_(?:data|serve|node)_\w+", query)}
    assert len(names) > 8 and not [name for name in sorted(names) if name not in known]
