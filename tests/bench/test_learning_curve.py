"""How fast HT learns, beside a recorded training of its published code: validation loss over steps and over seconds.

By hand: ``pytest -m long tests/bench/test_learning_curve.py -s`` prints the table.
"""

import json
from pathlib import Path
from statistics import mean
from typing import Any

import numpy as np
import pytest
import torch

from raysum.bench.base import alone
from raysum.bench.machine import measure
from raysum.config.decoding import SourceConfig
from raysum.config.sections import Config, OptimConfig, TrainConfig
from raysum.data.dataset import Dataset
from raysum.data.recipe import Recipe
from raysum.data.rows import Row, table_of, title_tokens
from raysum.data.writer import DatasetWriter
from raysum.models.family.spec import FamilySpec
from raysum.runs.folder import Run
from raysum.systems import count_parameters
from raysum.tokenizers.loading import load_tokenizer
from raysum.train.fit import fit
from raysum.train.optim import engine_config

RATE = 195.0  # GFLOP/s of fp32 matrix products where the curve was recorded
SEEDS, STEPS, EVERY, THREADS = (0, 1, 2), 1200, 100, 2
BATCH_TOKENS = 6000  # about the 3.3 clusters a step of the recorded training

Curve = dict[int, dict[str, float]]  # by step


@pytest.fixture(scope="module")
def curve(shared) -> tuple[dict[str, Any], Curve]:
    """The settings of the recorded training, and its losses and seconds."""
    first, *lines = map(json.loads, (shared / "fixtures/hiersumm_learning_curve.jsonl").read_text().splitlines())
    return first, {line["step"]: {"loss": line["val_xent"], "seconds": line["train_wall_s"]} for line in lines}


@pytest.fixture(scope="module")
def ranked(shared, tmp_path_factory) -> Dataset:
    """The shards that it was trained on, in the published ranked format: paragraph order is rank order."""
    pieces = load_tokenizer(shared / "data/wikisum_vocab/spm9998_3.model")
    recipe = Recipe(max_paragraphs=40, paragraph_tokens=100, vocabulary_sha256=pieces.sha256)
    writer = DatasetWriter(tmp_path_factory.mktemp("ranked"), "summarization", recipe, pieces)
    written = []
    for split in ("train", "valid"):
        files = sorted(shards_of(shared).glob(f"WIKI.{split}.*.pt"), key=lambda file: int(file.suffixes[-2][1:]))
        clusters = [cluster for file in files for cluster in torch.load(file, weights_only=True)]
        rows = [row_of(f"{split}-{number}", **cluster) for number, cluster in enumerate(clusters)]
        written.append(writer.add(split, split, [table_of(rows, writer.kind)]))
    return writer.finish(written)


def shards_of(shared: Path) -> Path:
    return shared / "data/scisummnet/ranked_format"


def row_of(name: str, src: list[list[int]], tgt: list[int], **_: Any) -> Row:
    paragraphs = [ids for ids in src if ids]
    ids, offsets = np.concatenate(paragraphs), np.cumsum([0, *map(len, paragraphs)])
    titled = {"title_tokens": title_tokens(ids[: offsets[1]]), "paragraph_offsets": offsets}
    return {"id": name, "ids": ids, **titled, "target_ids": np.array(tgt)}


