"""How importers say where a parameter comes from: our name, and the published arrays that stand in it, stacked."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from pydantic import ValidationError
from torch import Tensor

from raysum.errors import UserError
from raysum.models.specs.family import FamilySpec

Arrays = Mapping[str, np.ndarray]
Names = dict[str, list[str]]


@dataclass(frozen=True)
class Published:
    """A published model: its architecture, its weights under our names, and the step they were saved at (0: unknown).

    ``source`` are the keys of a config's section of that name which the checkpoint tells.
    """

    spec: FamilySpec
    weights: dict[str, Tensor]
    step: int
    source: dict[str, int]


def read(arrays: Arrays, names: Names, transpose: str | None = None) -> dict[str, Tensor]:
    """Our state dict: published arrays one above the other, those whose name ends in ``transpose`` turned first."""

    def array(name: str) -> np.ndarray:
        return arrays[name].T if transpose and name.endswith(transpose) else arrays[name]

    return {ours: torch.from_numpy(np.concatenate([array(name) for name in theirs])) for ours, theirs in names.items()}


def count_layers(arrays: Arrays, prefix: str) -> int:
    """Layers numbered from 0 right behind ``prefix``. Raises KeyError where there is none."""
    found = (re.match(r"\d+", name.removeprefix(prefix)) for name in arrays if name.startswith(prefix))
    numbers = [int(number[0]) for number in found if number]
    if not numbers:
        raise KeyError(f"{prefix}0")
    return 1 + max(numbers)


def step_in_name(path: Path, pattern: str) -> int:
    """The number that ``pattern`` captures in the name of a file; 0 where it is not there."""
    found = re.search(pattern, path.name)
    return int(found[1]) if found else 0


def misfit(path: Path, code: str, error: Exception) -> UserError:
    """What to tell where ``spec_of`` or ``convert`` fail: a name is missing, or sizes fit no spec."""
    if isinstance(error, KeyError):
        reason = f"it lacks {error}"
    elif isinstance(error, ValidationError):
        reason = "; ".join(problem["msg"].removeprefix("Value error, ") for problem in error.errors())
    else:
        reason = str(error)
    return UserError(f"{path} does not fit what {code} writes: {reason}")
