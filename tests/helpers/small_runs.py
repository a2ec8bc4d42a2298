"""Small runs with random weights."""

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file

from raysum.config.decoding import DecodeConfig
from raysum.config.sections import Config
from raysum.data.recipe import Recipe
from raysum.models.family.spec import FamilySpec
from raysum.models.systems.specs import HibertSpec, PredictorSpec, RankerSpec, TdmcaSpec
from raysum.runs.folder import Run
from raysum.systems import build
from raysum.tokenizers.loading import load_tokenizer
from raysum.tokenizers.sentence_piece import Vocabulary

TEXTS = [
    "Florence lies on the river Arno. It is the capital of Tuscany in the north of Italy.",
    "The cathedral of Florence was finished in the year 1436. Its dome is made of four million bricks.",
    "Rome lies on the river Tiber. It has been the capital of Italy since the year 1871.",
]

TRAINING = {
    "model": {"width": 32, "ffn": 64, "heads": 2, "pooling_heads": 2, "encoder": "L", "decoder": "P"},
    "train": {"batch_tokens": 200, "micro_batches": 4, "threads": 1, "log_every": 1, "save_every": 10},
    "optim": {"lr": 0.01, "schedule": "constant", "warmup_steps": 0},
}

_OF_TIME = {"tokens_per_s", "wait_share", "seconds", "peak_rss_mb", "valid_seconds"}


def without_times(lines: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    """Lines of metrics.jsonl, whose times are 0: what repeats when a training is repeated."""
    return [{name: 0 if name in _OF_TIME else value for name, value in line.items()} for line in lines]


_DECODE = {"min_length": 20, "max_length": 30, "batch_examples": 4}


def write_run(folder: Path, decode: Mapping[str, Any] = _DECODE, **sizes: Any) -> Path:
    """The run ``folder / "tiny"`` at step 3, decoding as ``decode`` says, its model of ``sizes``.

    By default up to 30 tokens a summary, 4 examples decoded together.
    """
    vocabulary = Vocabulary.train(TEXTS, 100, folder / "vocabulary.model")
    small = {"encoder": "LL", "decoder": "P", "width": 16, "heads": 2, "pooling_heads": 2, "ffn": 32}
    spec = FamilySpec.model_validate({**small, **sizes, "vocabulary": len(vocabulary)})
    config = Config.model_validate({"model": spec, "decode": decode})
    run = Run(folder / "tiny")
    recipe = Recipe(vocabulary_sha256=vocabulary.sha256)
    run.create(config, recipe.model_dump(mode="json"), folder / "vocabulary.model")
    torch.manual_seed(0)
    checkpoint = run.checkpoint_path(3)
    checkpoint.mkdir()
    save_file(build(spec).state_dict(), checkpoint / "weights.safetensors")
    return run.path


DOCUMENTS = [
    "The old mill by the river was built in 1820.\n\nShort.\nIts wheel still turns, and visitors come every summer.",
    {
        "source": "gazette",
        "text": "A fire in the town hall destroyed the records of the parish in 1911, but nobody died.",
    },
    "Sheep, cattle and barley have been the living of the valley for many years.\nThe inn is the oldest one.",
]


def write_random_run(
    path: Path, vocabulary: Path, spec: FamilySpec | PredictorSpec | RankerSpec | TdmcaSpec, seed: int
) -> None:
    """Write a run of ``spec`` with random weights of standard deviation 0.1, so that beams and paragraphs differ."""
    torch.manual_seed(seed)
    model = build(spec)
    for parameter in model.parameters():
        if parameter.dim() > 1:
            torch.nn.init.normal_(parameter, std=0.1)
    run = Run(path)
    recipe = Recipe(paragraph_tokens=40, max_paragraphs=8, vocabulary_sha256=load_tokenizer(vocabulary).sha256)
    decode = DecodeConfig(num_beams=3, max_length=24, batch_examples=4)
    run.create(Config(model=spec, decode=decode), recipe.model_dump(), vocabulary)
    run.checkpoint_path(1).mkdir()
    save_file(model.state_dict(), run.checkpoint_path(1) / "weights.safetensors")


_LABELLER = {"width": 16, "ffn": 32, "heads": 2, "layers": 1}


def write_labeller(path: Path, dataset, task: str, **sizes: int) -> None:
    """Write a run of a small HIBERT for ``task`` with the vocabulary of ``dataset``."""
    pieces = len(load_tokenizer(dataset.vocabulary_path))
    spec, run = HibertSpec(**{**_LABELLER, **sizes}, vocabulary=pieces, task=task), Run(path)
    torch.manual_seed(1)
    run.create(Config(model=spec), dataset.recipe.model_dump(), dataset.vocabulary_path)
    run.add_weights(1, build(spec).state_dict(), {"data": dataset.fingerprint})
