"""Commands on a store, end to end, killed with SIGKILL: what is done on it by the command line is what is done here.

The store is moto's server of S3, see tests/runtime/test_remote.py.
"""

import json
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from helpers.processes import Command
from helpers.remote_store import BUCKET, keys, lines
from raysum.data.dataset import Dataset
from raysum.runs.folder import Run
from raysum.runtime import remote

pytestmark = [pytest.mark.long, pytest.mark.slow, pytest.mark.timeout(600)]

STEPS = 24
CONFIG = {
    "model": {"width": 16, "ffn": 32, "heads": 2, "pooling_heads": 2, "encoder": "L", "decoder": "P"},
    "train": {"steps": STEPS, "batch_tokens": 300, "micro_batches": 4, "workers": 0, "threads": 1}
    | {"log_every": 1, "save_every": 3, "validate_every": 12},
    "optim": {"lr": 0.01, "schedule": "constant", "warmup_steps": 0},
    "decode": {"num_beams": 1, "min_length": 2, "max_length": 8},
}


def raysum(*arguments: str | Path, **environment: str) -> str:
    command = [sys.executable, "-m", "raysum", *map(str, arguments)]
    done = subprocess.run(command, env=os.environ | environment, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    return done.stdout


def wait_until(condition, seconds: float = 120) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "it takes too long"
        time.sleep(0.02)


@pytest.fixture
def prepared(store, tmp_path) -> str:
    """The URL of a dataset that `raysum prepare` made of sources on the store, with nine shards; and a config."""
    for number in range(8):
        store.pipe_file(f"{BUCKET}/raw/train.part-{number}.jsonl", lines(range(20 * number, 20 * number + 20)))
    store.pipe_file(f"{BUCKET}/raw/valid.jsonl", lines(range(200, 210)))
    raysum("prepare", f"s3://{BUCKET}/raw/*.jsonl", "--out", f"s3://{BUCKET}/data", "--vocab-size", "150")
    (tmp_path / "config.yaml").write_text(json.dumps(CONFIG))
    return f"s3://{BUCKET}/data"


@pytest.mark.long
def test_a_killed_training_goes_on_elsewhere_and_all_that_reads_it_finds_it(store, prepared, tmp_path):
    store.get(f"{BUCKET}/data/", str(tmp_path / "data"), recursive=True)
    config, url = tmp_path / "config.yaml", f"s3://{BUCKET}/runs/pht"
    raysum("train", config, f"data={tmp_path / 'data'}", f"out={tmp_path / 'here'}")
    command = Command("train", str(config), f"data={prepared}", f"out={url}", stderr=subprocess.DEVNULL)
    wait_until(lambda: any("step-00000006/checksums" in name for name in keys(store, "runs/pht")))
    command.kill()
    whole = [name for name in keys(store, "runs/pht") if name.endswith("checksums.json")]
    assert not any(f"{STEPS:08d}" in name for name in whole), "it was killed too late to tell anything"
    shutil.rmtree(tmp_path / "cache")
    raysum("train", config, f"data={prepared}", f"out={url}")
    here = load_file(Run(tmp_path / "here").checkpoint(str(STEPS)).weights)
    there = load_file(Run(remote.local(url)).checkpoint(str(STEPS)).weights)
    assert here.keys() == there.keys() and all(torch.equal(here[name], there[name]) for name in here)

    elsewhere = {"RAYSUM_CACHE": str(tmp_path / "another machine")}
    raw = f"s3://{BUCKET}/raw/valid.jsonl"
    found = raysum("summarize", url, raw, "--json", **elsewhere).splitlines()
    assert len(found) == 10
    assert found == raysum("summarize", tmp_path / "here", raw, "--json", **elsewhere).splitlines()
    told = json.loads(raysum("evaluate", url, "--data", prepared, "--split", "valid", "--json", **elsewhere))
    assert told["examples"] == 10
    assert any(name.endswith("valid/table.json") for name in keys(store, "runs/pht/evaluation"))
    raysum("train", "alignment", f"run={url}", f"data={prepared}", "train.steps=3", "train.workers=0", **elsewhere)
    assert "alignment/checkpoints/step-00000003/checksums.json" in keys(store, "runs/pht")
    with_beta = raysum("summarize", url, raw, "--json", "--set", "beta=0.4")
    assert len(with_beta.splitlines()) == 10


@pytest.mark.long
def test_a_killed_reader_leaves_nothing_that_is_taken_for_whole(store, prepared, tmp_path):
    shards = sum(name.endswith(".parquet") for name in keys(store, "data"))
    killed = 0
    for seconds in (0.01, 0.05, 0.1):
        shutil.rmtree(tmp_path / "cache", ignore_errors=True)
        command = Command("data", "check", prepared, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        wait_until(lambda: [*(tmp_path / "cache").rglob("*.npy")])
        killed += command.ended_or_killed(seconds, whole=True)
        told = json.loads(raysum("data", "check", prepared, "--json"))
        assert told["files"] == shards + 4 and told["rows"] == 170
    assert killed > 1, "no reader was killed before it had read all"


def test_workers_read_and_write_a_store(store, prepared, tmp_path):
    """Two workers under Ray, whose tasks fetch shards: the weights are those of a training of one process here."""
    store.get(f"{BUCKET}/data/", str(tmp_path / "data"), recursive=True)
    config, url, few = tmp_path / "config.yaml", f"s3://{BUCKET}/runs/two", ["train.steps=3", "optim.eps=1.0"]
    two = ["train.workers=2", "deepspeed={zero_optimization: {stage: 2}}"]
    raysum("train", config, f"data={tmp_path / 'data'}", f"out={tmp_path / 'here'}", *few)
    raysum("train", config, f"data={prepared}", f"out={url}", *few, *two)
    shutil.rmtree(tmp_path / "cache")
    checkpoint = f"{BUCKET}/runs/two/checkpoints/step-00000003"
    times = {name: store.info(name)["LastModified"] for name in store.find(checkpoint)}
    assert len([name for name in times if name.endswith("optim_states.pt")]) == 2
    assert times[f"{checkpoint}/checksums.json"] == max(times.values()), "the seal is uploaded last"
    here = load_file(Run(tmp_path / "here").checkpoint("3").weights)
    there = load_file(Run.open(url).checkpoint("3").weights)
    for name, value in here.items():
        torch.testing.assert_close(there[name], value, rtol=1e-5, atol=1e-6, msg=name)


@pytest.mark.long
def test_tasks_of_ray_read_sources_by_their_urls(store, tmp_path):
    for number in range(3):
        content = lines(range(20 * number, 20 * number + 20))
        store.pipe_file(f"{BUCKET}/raw/part-{number}.jsonl", content)
        (tmp_path / f"part-{number}.jsonl").write_bytes(content)
    here, url = [tmp_path / f"part-{number}.jsonl" for number in range(3)], f"s3://{BUCKET}/data"
    raysum("prepare", *here, "--out", tmp_path / "here", "--vocab-size", "150")
    raysum("prepare", f"s3://{BUCKET}/raw", "--out", url, "--vocab-size", "150", "--address", "local")
    assert Dataset.open(url).fingerprint == Dataset.open(tmp_path / "here").fingerprint
