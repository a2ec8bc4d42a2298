"""The folder of a reproduction: its settings, datasets, runs, evaluations, tables; and the scale of its lengths."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np

from raysum.config.loading import load_config
from raysum.data.dataset import Dataset
from raysum.errors import UserError
from raysum.research.reproduce.tables import BASE, ReproduceConfig, System
from raysum.runs.folder import Run
from raysum.runtime.storage import check_vacant, read_json, write_json

_SETTINGS = "settings.json"
_PATHS = ("data", "open", "bert")
_FIXED = (*_PATHS, "minutes", "size")  # settings that all content of the folder shares
# The longest input in the papers: 3,000 tokens, or 40 paragraphs; and the most that the size small reads.
_TOKENS, _PARAGRAPHS = 3000, 40
_SMALL_TOKENS, _SMALL_PARAGRAPHS = 400, 10
_LENGTHS = dict.fromkeys(("max_tokens", "source_tokens", "block", "segment", "memory"), "tokens")
_LENGTHS |= dict.fromkeys(("max_paragraphs", "source_paragraphs"), "paragraphs")


@dataclass(frozen=True)
class Scale:
    """The factors of the papers' lengths in tokens and in paragraphs, and the length of targets."""

    tokens: float = 1.0
    paragraphs: float = 1.0
    target: int | None = None  # tokens of a target in training; None: as in the preset

    @classmethod
    def of(cls, dataset: Dataset) -> "Scale":
        """Return the scale by which the longest input of the papers is all of 95 in 100 clusters, within limits."""
        tokens, paragraphs, targets = dataset.lengths("train").T
        most = [min(np.percentile(tokens, 95), _SMALL_TOKENS), min(np.percentile(paragraphs, 95), _SMALL_PARAGRAPHS)]
        target = int(np.percentile(targets[targets > 0], 99)) if targets.any() else 2
        return cls(min(float(most[0]) / _TOKENS, 1.0), min(float(most[1]) / _PARAGRAPHS, 1.0), max(target, 8))

    def length(self, name: str, paper: int) -> int:
        """Return the length called ``name``, which is ``paper`` in a paper."""
        return max(1, round(paper * getattr(self, _LENGTHS[name]))) if name in _LENGTHS else paper

    def scaled(self, values: Mapping[str, Any]) -> dict[str, Any]:
        return {name: self.length(name, value) if isinstance(value, int) else value for name, value in values.items()}

    def __str__(self) -> str:
        if self.target is None:
            return "the papers' sizes and lengths"
        examples = ", ".join(f"{size} are {self.length('max_tokens', size)}" for size in (600, 800, 1200, 1600, 3000))
        paragraphs = ", ".join(f"{count} are {self.length('max_paragraphs', count)}" for count in (24, 30, 40))
        return (
            f"the papers' layers, of width {load_config('quickstart').model.width}; lengths scaled to the data: of "
            f"tokens {examples}; of paragraphs {paragraphs}; layer norm, tied output, dropout and training as in the "
            "preset quickstart"
        )


@dataclass(frozen=True)
class Workspace:
    config: ReproduceConfig

    @property
    def out(self) -> Path:
        return Path(self.config.out).expanduser().absolute()

    def claim(self, size: int) -> None:
        """Write the settings and the ``size`` of the raw data in bytes, or compare them with those in the folder.

        Raises UserError if the folder has other files, or a reproduction with other settings.
        """
        wanted = {name: getattr(self.config, name) for name in _FIXED}
        wanted |= {name: str(Path(path).expanduser().absolute()) for name in _PATHS if (path := wanted[name])}
        wanted |= {"bytes": size}
        if not (self.out / _SETTINGS).is_file():
            check_vacant(self.out)
            write_json(self.out / _SETTINGS, wanted)
        known: dict[str, Any] = read_json(self.out / _SETTINGS)
        for name in wanted:
            if known.get(name) != wanted[name]:
                previous = "other data" if name == "bytes" else f"{name}={known.get(name)}, not {wanted[name]}"
                raise UserError(f"{self.out} was made with {previous}; use that again, or choose another out=")

    def data(self, name: str) -> Path:
        return self.out / "data" / name

    def run(self, name: str) -> Run:
        return Run(self.out / "runs" / name)

    def trained(self, name: str) -> Path:
        """Return the file with the seconds, steps and loss of a finished run."""
        return self.out / "runs" / f"{name}.json"

    def table(self, name: str, suffix: str) -> Path:
        return self.out / "tables" / f"{name}{suffix}"

    @cached_property
    def scale(self) -> Scale:
        """The scale of the lengths, by the dataset ``BASE``."""
        return Scale() if self.config.size == "paper" else Scale.of(Dataset.open(self.data(BASE)))

    def lacks(self, system: System) -> str:
        """Return the setting that a system needs and that is missing, or an empty string."""
        if system.name != "bert":
            return ""
        if not find_spec("transformers"):
            return 'pip install -c constraints.txt ".[bert]"'
        return "bert=FOLDER" if self.config.size == "paper" and self.config.bert is None else ""
