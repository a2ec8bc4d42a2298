"""The first 20 losses of five presets, at small sizes, are those of version 19c3897 (hibert_m: of 2f87dcc)."""

import json
from pathlib import Path

import pytest

from helpers.small_datasets import write_dataset
from raysum.config.loading import load_config
from raysum.runtime.storage import read_lines
from raysum.train.fit import fit

GOLDEN = json.loads(Path(__file__).with_name("golden_losses.json").read_text())
SIZES = {"width": 32, "ffn": 64, "heads": 2}
TRAIN = {"steps": 20, "batch_tokens": 300, "micro_batches": 2, "workers": 0, "threads": 1, "log_every": 1}


@pytest.mark.parametrize("preset", GOLDEN)
def test_first_losses(preset, tmp_path):
    kind = "extraction" if preset.startswith("hibert") else "summarization"
    data = write_dataset(tmp_path / "data", {"train": 120}, graph=True, kind=kind)
    sizes = {f"model.{name}": value for name, value in SIZES.items()}
    settings = sizes | {f"train.{name}": value for name, value in TRAIN.items()}
    overrides = [f"{name}={value}" for name, value in settings.items()]
    config = load_config(preset, [*overrides, "train.seed=7", "optim.lr=0.01", "optim.schedule=constant"])
    run = fit(config.model_copy(update={"data": str(data), "out": str(tmp_path / "run")}))
    losses = [line["loss"] for line in read_lines(run.metrics) if "loss" in line]
    assert losses == pytest.approx(GOLDEN[preset], abs=1e-4)
