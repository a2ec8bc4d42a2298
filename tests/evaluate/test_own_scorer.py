"""A scorer of another package: in `raysum evaluate`, and as the metric that selects the best checkpoint."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from helpers.factbook_data import write_factbook
from raysum.runs.folder import Run

PACKAGE = Path(__file__).parent / "own_scorer"


def raysum(*arguments: object) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PYTHONPATH": str(PACKAGE)}
    command = [sys.executable, "-m", "raysum", *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, env=environment, timeout=300)


@pytest.fixture(scope="module")
def data(tmp_path_factory) -> Path:
    return write_factbook(tmp_path_factory.mktemp("own") / "data", {"train": 30, "valid": 6}).path


def test_a_scorer_of_another_package_is_a_row_of_the_table(data, tmp_path):
    command = ["evaluate", "lead", f"data={data}", "split=valid", f"out={tmp_path / 'out'}"]
    done = raysum(*command, 'scorers=["title","rouge"]', "--json")
    assert done.returncode == 0, done.stderr
    lead = json.loads(done.stdout)["systems"]["lead"]
    assert 0 < lead["title_recall_low"] <= lead["title_recall"] <= 100 and "rouge1" in lead and "support" not in lead


def test_its_metric_selects_the_best_checkpoint(data, tmp_path):
    values = {"model": {"width": 16, "ffn": 32, "heads": 2, "pooling_heads": 2, "encoder": "L", "decoder": "P"}}
    values |= {"train": {"batch_tokens": 2000, "workers": 0, "threads": 1, "steps": 2, "validate_every": 1}}
    values["train"] |= {"save_every": 1, "best_by": "title_recall"}
    values["decode"] = {"max_length": 8, "num_beams": 1}
    (tmp_path / "config.yaml").write_text(json.dumps(values))
    done = raysum("train", tmp_path / "config.yaml", f"data={data}", f"out={tmp_path / 'run'}", "--json")
    assert done.returncode == 0, done.stderr
    scores = Run(tmp_path / "run").validations("valid_title_recall")
    assert sorted(scores) == [1, 2] and json.loads(done.stdout)["valid_title_recall"] == max(scores.values())
