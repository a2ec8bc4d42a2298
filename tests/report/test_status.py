"""`raysum status`: what a run and a search are doing, and what went wrong last."""

import json
import shutil
import socket
import time
from pathlib import Path

import pytest

import raysum
from helpers.searches import began, over, reported, write_search
from helpers.small_datasets import write_dataset
from helpers.small_runs import TRAINING
from raysum.cli.app import main
from raysum.errors import UserError
from raysum.report.status import Status
from raysum.runs.folder import Run
from raysum.runtime.lock import LOCK, folder_lock
from raysum.runtime.storage import append_line

HERE = socket.gethostname()


def train(folder: Path, **optim) -> Path:
    settings = {**TRAINING, "optim": {**TRAINING["optim"], **optim}}
    settings["train"] = {**TRAINING["train"], "workers": 0, "steps": 12, "validate_every": 6}
    raysum.train("pht", data=str(folder / "data"), out=str(folder / "run"), **settings)
    return folder / "run"


@pytest.fixture(scope="module")
def trained(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("status")
    write_dataset(folder / "data", {"train": 40, "valid": 8})
    return train(folder)


@pytest.fixture
def run(trained, tmp_path) -> Path:
    return Path(shutil.copytree(trained, tmp_path / "run"))


def test_a_finished_training_and_one_that_goes_on(run):
    found = raysum.status(run)
    assert (found.state, found.step, found.steps, found.checkpoint, found.failure) == ("finished", 12, 12, 12, None)
    assert found.hosts == [HERE] and found.speed > 0 and found.tokens_per_s > 0 and found.seconds_left is None
    assert 0 <= found.checkpoint_age < 600
    longer = Run(run).config.train.model_copy(update={"steps": 36})
    Run(run).create(Run(run).config.model_copy(update={"train": longer}), Run(run).recipe, None)
    assert raysum.status(run).state == "interrupted"
    with folder_lock(run, run / LOCK):
        going = raysum.status(run)
    assert going.state == "running" and going.seconds_left == pytest.approx((36 - 12) / going.speed)


def test_a_trial_that_its_search_stopped_is_finished_until_it_is_trained_further(run, tmp_path):
    trial = tmp_path / "search" / "trials" / "lr=1"
    shutil.copytree(run, trial)
    longer = Run(trial).config.train.model_copy(update={"steps": 36})
    Run(trial).create(Run(trial).config.model_copy(update={"train": longer}), Run(trial).recipe, None)
    assert raysum.status(trial).state == "interrupted"
    (tmp_path / "search" / "best.json").write_text("{}")
    assert raysum.status(trial).state == "finished"
    Run(trial).add_event("start", step=12, hosts=[HERE])
    append_line(trial / "metrics.jsonl", {"step": 13, "loss": 2.0, "seconds": 1e3, "tokens_per_s": 500.0})
    append_line(trial / "metrics.jsonl", {"step": 14, "loss": 2.0, "seconds": 1e3 + 1, "tokens_per_s": 500.0})
    assert raysum.status(trial).state == "interrupted"
    with folder_lock(trial, trial / LOCK):
        assert raysum.status(trial).seconds_left == pytest.approx(22)


def test_the_last_failure_is_told(tmp_path):
    write_dataset(tmp_path / "data", {"train": 40, "valid": 8})
    with pytest.raises(UserError, match="the loss is"):
        train(tmp_path, lr=1e4, weight_decay=1e4)
    found = raysum.status(tmp_path / "run")
    assert found.state == "interrupted" and found.failure.startswith("the loss is") and found.failure_age < 60


def test_a_slow_host_is_named_until_the_next_start(run):
    message = "worker 1 on far computes 2.1 times as long for a token as those of other hosts"
    Run(run).add_event("slow", step=12, hosts=["far"], message=message)
    assert f"slow host     {message}" in raysum.status(run).render()
    Run(run).add_event("start", step=12, hosts=["a", "b"])
    assert raysum.status(run).slow_host is None


def test_the_speed_is_that_since_the_last_start(run):
    (run / "metrics.jsonl").unlink()
    for step in range(1, 11):
        append_line(run / "metrics.jsonl", {"step": step, "loss": 2.0, "seconds": 10.0 * step, "tokens_per_s": 50.0})
    Run(run).add_event("start", step=10, hosts=["a", "b", "b"])
    for step in range(11, 16):
        seconds = 1000.0 + step
        append_line(run / "metrics.jsonl", {"step": step, "loss": 2.0, "seconds": seconds, "tokens_per_s": 500.0})
    Run(run).add_event("failure", message="worker 1: " + "x" * 1000)
    found = raysum.status(run)
    assert found.speed == pytest.approx(1.0) and found.tokens_per_s == 500.0
    shown = found.render()
    assert "3 on a (1), b (2)" in shown and "1.00 steps/s" in shown and "worker 1: xxx" in shown
    assert len(max(shown.splitlines(), key=len)) < 600


def test_a_search_has_its_trials_by_state_and_the_last_failure(tmp_path):
    now = time.time()
    lines = [{"time": now - 60, "begun": 3}, began(now - 50, "a", 0.0), reported(now - 45, "a", 4, 2.5)]
    lines += [over(now - 40, "a"), began(now - 30, "b", 0.1), over(now - 20, "b", "ValueError: no")]
    folder = write_search(tmp_path / "search", *lines, began(now - 10, "c", 0.2))
    with folder_lock(folder, folder / LOCK):
        found = raysum.status(folder)
    assert found.state == "running" and found.trials == {"ended": 1, "running": 1, "failed": 1, "in total": 3}
    assert list(found.best.values()) == [2.5] and found.failure == "b: ValueError: no" and found.seconds_left > 0
    assert raysum.status(folder).state == "interrupted"


def status_by_command(path: Path, monkeypatch, *options: str) -> int | None:
    monkeypatch.setattr("sys.argv", ["raysum", "status", str(path), *options])
    with pytest.raises(SystemExit) as ended:
        main()
    return ended.value.code


@pytest.mark.parametrize(
    "line", ["[1, 2]", '{"event": "start"}', '{"time": 1, "event": "birth"}', '{"time": -1, "event": "start"}']
)
def test_damaged_events_are_named_with_the_way_out(run, line, monkeypatch, capsys):
    Run(run).events_file.write_text(f"{line}\n")
    assert status_by_command(run, monkeypatch) == 2
    message = capsys.readouterr().err
    assert str(Run(run).events_file) in message and len(message.splitlines()) == 1


@pytest.mark.parametrize("make", [lambda path: None, lambda path: path.mkdir(), lambda path: path.write_text("x")])
def test_what_is_no_run_is_named(tmp_path, make):
    make(tmp_path / "x")
    with pytest.raises(UserError, match=str(tmp_path / "x")):
        raysum.status(tmp_path / "x")


def test_status_prints_json(run, monkeypatch, capsys):
    assert not status_by_command(run, monkeypatch, "--json")
    found = Status(**json.loads(capsys.readouterr().out))
    assert (found.state, found.checkpoint, found.hosts) == ("finished", 12, [HERE])
