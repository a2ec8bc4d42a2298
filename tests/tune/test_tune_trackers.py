"""Searches in experiment trackers: one run for each trial in a real MLflow database and as offline files of W&B."""

import importlib
import importlib.util
import sqlite3

import pytest

from helpers.factbook_data import write_factbook
from raysum.runtime.storage import read_json
from raysum.tune.search import tune

HAS_BOTH = importlib.util.find_spec("mlflow") and importlib.util.find_spec("wandb")
SPACE = """
about: rates
kind: train
preset: pht
metric: valid_loss
search: {optim.lr: {grid: [0.01, 0.02]}}
config:
  {model.width: 16, model.ffn: 32, model.heads: 2, model.pooling_heads: 2, model.encoder: L, model.decoder: P,
  optim.schedule: constant, optim.warmup_steps: 0, train.batch_tokens: 600,
  train.steps: 4, train.validate_every: 2, train.save_every: 2, train.workers: 0}
"""


@pytest.mark.slow
@pytest.mark.skipif(not HAS_BOTH, reason="needs the extras mlflow and wandb")
def test_trials_are_logged_with_their_settings_and_reports(tmp_path, ray_session, monkeypatch):
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{tmp_path}/mlflow.db")
    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setenv("WANDB_DIR", str(tmp_path))
    data = write_factbook(tmp_path / "data", {"train": 40, "valid": 8})
    (tmp_path / "rates.yaml").write_text(SPACE)
    trackers = "train.trackers=[mlflow,wandb]"
    importlib.import_module("wandb").teardown()  # it reads the environment once in a process
    result = tune(str(tmp_path / "rates.yaml"), f"data={data.path}", f"out={tmp_path / 'search'}", trackers)
    importlib.import_module("wandb").teardown()  # as at the end of a process: it writes the files
    names = sorted(trial.name for trial in result.trials)
    with sqlite3.connect(tmp_path / "mlflow.db") as database:
        runs = database.execute("select name, status, run_uuid from runs order by name").fetchall()
        assert [run[:2] for run in runs] == [(name, "FINISHED") for name in names]  # none for the trainings themselves
        for name, _, run in runs:
            (trial,) = (trial for trial in result.trials if trial.name == name)
            params = dict(database.execute("select key, value from params where run_uuid = ?", [run]))
            assert params["optim.lr"] == str(trial.config["optim.lr"]) and params["model.width"] == "16"
            query = "select value from metrics where key = 'valid_loss' and step = 4 and run_uuid = ?"
            values = [value for (value,) in database.execute(query, [run])]
            assert values and set(values) == {trial.metrics["valid_loss"]}
        groups = database.execute("select distinct value from tags where key = 'raysum.search'").fetchall()
        assert groups == [("search",)]
    ids = read_json(tmp_path / "search" / "trackers.json")
    assert sorted(ids) == names
    for name in names:
        (file,) = (tmp_path / "wandb").glob(f"offline-run-*/run-{ids[name]['wandb']}.wandb")
        assert all(text in file.read_bytes() for text in (b"valid_loss", b"optim.lr", name.encode()))
