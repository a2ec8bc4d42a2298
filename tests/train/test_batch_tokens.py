"""The memory of a training: predicted activations, and micro-batches that fill what is free."""

import json
import subprocess
import sys

import pytest
import torch

from helpers.small_datasets import write_dataset
from helpers.small_trainings import config, losses, trained
from raysum.config.sections import Config
from raysum.errors import UserError
from raysum.runtime.compat import peak_memory
from raysum.train import memory
from raysum.train.fit import train
from raysum.train.memory import activations, fitting_tokens, memory_line, memory_plans, model_size

SMALL = {"width": 16, "ffn": 32, "heads": 2, "pooling_heads": 2, "encoder": "LG", "decoder": "FP"}
MEDIUM = {"width": 128, "ffn": 512, "heads": 8, "pooling_heads": 8, "vocabulary": 4000}
EXAMPLES = 4
MEASURE = """
import json, sys
import psutil, torch
from raysum import systems
from raysum.config.sections import Config
from raysum.models.kernels.recomputation import recompute_layers
from raysum.runtime.processes import peak_rss_mb
from raysum.stream.random_rows import batch_of


def train(config, examples):
    batch = batch_of(config, examples, config.source.target_tokens - 1)
    model = systems.build(config.model)
    if config.train.recompute:
        recompute_layers(model)
    objective = systems.objective(config.model, model, 0.1).train()
    optimizer = torch.optim.AdamW(objective.parameters())
    for _ in range(2):
        optimizer.zero_grad()
        objective(batch).backward()
        optimizer.step()

torch.set_num_threads(1)
sections = json.loads(sys.argv[1])
train(Config(model=sections["model"], source={"max_paragraphs": 2, "target_tokens": 9}), 1)  # loads all modules
before = psutil.Process().memory_info().rss
train(Config(**sections), int(sys.argv[2]))
print(int(peak_rss_mb() * (1 << 20)) - before)  # ru_maxrss would include the parent's memory
"""


def test_the_peak_counts_what_exists_at_once():
    known = torch.zeros(100)
    with peak_memory([known]) as peak:
        view = known[:50]
        first = torch.zeros(1000) + 1  # two arrays, one of which ends
        del first
        second = view + torch.zeros(50)
    assert peak.most == 2 * 4000 and peak.now == second.nbytes


@pytest.mark.slow
@pytest.mark.parametrize(
    ("mix", "recompute"),
    [("LLG/PPF", False), ("LL/PP", True), pytest.param("L/VV", False, marks=pytest.mark.long)],
)
def test_the_prediction_is_what_a_process_needs(mix, recompute):
    encoder, decoder = mix.split("/")
    sections = {
        "model": MEDIUM | {"encoder": encoder, "decoder": decoder},
        "source": {"max_paragraphs": 24, "paragraph_tokens": 100, "target_tokens": 140},
        "train": {"recompute": recompute},
    }
    settings = Config(**sections)
    fixed, per_token, tokens = memory_line(settings)
    predicted = fixed + per_token * tokens * EXAMPLES
    command = [sys.executable, "-c", MEASURE, json.dumps(sections), str(EXAMPLES)]
    measured = int(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
    print(f"{mix}: predicted {predicted / 1e6:.0f} MB, measured {measured / 1e6:.0f} MB")
    assert 1 / 1.5 < predicted / measured < 1.5


def free(monkeypatch, settings: Config, more: float) -> None:
    """Let there be so much memory that states fit, and ``more`` bytes of activations."""
    states = memory_plans(model_size(settings), 1, has_gpu=False)[0].device
    monkeypatch.setattr(memory, "available_memory", lambda: (states + more) / 0.5)


def test_chosen_tokens_fill_the_memory_and_none_is_an_error(monkeypatch):
    settings = Config(model=SMALL | {"vocabulary": 200}, train={"workers": 0, "batch_tokens": "auto"})
    (few, least), (many, most) = (activations(settings, examples) for examples in (2, 8))
    free(monkeypatch, settings, most)
    assert fitting_tokens(settings) == pytest.approx(many, rel=0.05)
    free(monkeypatch, settings, least / 100)
    with pytest.raises(UserError, match="not even one example fits into the memory"):
        fitting_tokens(settings)


def test_a_model_that_needs_values_is_refused():
    settings = Config(model={"system": "hibert", "vocabulary": 200}, train={"batch_tokens": "auto"})
    with pytest.raises(UserError, match="auto cannot measure a hibert: set a number"):
        activations(settings, 2)


def test_a_training_resumes_with_the_number_that_was_chosen(tmp_path, monkeypatch):
    data = write_dataset(tmp_path / "data", {"train": 60})
    auto = {"train": {"batch_tokens": "auto"}}
    few = activations(config(data, tmp_path / "run", 2, SMALL | {"vocabulary": 200}, **auto), 2)[1]
    monkeypatch.setattr(memory, "available_memory", lambda: 2 * few)
    run = trained(data, tmp_path / "run", 2, SMALL, **auto)
    tokens = run.config.train.batch_tokens
    assert isinstance(tokens, int) and tokens != 8000
    monkeypatch.setattr(memory, "available_memory", lambda: 20 * few)
    run = trained(data, tmp_path / "run", 4, SMALL, **auto)
    assert run.config.train.batch_tokens == tokens and len(losses(run)) == 4
    whole = trained(data, tmp_path / "whole", 4, SMALL, train={"batch_tokens": tokens})
    assert losses(whole) == losses(run)


def test_it_is_refused_before_attention_is_labelled(tmp_path):
    write_dataset(tmp_path / "data", {"train": 8})
    run = trained(tmp_path / "data", tmp_path / "run", 1, SMALL)
    with pytest.raises(UserError, match="auto cannot measure a predictor"):
        train("alignment", data=str(tmp_path / "data"), run=str(run.path), train={"workers": 0, "batch_tokens": "auto"})
    assert not run.alignment.path.exists()
