"""`tune` killed at random moments and run again: each trial gives what it gives in a search that was left alone."""

import json
import random
import shutil
import subprocess
import time
from pathlib import Path

import pytest

from helpers.factbook_data import write_factbook, write_run
from helpers.processes import Command
from raysum.runs.folder import Run

DECODING = """
about: betas
kind: decode
examples: 24
search: {decode.beta: {grid: [0.0, 0.2, 0.4, 0.6, 0.8, 1.0]}, decode.num_beams: {grid: [1, 2]}}
"""
TRAINING = """
about: learning rates
kind: train
preset: pht
metric: valid_loss
searcher: grid
scheduler: fifo
search: {optim.lr: {grid: [0.01, 0.02, 0.03, 0.04]}}
config:
  model.width: 16
  model.ffn: 32
  model.heads: 2
  model.pooling_heads: 2
  model.encoder: L
  model.decoder: P
  optim.schedule: constant
  optim.warmup_steps: 0
  train.steps: 60
  train.save_every: 20
  train.validate_every: 20
  train.batch_tokens: 600
  train.threads: 1
"""


@pytest.mark.long
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("space", [DECODING, TRAINING], ids=["decoding", "training"])
def test_ten_kills_change_no_result(tmp_path, space):
    data = write_factbook(tmp_path / "data", {"train": 200, "valid": 24})
    run = write_run(tmp_path / "pht", data, predictor=True)
    (tmp_path / "space.yaml").write_text(space)

    def start(out: str) -> Command:
        arguments = ["space.yaml", f"data={data.path}", f"out={out}"]
        arguments += [f"run={run.path}"] if space is DECODING else []
        log = (tmp_path / "log").open("a")
        return Command("tune", *arguments, cwd=tmp_path, stdout=subprocess.DEVNULL, stderr=log)

    began = time.monotonic()
    assert start("whole").process.wait() == 0, (tmp_path / "log").read_text()
    length, draw, waits, cut = time.monotonic() - began, random.Random(1), [], 0
    expected = results(tmp_path / "whole")
    for kill in range(10):
        command = start("search")
        cut += command.ended_or_killed(draw.uniform(0.1, 1.0) * length, whole=kill % 2 == 1)
        waits.append(command.wait_until_none_lives())
        if (tmp_path / "search" / "best.json").exists():
            assert results(tmp_path / "search") == expected
            shutil.rmtree(tmp_path / "search")
    last = start("search")
    assert last.process.wait() == 0, (tmp_path / "log").read_text()
    assert results(tmp_path / "search") == expected and cut > 2
    assert not list((tmp_path / "search").glob("trials/*/ray"))
    print(f"{length:.1f} s unkilled; {cut} of 10 cut the search; all gone after {max(waits):.1f} s at most")


def results(search: Path) -> dict:
    """What each trial gave, and which is best: all but times."""
    trials = {}
    for folder in (search / "trials").iterdir():
        scores = folder / "scores.parquet"
        trials[folder.name] = scores.read_bytes() if scores.exists() else Run(folder).validations()
    best = json.loads((search / "best.json").read_text())
    return {"trials": trials, "best": best["config"], "rouge2": best["metrics"].get("rouge2")}
