"""Messages as JSON lines with the run, for log collectors."""

import json
import os
import subprocess
import sys
from datetime import datetime

import pytest

from helpers.small_datasets import write_dataset
from helpers.small_runs import TRAINING
from raysum.runtime import progress


def test_messages_are_json_lines_tagged_with_the_innermost_run(monkeypatch, capsys):
    progress.say("plain")
    assert capsys.readouterr().err == "plain\n"
    monkeypatch.setenv("RAYSUM_LOG_FORMAT", "json")
    progress.say("before")
    with progress.logged_run("searches/s"):
        with progress.logged_run("searches/s/trials/t1"):
            progress.say("\n[1/2] prepare")
        progress.say("warning: slow")
        assert list(progress.bar([1, 2], label="none")) == [1, 2]
    lines = [json.loads(line) for line in capsys.readouterr().err.splitlines()]
    assert [line["run"] for line in lines] == [None, "searches/s/trials/t1", "searches/s"]
    assert [(line["level"], line["message"]) for line in lines[1:]] == [
        ("info", "[1/2] prepare"),
        ("warning", "warning: slow"),
    ]
    assert all(datetime.fromisoformat(line["time"]).tzinfo for line in lines)


@pytest.mark.slow
def test_a_training_logs_its_metrics_and_a_mistake_as_json(tmp_path):
    data, run = write_dataset(tmp_path / "data", {"train": 40, "valid": 6}), tmp_path / "run"
    settings = [f"{room}.{key}={value}" for room in ("model", "train") for key, value in TRAINING[room].items()]
    command = [sys.executable, "-m", "raysum", "train", "pht", f"data={data}", f"out={run}", *settings]
    command += ["train.workers=0", "train.steps=4", "train.log_every=2"]
    environment = os.environ | {"RAYSUM_LOG_FORMAT": "json"}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300)
    lines = [json.loads(line) for line in done.stderr.splitlines()]
    assert done.returncode == 0 and {line["run"] for line in lines} == {str(run)}, done.stderr
    assert [line["metrics"]["step"] for line in lines if "loss" in line.get("metrics", {})] == [2, 4]
    wrong = subprocess.run([*command, "train.stepz=1"], env=environment, capture_output=True, text=True, timeout=300)
    (line,) = map(json.loads, wrong.stderr.splitlines())
    assert wrong.returncode == 2 and line["level"] == "error" and "stepz" in line["message"]
