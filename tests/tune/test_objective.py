"""Objectives of searches: logged metrics and metrics of registered scorers, their directions, and their values."""

import pytest

from helpers.factbook_data import write_factbook
from helpers.small_trainings import trained
from raysum.errors import UserError
from raysum.runtime.storage import read_lines
from raysum.tune.search import tune
from raysum.tune.spaces import load_space
from raysum.tune.training import best_so_far

TINY = {"encoder": "L", "decoder": "P", "width": 16, "ffn": 32, "heads": 2, "pooling_heads": 2}


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    return write_factbook(tmp_path_factory.mktemp("data") / "data", {"train": 12, "valid": 4})


@pytest.mark.parametrize(
    ("settings", "best_by", "goal"),
    [
        ([], "loss", "min"),
        (["metric=rouge2"], "rouge2", "max"),
        (["metric=facts_f1"], "facts_f1", "max"),  # of a registered scorer
        (["metric=unsupported"], "-unsupported", "min"),
        (["metric=words", "mode=min"], "-words", "min"),
        (["metric=tokens_per_s", "train.best_by=rouge1"], "rouge1", "max"),
        (["metric=train_seconds", "stop.valid_loss=2"], "loss", "min"),
    ],
)
def test_trainings_measure_the_metric_of_their_search(settings, best_by, goal):
    space = load_space("layer_mix", settings)
    assert (space.first.train.best_by, space.config.goal) == (best_by, goal)


def test_a_wrong_metric_of_a_training_is_one_message_with_the_known_ones(data, tmp_path):
    with pytest.raises(UserError, match="'token_per_s'.*did you mean 'tokens_per_s'.*valid_loss, .*loss, .*facts_f1"):
        load_space("layer_mix", ["metric=token_per_s"])
    with pytest.raises(UserError, match="metric=rouge2 selects checkpoints by train.best_by=rouge2; leave"):
        load_space("layer_mix", ["metric=rouge2", "train.best_by=rouge1"])
    with pytest.raises(UserError, match="stop cannot name 'rouge1' in a train space; .*valid_loss"):
        load_space("layer_mix", ["stop.rouge1=9"])


def test_a_trial_reports_its_objective_and_the_logged_metrics(tmp_path, data):
    steps = {"best_by": "rouge1", "steps": 4, "validate_every": 2, "save_every": 2}
    run = trained(data.path, tmp_path / "run", 4, TINY, train=steps)
    found, lines = best_so_far(run, "rouge1"), [*read_lines(run.metrics)]
    assert found["rouge1"] == max(line["valid_rouge1"] for line in lines if "valid_rouge1" in line)
    assert found["tokens_per_s"] == [line["tokens_per_s"] for line in lines if "loss" in line][-1]
    assert found["step"] == 4 and found["loss"] and found["grad_norm"]


@pytest.mark.slow
def test_a_search_maximizes_the_speed_of_trainings_in_one_process(tmp_path, data, ray_session):
    shared = ", ".join(f"model.{key}: {value}" for key, value in TINY.items())
    training = "train.steps: 4, train.validate_every: 2, train.save_every: 2, train.workers: 0, optim.warmup_steps: 5"
    (tmp_path / "speed.yaml").write_text(
        "about: x\nkind: train\npreset: pht\nmetric: tokens_per_s\nsearch: {train.batch_tokens: {grid: [300, 600]}}\n"
        f"config: {{{shared}, {training}}}\nmax_concurrent: 1\n"
    )
    result = tune(str(tmp_path / "speed.yaml"), data=str(data.path), out=str(tmp_path / "search"))
    speeds = [trial.metrics["tokens_per_s"] for trial in result.trials]
    assert len(speeds) == 2 and speeds == sorted(speeds, reverse=True) and min(speeds) > 0
    reports = [line for file in (tmp_path / "search" / "tune").glob("*/result.json") for line in read_lines(file)]
    assert len({line["trial_id"] for line in reports}) == 2 and len({line["pid"] for line in reports}) == 1
    lines = [line["step"] for line in read_lines(result.run.metrics) if "loss" in line]
    assert lines == [2, 4]  # before each report, though train.log_every is 10
