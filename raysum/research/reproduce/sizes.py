"""What a system is like at each size: as in its paper, or small, with the paper's lengths scaled to the data."""

from collections.abc import Mapping
from dataclasses import dataclass
from math import ceil
from typing import Any

import numpy as np

from raysum.config.loading import load_config, merge
from raysum.config.sections import Config
from raysum.data.dataset import Dataset
from raysum.research.reproduce.systems import System

# The longest input in the papers: 3,000 tokens, or 40 paragraphs; and the most that the size small reads.
_TOKENS, _PARAGRAPHS = 3000, 40
_SMALL_TOKENS, _SMALL_PARAGRAPHS = 400, 10
_LENGTHS = {"max_tokens": "tokens", "source_tokens": "tokens", "block": "tokens", "segment": "tokens"}
_LENGTHS |= {"memory": "tokens", "max_paragraphs": "paragraphs", "source_paragraphs": "paragraphs"}
# Of the preset quickstart: all that is no layer, letter, position or copy gate of a model, and how it is trained.
_WIDTHS = {"width", "ffn", "heads", "pooling_heads", "norm", "tied_output"}
_WIDTHS |= {"dropout", "attention_dropout", "ffn_dropout"}
_TRAINING = ("label_smoothing", "validate_examples", "keep")
# A quarter of the quickstart's step: in half a minute so many more steps learn more (PHT on 240,000 tokens of the
# factbook: a validation loss of 2.70, and of 3.22 in steps of 4,000).
_FEW = {"micro_batches": 1, "batch_tokens": 1000}


@dataclass(frozen=True)
class Scale:
    """What is left of a token and of a paragraph of the papers' lengths, and how long targets are."""

    tokens: float = 1.0
    paragraphs: float = 1.0
    target: int | None = None  # tokens of a target in training; None: as the preset says

    @classmethod
    def of(cls, dataset: Dataset) -> "Scale":
        """So that what reads most in the papers reads all of 95 in 100 clusters here, within the limits of small."""
        tokens, paragraphs, targets = dataset.lengths("train").T
        most = [min(np.percentile(tokens, 95), _SMALL_TOKENS), min(np.percentile(paragraphs, 95), _SMALL_PARAGRAPHS)]
        target = int(np.percentile(targets[targets > 0], 99)) if targets.any() else 2
        return cls(min(float(most[0]) / _TOKENS, 1.0), min(float(most[1]) / _PARAGRAPHS, 1.0), max(target, 8))

    def length(self, name: str, paper: int) -> int:
        """The length called ``name``, which is ``paper`` in a paper."""
        return max(1, round(paper * getattr(self, _LENGTHS[name]))) if name in _LENGTHS else paper

    def paragraph_count(self, paper: int) -> int:
        return self.length("max_paragraphs", paper)

    def scaled(self, values: Mapping[str, Any]) -> dict[str, Any]:
        return {name: self.length(name, value) if isinstance(value, int) else value for name, value in values.items()}

    def __str__(self) -> str:
        if self.target is None:
            return "the papers' sizes and lengths"
        examples = ", ".join(f"{size} are {self.length('max_tokens', size)}" for size in (600, 800, 1200, 1600, 3000))
        paragraphs = ", ".join(f"{count} are {self.paragraph_count(count)}" for count in (24, 30, 40))
        return (
            f"the papers' layers, of width {load_config('quickstart').model.width}; lengths scaled to the data: of "
            f"tokens {examples}; of paragraphs {paragraphs}; layer norm, tied output, dropout and training as in the "
            "preset quickstart"
        )


def values_of(system: System, scale: Scale) -> tuple[str, dict[str, Any]]:
    """The preset of a system and the sections that are changed of it, steps and places left out."""
    if scale.target is None:
        return system.preset, {"model": system.model, "source": system.source}
    if system.small is not None:
        told = dict(system.small)
        return told.pop("preset"), told
    quick, paper = load_config("quickstart"), load_config(system.preset, (), {"source": system.source})
    own = paper.model.model_dump() | system.model
    widths = {name: value for name, value in quick.model.model_dump().items() if name in _WIDTHS and name in own}
    read = {name: getattr(paper.source, name) for name in ("max_paragraphs", "max_tokens")}
    return system.preset, {
        "model": scale.scaled({name: own[name] for name in ("block", "segment", "memory") if name in own})
        | widths
        | system.model,
        "source": scale.scaled(read) | {"target_tokens": scale.target},
        "decode": {
            "min_length": round(paper.decode.min_length * scale.target / paper.source.target_tokens),
            "max_length": min(paper.decode.max_length, ceil(1.25 * scale.target)),
        },
        "train": _FEW | {name: getattr(quick.train, name) for name in _TRAINING},
        "optim": quick.optim.model_dump(),
        "deepspeed": {"gradient_clipping": 1.0},
    }


def decoding(system: System, scale: Scale) -> dict[str, Any]:
    """Decoding settings for the run of another system."""
    return scale.scaled(system.decode)


def system_config(system: System, scale: Scale, more: Mapping[str, Any] | None = None) -> Config:
    """The checked config of its training, with ``more`` sections over it. Raises UserError where it is none."""
    preset, values = values_of(system, scale)
    return load_config(preset, (), merge(values, dict(more or {})))