def config_of(recorded: dict[str, Any], data: str) -> Config:
    """The recorded settings, under our names."""
    rate, names = recorded["enc_dropout"], {"dropout", "attention_dropout", "ffn_dropout"}
    model = FamilySpec(
        encoder="".join("G" if layer in recorded["inter_layers"] else "L" for layer in range(recorded["enc_layers"])),
        decoder="F" * recorded["dec_layers"],
        width=recorded["enc_hidden_size"],
        ffn=recorded["ff_size"],
        heads=recorded["heads"],
        pooling_heads=recorded["inter_heads"],
        embedding_start="xavier",
        **dict.fromkeys(names, rate),
    )
    source = SourceConfig(max_paragraphs=recorded["trunc_src_nblock"], target_tokens=1000)  # its loader cuts no target
    train = TrainConfig(
        steps=STEPS,
        batch_tokens=BATCH_TOKENS,
        micro_batches=1,
        label_smoothing=recorded["label_smoothing"],
        workers=0,
        threads=THREADS,
        validate_every=EVERY,
        validate_examples=None,
        save_every=STEPS,
        keep=1,
    )
    betas = (recorded["beta1"], recorded["beta2"])
    optim = OptimConfig(lr=recorded["lr"], warmup_steps=recorded["warmup_steps"], betas=betas)
    return Config(model=model, source=source, train=train, optim=optim, data=data)


def test_the_recorded_settings_give_the_published_model(curve):
    recorded, theirs = curve
    config = config_of(recorded["settings"], "data")
    assert config.model.encoder == "LLLG" and config.model.decoder == "FF"
    assert count_parameters(config.model) == recorded["n_params"]
    assert engine_config(config, 1, cuda=False)["gradient_clipping"] == recorded["settings"]["max_grad_norm"] == 0
    assert set(theirs) >= {300, 600, 1200}


def test_published_shards_become_a_dataset(shared, ranked):
    assert {split: ranked.rows(split) for split in ranked.splits} == {"train": 754, "valid": 70}
    row = next(ranked.read("valid"))
    first = torch.load(shards_of(shared) / "WIKI.valid.0.pt", weights_only=True)[0]
    bounds = zip(row["paragraph_offsets"], row["paragraph_offsets"][1:], strict=False)
    assert [row["ids"][start:end].tolist() for start, end in bounds] == first["src"]
    assert row["target_ids"].tolist() == first["tgt"]


@pytest.mark.long
@pytest.mark.timeout(7200)
def test_training_learns_as_fast_a_step_and_faster_a_second(curve, ranked, tmp_path):
    """Seconds are those of training alone, scaled by the rates measured before and after to those of the recording."""
    recorded, theirs = curve
    config = config_of(recorded["settings"], str(ranked.path))
    runs = [alone(train_seed, config, tmp_path / f"seed-{seed}", seed) for seed in SEEDS]
    print(f"\n{'step':>5} {'published':>9} {'loss':>6} {'lowest':>6} {'highest':>7} {'times as fast':>13}")
    for step in runs[0]["losses"]:
        losses = [run["losses"][step] for run in runs]
        faster = theirs[step]["seconds"] / mean(run["seconds"][step] for run in runs)
        print(f"{step:5} {theirs[step]['loss']:9.3f} {mean(losses):6.3f} {min(losses):6.3f} {max(losses):7.3f} {faster:13.2f}")  # fmt: skip  # noqa: E501
    assert mean(losses) - theirs[step]["loss"] < 0.1 and faster > 1


def train_seed(config: Config, folder: Path, seed: int) -> dict[str, Any]:
    """One training, in this process: ``losses``, and ``seconds`` at the rate of the recording, by step."""
    before = measure(THREADS, ["fp32"]).gflops["fp32"]
    seeded = config.train.model_copy(update={"seed": seed})
    run = fit(config.model_copy(update={"train": seeded, "out": str(folder)}))
    scale = mean((before, measure(THREADS, ["fp32"]).gflops["fp32"])) / RATE
    return {"losses": run.validations(), "seconds": {step: scale * spent for step, spent in seconds_of(run).items()}}


def seconds_of(run: Run) -> dict[int, float]:
    """Seconds of training up to each line of metrics.jsonl, validations and checkpoints left out."""
    found, seconds, tokens = {}, 0.0, 0
    for line in map(json.loads, run.metrics.read_text().splitlines()):
        if "tokens_per_s" in line:
            total = line["source_tokens"] + line["target_tokens"]
            seconds, tokens = seconds + (total - tokens) / line["tokens_per_s"], total
            found[line["step"]] = seconds
    return found
