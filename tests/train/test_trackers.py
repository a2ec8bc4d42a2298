"""Experiment trackers: a training in a real MLflow database and as offline files of W&B; failures and secrets."""

import importlib.util
import sqlite3
import sys

import pytest

from helpers.factbook_data import write_factbook
from helpers.small_trainings import trained
from raysum.errors import UserError
from raysum.runs.trackers import check_trackers
from raysum.runtime.storage import read_json, read_lines
from raysum.train.fit import train

TINY = {"encoder": "L", "decoder": "P", "width": 16, "ffn": 32, "heads": 2, "pooling_heads": 2}
SECRET = "s3cr3t-0123456789abcdef"
needs_mlflow = pytest.mark.skipif(not importlib.util.find_spec("mlflow"), reason="needs the extra mlflow")
needs_wandb = pytest.mark.skipif(not importlib.util.find_spec("wandb"), reason="needs the extra wandb")


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    return write_factbook(tmp_path_factory.mktemp("data") / "data", {"train": 12, "valid": 4})


@pytest.fixture
def stores(tmp_path, monkeypatch):
    """An MLflow database and a folder of offline W&B files, beside secrets in the environment."""
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{tmp_path}/mlflow.db")
    monkeypatch.setenv("MLFLOW_TRACKING_TOKEN", SECRET)
    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setenv("WANDB_DIR", str(tmp_path))
    monkeypatch.setenv("WANDB_API_KEY", SECRET)
    return tmp_path


def steps(trackers: list[str], count: int) -> dict:
    return {"train": {"trackers": trackers, "steps": count, "validate_every": 2, "save_every": 2}}


def rows(folder, query: str) -> list:
    with sqlite3.connect(folder / "mlflow.db") as database:
        return database.execute(query).fetchall()


@needs_mlflow
def test_mlflow_gets_settings_and_metrics_and_a_resumed_training_continues_its_run(stores, data):
    run = trained(data.path, stores / "run", 2, TINY, **steps(["mlflow"], 2))
    run = trained(data.path, stores / "run", 4, TINY, **steps(["mlflow"], 4))
    assert rows(stores, "select name, status from runs") == [("run", "FINISHED")]
    params = dict(rows(stores, "select key, value from params"))
    assert (params["model.width"], params["optim.lr"], params["train.trackers"]) == ("16", "0.01", '["mlflow"]')
    found = rows(stores, "select key, step, value from metrics")
    lines = [line for line in read_lines(run.metrics)]
    expected = [
        (key, line["step"], value) for line in lines for key, value in line.items() if key not in ("step", "batch_hash")
    ]
    assert sorted(found) == sorted((key, step, pytest.approx(value)) for key, step, value in expected)
    assert {step for key, step, _ in found if key == "valid_loss"} == {2, 4}
    assert SECRET not in str(rows(stores, "select * from params")) + str(rows(stores, "select * from tags"))


@needs_wandb
def test_wandb_gets_settings_and_metrics_and_no_secrets(stores, data, capsys, monkeypatch):
    import wandb

    monkeypatch.setattr(sys, "argv", ["program-of-the-user", "--word=of-the-user"])
    run = trained(data.path, stores / "run", 2, TINY, **steps(["wandb"], 2))
    wandb.teardown()  # as at the end of a process: it writes the files
    error = capsys.readouterr().err
    assert "gets no more metrics" not in error and "within" not in error, error
    ids = read_json(run.path / "trackers.json")["run"]
    (folder,) = (stores / "wandb").glob(f"offline-run-*-{ids['wandb']}")
    content = (folder / f"run-{ids['wandb']}.wandb").read_bytes()
    for text in ("valid_loss", "tokens_per_s", "grad_norm", "model.width", "optim.lr"):
        assert text.encode() in content
    files = [file.read_bytes() for file in (stores / "wandb").rglob("*") if file.is_file()]
    assert not any(SECRET.encode() in file or b"of-the-user" in file for file in files)  # nor the command line
    assert f"is kept in {folder}; `wandb sync` uploads it" in error and SECRET not in error


@needs_mlflow
def test_a_server_that_does_not_answer_is_reported_once_without_secrets(tmp_path, data, monkeypatch, capsys):
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"http://user:{SECRET}@127.0.0.1:9")
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "0")
    run = trained(data.path, tmp_path / "run", 2, TINY, **steps(["mlflow"], 2))
    error = capsys.readouterr().err
    assert run.latest().step == 2 and error.count("mlflow gets no more metrics (") == 1 and SECRET not in error


def test_a_missing_package_is_one_message_with_the_command(tmp_path, data, monkeypatch):
    for name in ("mlflow", "wandb"):
        monkeypatch.setitem(sys.modules, name, None)  # as if it was not installed
        with pytest.raises(UserError, match=rf'train.trackers={name} needs {name}.*: pip install .*"\.\[{name}\]"'):
            train("pht", f"data={data.path}", f"out={tmp_path / 'run'}", f"train.trackers=[{name}]", "train.workers=0")
    with pytest.raises(UserError, match="train.trackers.*'mlflow' or 'wandb'"):
        train("pht", f"data={data.path}", f"out={tmp_path / 'run'}", "train.trackers=[neptune]")


@needs_wandb
def test_wandb_without_a_key_is_one_message_before_the_first_step(tmp_path, monkeypatch):
    for name in ("WANDB_API_KEY", "WANDB_MODE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))  # without .netrc
    monkeypatch.setenv("NETRC", str(tmp_path / "none"))
    import wandb

    wandb.teardown()  # it reads the environment once
    with pytest.raises(UserError, match="WANDB_MODE=offline"):
        check_trackers(["wandb"])
