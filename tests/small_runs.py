"""A run of a small PHT with random weights, that serves."""

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file

from raysum.config.sections import Config
from raysum.data.recipe import Recipe
from raysum.models.specs.family import FamilySpec
from raysum.runs.folder import Run
from raysum.systems import build
from raysum.tokenizers.sentence_piece import Vocabulary

TEXTS = [
    "Florence lies on the river Arno. It is the capital of Tuscany in the north of Italy.",
    "The cathedral of Florence was finished in the year 1436. Its dome is made of four million bricks.",
    "Rome lies on the river Tiber. It has been the capital of Italy since the year 1871.",
]

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
