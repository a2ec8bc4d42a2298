"""How importers say where a parameter comes from: our name, and the published arrays that stand in it, stacked."""

import re
from collections.abc import Mapping

import numpy as np
import torch
from torch import Tensor

Arrays = Mapping[str, np.ndarray]
Names = dict[str, list[str]]


def read(arrays: Arrays, names: Names, transpose: str | None = None) -> dict[str, Tensor]:
    """Our state dict: published arrays one above the other, those whose name ends in ``transpose`` turned first."""

    def array(name: str) -> np.ndarray:
        return arrays[name].T if transpose and name.endswith(transpose) else arrays[name]

    return {ours: torch.from_numpy(np.concatenate([array(name) for name in theirs])) for ours, theirs in names.items()}


def count_layers(arrays: Arrays, prefix: str) -> int:
    """Layers numbered from 0 right behind ``prefix``."""
    numbers = (re.match(r"\d+", name.removeprefix(prefix)) for name in arrays if name.startswith(prefix))
    return 1 + max(int(number[0]) for number in numbers if number)
