"""Several datasets in one training: exact shares, the same plan from anywhere, and what cannot be mixed."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from helpers.small_datasets import write_dataset
from raysum.config.decoding import SourceConfig
from raysum.config.loading import load_config
from raysum.config.sections import Config
from raysum.data.dataset import Dataset
from raysum.errors import UserError
from raysum.runs.folder import Run
from raysum.runtime.storage import read_lines
from raysum.stream.collators.summarization import Summarization
from raysum.stream.loader import batches
from raysum.stream.plan import Mix, Plan, PlanSettings
from raysum.stream.stream import Stream, plan_of
from raysum.train.fit import fit

SIZES = (1000, 130, 37)


def plan(shares=(0.5, 0.3, 0.2), seed=0, origin=(0, 0)) -> Plan:
    rng = np.random.default_rng(5)
    groups = [np.minimum(64, size - np.arange(0, size, 64)) for size in SIZES]
    costs, keep = rng.integers(10, 120, sum(SIZES)), rng.random(sum(SIZES)) >= 0.1
    mix = Mix(tuple(map(len, groups)), shares)
    return Plan(costs, np.ones_like(costs), keep, np.concatenate(groups), PlanSettings(300, 4, 3, seed), origin, mix)


def members(rows: np.ndarray) -> np.ndarray:
    """How many of ``rows`` are of each dataset."""
    return np.bincount(np.searchsorted(np.cumsum(SIZES), rows, side="right"), minlength=len(SIZES))


@pytest.mark.parametrize("shares", [(0.5, 0.3, 0.2), (0.01, 0.01, 0.98), (0.999, 0.0005, 0.0005)])
def test_epochs_hold_exactly_the_shares_and_all_rows_of_a_dataset_come_equally_often(shares):
    made, total = plan(shares), int(plan().keep.sum())
    seen = np.zeros(sum(SIZES), int)
    for epoch in range(7):
        seen += np.bincount(made.epoch(epoch).rows, minlength=len(seen))
        ends = np.cumsum(SIZES)
        for number, share in enumerate(shares):
            own = seen[ends[number] - SIZES[number] : ends[number]][
                made.keep[ends[number] - SIZES[number] : ends[number]]
            ]
            assert own.sum() == int((epoch + 1) * total * share + 0.5)
            assert own.max() - own.min() <= 1
    assert not seen[~made.keep].any()


def test_datasets_come_side_by_side():
    made = plan()
    rows = made.epoch(0).rows
    for part in np.array_split(rows, 3):
        np.testing.assert_allclose(members(part) / len(part), (0.5, 0.3, 0.2), atol=0.08)


def test_a_mixed_plan_is_the_same_wherever_one_begins_and_another_for_another_seed():
    whole = plan()
    steps = [[whole.rows(step, index).tolist() for index in range(4)] for step in range(200)]
    epoch, place = whole.locate(190)
    assert epoch >= 2, "several epochs are compared"
    late = plan(origin=(epoch, 190 - place))
    assert [[late.rows(step, index).tolist() for index in range(4)] for step in range(190, 200)] == steps[190:]
    assert plan(seed=1).rows(0, 0).tolist() != steps[0][0]


@pytest.fixture(scope="module")
def data(tmp_path_factory) -> list[Path]:
    """Two datasets of one vocabulary, the second with several references, and one of another vocabulary."""
    folder = tmp_path_factory.mktemp("mixing")
    small = write_dataset(folder / "small", {"train": 41}, references=3)
    other = write_dataset(folder / "other", {"train": 20}, seed=9)
    return [write_dataset(folder / "large", {"train": 160, "valid": 12}), small, other]


@pytest.fixture(scope="module")
def stream(data) -> Stream:
    settings = PlanSettings(200, 4, 2, 0)
    return Stream(
        str(data[0]), "train", SourceConfig(), settings, Summarization(), mixed=(str(data[1]),), shares=(0.6, 0.4)
    )


def test_rows_of_all_datasets_are_read_and_shared_by_ranks_alike(stream, data):
    steps = plan_of(stream).epoch(0).num_steps + 3

    def found(world: int, start: int) -> dict:
        made = [batch for rank in range(world) for batch in batches(stream, rank, world, start, steps)]
        return {(batch.step, batch.index): (batch.digest, batch.weight, batch.real) for batch in made}

    alone = found(1, 0)
    assert found(2, 0) == found(4, 0) == alone
    assert found(2, 5) == {place: batch for place, batch in alone.items() if place[0] >= 5}
    rows = [row for path in data[:2] for row in Dataset.open(path).read("train")]
    targets: dict[int, int] = {}
    for batch in batches(stream, 0, 1, 0, steps):
        planned = plan_of(stream).rows(batch.step, batch.index)
        if batch.real:
            assert batch.arrays["ids"].tolist() == [token for row in planned for token in rows[row]["ids"]]
            targets[batch.step] = targets.get(batch.step, 0) + Summarization().tokens(batch.arrays)[1]
    assert targets == {step: plan_of(stream).weight(step) for step in targets}


def config(data: list[Path], out: Path, steps: int, **values) -> Config:
    train = {"batch_tokens": 200, "micro_batches": 2, "workers": 0, "threads": 1, "log_every": 1, "steps": steps}
    model = {"width": 16, "ffn": 32, "heads": 2, "pooling_heads": 2, "encoder": "L", "decoder": "P"}
    train |= values.pop("train", {})
    return Config(model=model, train=train, data=[str(path) for path in data], out=str(out), **values)


@pytest.fixture(scope="module")
def whole(data, tmp_path_factory) -> Run:
    return fit(config(data[:2], tmp_path_factory.mktemp("mixed") / "whole", 40, data_weights=[3, 2]))


def hashes(run: Run) -> list[tuple[int, float]]:
    return [(line["batch_hash"], line["loss"]) for line in read_lines(run.metrics) if "loss" in line]


def test_a_mixed_training_resumes_bit_for_bit_and_records_all_datasets(whole, data, tmp_path):
    for steps in (17, 40):
        run = fit(config(data[:2], tmp_path / "run", steps, data_weights=[3, 2]))
    assert hashes(run) == hashes(whole)
    ours, theirs = (load_file(each.latest().weights) for each in (run, whole))
    assert all(torch.equal(ours[name], theirs[name]) for name in theirs)
    state, sets = run.latest().state, [Dataset.open(path) for path in data[:2]]
    assert [state["data"], *state["mixed"]] == [each.fingerprint for each in sets]
    assert run.config.data == str(data[0]) and run.config.mixed == [str(data[1])]


@pytest.mark.slow
def test_two_workers_read_the_same_batches(whole, data, tmp_path):
    run = fit(config(data[:2], tmp_path / "run", 12, data_weights=[3, 2], train={"workers": 2}))
    assert [one for one, _ in hashes(run)] == [one for one, _ in hashes(whole)][:12]


def test_a_mixed_run_goes_on_with_the_same_datasets_alone(whole, data, tmp_path):
    with pytest.raises(UserError, match="trained on other datasets .*list the same in data"):
        fit(config(data[:1], whole.path, 50).model_copy(update={"data_weights": [3.0, 2.0]}))
    with pytest.raises(UserError, match=r"other values of data_weights; keep them \(data_weights=\[3.0, 2.0\]\)"):
        fit(config(data[:2], whole.path, 50, data_weights=[2, 2]))


def test_without_weights_every_row_comes_once_an_epoch(data, tmp_path):
    from raysum.train.job_spec import job_spec_of

    given = config(data[:2], tmp_path / "run", 1)
    brief = job_spec_of(Dataset.open(data[0]), given, Run(given.out), 0)
    np.testing.assert_array_equal(np.sort(plan_of(brief.train).epoch(0).rows), np.arange(160 + 41))
    assert brief.valid and not brief.valid.mixed


def test_what_cannot_be_mixed_is_named(data, tmp_path, capsys):
    with pytest.raises(UserError, match=r"/other cannot be mixed with .*/large: they differ in vocabulary; prepare it"):
        fit(config([data[0], data[2]], tmp_path / "run", 2))
    with pytest.raises(UserError, match="/large is listed twice"):
        fit(config([data[0], data[0]], tmp_path / "run", 2))
    with pytest.raises(UserError, match="no dataset .*nowhere"):
        fit(config([data[0], tmp_path / "nowhere"], tmp_path / "run", 2))
    valid = write_dataset(tmp_path / "valid", {"valid": 20})
    with pytest.raises(UserError, match="/valid has no split 'train'"):
        fit(config([data[0], valid], tmp_path / "run", 2))
    shard = next((write_dataset(tmp_path / "torn", {"train": 20})).glob("train*.parquet"))
    shard.write_bytes(shard.read_bytes()[:-1])
    with pytest.raises(UserError, match=f"{shard} is damaged"):
        fit(config([data[0], tmp_path / "torn"], tmp_path / "run", 2))
    assert not (tmp_path / "run" / "config.yaml").exists()


def test_the_recipe_that_holds_is_said(data, tmp_path, capsys):
    graph = write_dataset(tmp_path / "graph", {"train": 20}, graph=True)
    run = fit(config([data[0], graph], tmp_path / "run", 2))
    assert f"{graph} was prepared with other values of graph than {data[0]}; the recipe of" in capsys.readouterr().err
    assert json.loads((run.path / "recipe.json").read_text())["graph"] == "none"


@pytest.mark.parametrize(
    "overrides, message",
    [
        (["data=[a, b]", "data_weights=[1]"], "data_weights has 1 numbers for 2 datasets"),
        (["data=[a, b]", "data_weights=[1, 0]"], "data_weights"),
        (["data=[a, b]", "data_weight=[1, 2]"], "did you mean 'data_weights'"),
        (["data=[]"], "data"),
    ],
)
def test_mistakes_in_a_mixture_are_named(overrides, message):
    with pytest.raises(UserError, match=message):
        load_config("pht", overrides)


def test_a_list_of_datasets_is_the_first_and_those_that_are_mixed_into_it():
    made = load_config("pht", ["data=[a, b, c]", "data_weights=[1, 2, 0.5]"])
    assert (made.data, made.mixed, made.data_weights) == ("a", ["b", "c"], [1, 2, 0.5])
    assert Config(**made.model_dump()) == made
