"""Comparing what was evaluated: paired by example, refused where it is of other data, examples or another protocol."""

import json
import shutil
import subprocess
import sys
from itertools import combinations
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

import raysum
from helpers.factbook_data import write_factbook, write_run
from raysum.errors import UserError
from raysum.evaluate.evaluation import evaluate
from raysum.runs.folder import Run


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    """A dataset, a run evaluated on its test split, and lead, lexrank and oracle alone."""
    root = tmp_path_factory.mktemp("compared")
    data = write_factbook(root / "data", {"valid": 6, "test": 12})
    run = write_run(root / "pht", data)
    evaluate(run.path, data.path, split="test", decode={"max_length": 8})
    for name in ("lead", "lexrank", "oracle", "lead-paper", "lexrank-paper"):
        evaluate(name, data.path, split="test", out=root / name)
    return root


def test_differences_are_those_of_a_plain_paired_bootstrap(folder):
    result = raysum.compare(folder / "lexrank", folder / "lead", metrics=["rouge2", "length_ratio", "novel2"])
    assert list(result.differences) == ["lexrank - lead"] and result.examples == 12
    (gap,) = result.differences.values()
    ours, theirs = (pd.read_parquet(folder / name / "scores.parquet")["rouge2"] for name in ("lexrank", "lead"))
    gaps = [(ours - theirs)[drawn].mean() for drawn in np.random.default_rng(0).integers(12, size=(1000, 12))]
    assert gap["rouge2"] == pytest.approx((ours - theirs).mean())
    assert [gap["rouge2_low"], gap["rouge2_high"]] == pytest.approx(np.quantile(gaps, [0.025, 0.975]).tolist())
    rarer = min(sum(one <= 0 for one in gaps), sum(one >= 0 for one in gaps))
    assert gap["rouge2_p"] == pytest.approx(2 * (1 + rarer) / 1001) and gap["rouge2_p"] < 1
    as_long = raysum.compare(folder / "lexrank-paper", folder / "lead-paper", metrics=["length_ratio"])
    (same,) = as_long.differences.values()
    assert same["length_ratio"] == 0 and same["length_ratio_p"] == 1 and gap["length_ratio"] != 0
    frame = result.to_pandas()
    assert frame["metric"].tolist() == ["rouge2", "length_ratio", "novel2"]
    assert frame.loc[0, ["difference", "low", "high", "p"]].tolist() == list(gap.values())[:4]
    assert json.loads(json.dumps(result.to_dict()))["protocol"].startswith("google: as rouge-score")


def test_a_run_is_compared_by_what_it_has_in_common_and_baselines_once(folder, tmp_path):
    other = tmp_path / "other"
    shutil.copytree(folder / "pht", other)
    (other / "evaluation/test").mkdir()
    (other / "evaluation/test/table.json").write_text("{}")  # of a version that did not say which data
    place = next(other.rglob("scores.parquet"))
    scores = pd.read_parquet(place)
    scores.loc[scores.system == "pht", "rouge1"] += 1
    scores.to_parquet(place)
    evaluate(other, folder / "data", split="valid", limit=2, decode={"max_length": 8})  # the first run has none of it
    result = raysum.compare(folder / "pht", other)
    ours, theirs = f"{folder / 'pht'}: pht", f"{other}: pht"
    names = [ours, theirs, "lead", "lexrank", "lead-paper", "lexrank-paper"]
    assert list(result.differences) == [f"{one} - {two}" for one, two in combinations(names, 2)]
    gap = result.differences[f"{ours} - {theirs}"]
    assert [gap[key] for key in ("rouge1", "rouge1_low", "rouge1_high")] == pytest.approx([-1] * 3)
    assert gap["rouge1_p"] == pytest.approx(2 / 1001) and gap["rouge2_p"] == 1
    with pytest.raises(UserError, match="several evaluations match"):
        raysum.compare(other)


