"""The learning-curve benchmark: the recorded settings under our names, the published shards as a dataset."""

import json

import pytest
import torch

from raysum.bench.curve import CurveBench, compared, config_of, read_curve
from raysum.bench.ranked_format import as_dataset
from raysum.bench.registry import bench
from raysum.errors import UserError
from raysum.systems import count_parameters


def test_the_recorded_settings_give_the_published_model(shared):
    file = shared / "fixtures" / "hiersumm_learning_curve.jsonl"
    recorded, theirs = read_curve(file)
    config = config_of(recorded, CurveBench(curve=str(file), data="", vocab=""), "data")
    assert config.model.encoder == "LLLG" and config.model.decoder == "FF"
    assert count_parameters(config.model) == json.loads(file.read_text().splitlines()[0])["n_params"]
    assert config.train.validate_examples is None and set(theirs) >= {300, 600, 1200}


def test_published_shards_become_a_dataset(shared, tmp_path):
    data, vocabulary = shared / "data" / "scisummnet" / "ranked_format", shared / "data" / "wikisum_vocab"
    dataset = as_dataset(data, vocabulary / "spm9998_3.model", tmp_path / "data")
    assert {split: dataset.rows(split) for split in dataset.splits} == {"train": 754, "valid": 70}
    row = next(dataset.read("valid"))
    first = torch.load(data / "WIKI.valid.0.pt", weights_only=True)[0]
    bounds = zip(row["paragraph_offsets"], row["paragraph_offsets"][1:], strict=False)
    assert [row["ids"][start:end].tolist() for start, end in bounds] == first["src"]
    assert row["target_ids"].tolist() == first["tgt"]


def test_rows_compare_equal_steps():
    theirs = {0: {"loss": 10.0, "seconds": 0.0}, 100: {"loss": 6.0, "seconds": 80.0}}
    runs = [{"losses": {100: loss}, "seconds": {100: 40.0}} for loss in (5.9, 6.2)]
    (row,) = compared(theirs, runs)
    assert row["behind"] == pytest.approx(0.05) and (row["lowest"], row["highest"]) == (5.9, 6.2)
    assert row["times_as_fast"] == 2.0


@pytest.mark.parametrize(
    ("broken", "message"),
    [("curve", "does not read as a recorded learning curve"), ("shard", "no shard"), ("folder", "has no WIKI.train")],
)
def test_mistakes_are_one_message(tmp_path, shared, broken, message):
    curve = shared / "fixtures" / "hiersumm_learning_curve.jsonl"
    if broken == "curve":
        curve = tmp_path / "curve.jsonl"
        curve.write_text("no json\n")
    if broken == "shard":
        (tmp_path / "WIKI.train.0.pt").write_bytes(b"no shard")
    vocabulary = shared / "data" / "wikisum_vocab" / "spm9998_3.model"
    with pytest.raises(UserError, match=message):
        bench("curve", [f"curve={curve}", f"data={tmp_path}", f"vocab={vocabulary}"])
