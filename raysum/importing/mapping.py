"""How importers move weights: by a table of our parameters and the published ones that stand in them, ``CODE.yaml``."""

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Any

import numpy as np
import torch
import yaml
from pydantic import ValidationError
from torch import Tensor

from raysum.errors import UserError
from raysum.models.specs.family import FamilySpec

Arrays = Mapping[str, np.ndarray]
# A section of the table, and the prefixes of our names and of the published ones there; of several published prefixes,
# with spaces between them, the parameters stand in ours one above the other.
Part = tuple[str, str, str]


@dataclass(frozen=True)
class Published:
    """A published model."""

    spec: FamilySpec
    weights: dict[str, Tensor]  # by our names
    step: int  # that they were saved at; 0: unknown
    source: dict[str, int]  # what the checkpoint tells of the config's section of that name


def layer_parts(spec: FamilySpec, encoder: str, decoder: str) -> list[Part]:
    """The layers, by letter; ``encoder`` and ``decoder`` are what stands before their numbers in published names."""
    parts = []
    for ours, mix, theirs in (("encoder", spec.encoder, encoder), ("decoder", spec.decoder, decoder)):
        parts += [(letter, f"{ours}.{n}.", f"{theirs}{n}{theirs[-1]}") for n, letter in enumerate(mix)]
    return parts


def read(arrays: Arrays, code: str, parts: Iterable[Part], spare: Iterable[str] = ()) -> dict[str, Tensor]:
    """Our state dict, from the arrays of ``code``; its kernels, inputs by outputs, are turned.

    Raises KeyError where an array is missing, and ValueError where one has no place here and is not ``spare``, or
    holds what is no finite number.
    """
    state, unknown = {}, arrays.keys() - set(spare)
    for name, found in names(code, parts):
        turned = [arrays[one].T if one.endswith("/kernel") else arrays[one] for one in found]
        if len({array.shape[1:] for array in turned}) > 1 or not all(array.ndim for array in turned):
            raise ValueError(f"the shapes of {' and '.join(found)} do not go together")
        state[name] = torch.from_numpy(np.concatenate(turned))
        unknown -= set(found)
    broken = [name for name, array in arrays.items() if not np.isfinite(array).all()]
    if broken:
        raise ValueError(f"{broken[0]} holds values that are no finite numbers; its training diverged")
    if unknown:
        raise ValueError(f"it has {min(unknown)}, for which there is no place in the model")
    return state


def names(code: str, parts: Iterable[Part]) -> Iterator[tuple[str, list[str]]]:
    """Each of our parameters, and the published ones that stand in it, one above the other."""
    table = yaml.safe_load((resources.files("raysum.importing") / f"{code}.yaml").read_text())
    for section, ours, theirs in parts:
        for name, published in _entries(table[section]):
            endings = table["norms" if "norm." in name else "layers"] if "*" in name else [""]
            for ending, published_ending in zip(("weight", "bias"), endings, strict=False):  # T5 has no bias
                ends = [one.replace("*", published_ending) for one in published.split()]
                found = [prefix + end for prefix in theirs.split() or [""] for end in ends]
                yield ours + name.replace("*", ending), found


def _entries(section: Mapping[str, Any], before: str = "") -> Iterator[tuple[str, str]]:
    for name, value in section.items():
        if isinstance(value, str):
            yield before + name, value
        else:
            yield from _entries(value, f"{before}{name}.")


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
    """What to tell where ``convert`` fails: a name is missing, or sizes fit no spec."""
    if isinstance(error, KeyError):
        reason = f"it lacks {error}"
    elif isinstance(error, ValidationError):
        problems = ((*one["loc"], one["msg"].removeprefix("Value error, ")) for one in error.errors())
        reason = "; ".join(": ".join(map(str, words)) for words in problems)
    else:
        reason = str(error)
    return UserError(f"{path} does not fit what {code} writes: {reason}")