def test_what_does_not_match_is_refused_by_name(folder, tmp_path):
    data = folder / "data"
    foreign = write_factbook(tmp_path / "foreign", {"test": 3})
    made = {
        "have different splits": {"data": data, "split": "valid"},
        "have different data": {"data": foreign.path, "split": "test"},
        "other protocols": {"data": data, "split": "test", "protocol": "ht-paper"},
        "12 examples, .* 3, .*--limit": {"data": data, "split": "test", "limit": 3},
    }
    for words, settings in made.items():
        shutil.rmtree(tmp_path / "one", ignore_errors=True)
        evaluate("lead", settings.pop("data"), out=tmp_path / "one", **settings)
        with pytest.raises(UserError, match=words):
            raysum.compare(folder / "lexrank", tmp_path / "one")
    bare = write_run(tmp_path / "bare", foreign)
    cases = [
        ((bare.path,), "is not evaluated yet"),
        ((folder / "lead",), "lead is one system"),
        (("nowhere",), "no run"),
    ]
    for places, words in cases:
        with pytest.raises(UserError, match=words):
            raysum.compare(*places)
    with pytest.raises(UserError, match="did you mean 'rouge2'"):
        raysum.compare(folder / "lead", folder / "lexrank", metrics=["rogue2"])
    former = json.loads((folder / "lead/table.json").read_text())
    del former["data"]
    shutil.copytree(folder / "lead", tmp_path / "former")
    (tmp_path / "former/table.json").write_text(json.dumps(former))
    with pytest.raises(UserError, match="repeat its `raysum evaluate`"):
        raysum.compare(folder / "lexrank", tmp_path / "former")


def test_the_command_prints_a_table_and_one_object_and_loads_no_torch(folder):
    run = Run(folder / "pht").path
    code = "import sys; from raysum.cli.app import main\ntry: main()\nfinally: print('torch' in sys.modules)"

    def said(*arguments: str) -> list[str]:
        command = [sys.executable, "-c", code, "compare", str(run), str(folder / "oracle"), *arguments]
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines()

    *lines, torch = said()
    assert torch == "False" and any("pht - oracle" in line for line in lines)
    assert any("google: as rouge-score" in line for line in lines) and any("ROUGE-2" in line for line in lines)
    *_, found, _ = said("--json", "--metrics", "rouge1")
    assert list(json.loads(found)) == ["differences", "protocol", "data", "examples"]


def test_precision_and_recall_stand_in_the_table_of_systems(folder):
    lead = evaluate("lead", folder / "data", split="test")
    frame = lead.to_pandas()
    assert frame.loc["lead", "rouge1_precision"] == pytest.approx(lead.scores["rouge1_precision"].mean())
    assert (
        frame.loc["lead", "rouge2_recall_low"] < frame.loc["lead", "rouge2_recall"] < frame["rouge2_recall_high"].max()
    )
    assert {"rouge2", "rouge2_low", "words"} <= {*frame.columns}


def test_damaged_scores_and_tables_are_named(folder, tmp_path):
    def damaged(name: str) -> Path:
        return Path(shutil.copytree(folder / "lead", tmp_path / name))

    scores = pd.read_parquet(folder / "lead" / "scores.parquet")
    pd.concat([scores, scores]).to_parquet(damaged("twice") / "scores.parquet")
    scores.assign(rouge2="x").to_parquet(damaged("text") / "scores.parquet")
    for name, message in {"twice": "other scores than its table.json", "text": "scores.parquet cannot be read"}.items():
        with pytest.raises(UserError, match=message):
            raysum.compare(tmp_path / name, folder / "lexrank")
    table = json.loads((folder / "lead" / "table.json").read_text())
    for key in ("data", "protocol"):
        (damaged(key) / "table.json").write_text(json.dumps(table | {key: 3}))
        with pytest.raises(UserError, match=f"table.json is damaged at {key}"):
            raysum.compare(tmp_path / key, folder / "lexrank")


def test_the_references_length_is_for_what_takes_sentences(folder):
    with pytest.raises(UserError, match="reference_length is for systems that extract"):
        evaluate(folder / "pht", folder / "data", split="test", reference_length=True)
