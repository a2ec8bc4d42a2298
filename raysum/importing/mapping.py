"""Map published weights to our parameters with a table of names, ``CODE.yaml``."""

import re
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
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
from raysum.models.family.spec import FamilySpec

Arrays = Mapping[str, np.ndarray]
# A section of the table, and the prefixes of our names and of the published ones there. The parameters of several
# published prefixes, separated by spaces, are stacked vertically in ours.
Part = tuple[str, str, str]


@dataclass(frozen=True)
class PublishedModel:
    """A published model."""

    spec: FamilySpec
    weights: dict[str, Tensor]  # by our names
    step: int  # of the training; 0 = unknown
    source: dict[str, int]  # settings of the config's section ``source``


def layer_parts(spec: FamilySpec, encoder: str, decoder: str) -> list[Part]:
    """Return the parts of all layers, by letter. In published names ``encoder`` and ``decoder`` precede the number."""
    parts = []
    for ours, mix, theirs in (("encoder", spec.encoder, encoder), ("decoder", spec.decoder, decoder)):
        parts += [(letter, f"{ours}.{n}.", f"{theirs}{n}{theirs[-1]}") for n, letter in enumerate(mix)]
    return parts


def map_weights(arrays: Arrays, code: str, parts: Iterable[Part], spare: Iterable[str] = ()) -> dict[str, Tensor]:
    """Return our state dict from the arrays of ``code``; its kernels, inputs by outputs, are transposed.

    Raises KeyError if an array is missing, and ValueError if one is unknown and not ``spare``, or contains values
    that are not finite.
    """
    state, unknown = {}, arrays.keys() - set(spare)
    for name, published in name_pairs(code, parts):
        matrices = [arrays[key].T if key.endswith("/kernel") else arrays[key] for key in published]
        if len({array.shape[1:] for array in matrices}) > 1 or not all(array.ndim for array in matrices):
            raise ValueError(f"the shapes of {' and '.join(published)} do not fit together")
        state[name] = torch.from_numpy(np.concatenate(matrices))
        unknown -= set(published)
    broken = [name for name, array in arrays.items() if not np.isfinite(array).all()]
    if broken:
        raise ValueError(f"{broken[0]} contains values that are not finite, because its training diverged")
    if unknown:
        raise ValueError(f"its parameter {min(unknown)} does not exist in the model")
    return state


def name_pairs(code: str, parts: Iterable[Part]) -> Iterator[tuple[str, list[str]]]:
    """Yield each of our parameters with the published ones that it contains, stacked vertically."""
    table = yaml.safe_load((resources.files("raysum.importing") / f"{code}.yaml").read_text())
    for section, ours, theirs in parts:
        for name, published in _entries(table[section]):
            endings = table["norms" if "norm." in name else "layers"] if "*" in name else [""]
            for ending, published_ending in zip(("weight", "bias"), endings, strict=False):  # T5 has no bias
                ends = [end.replace("*", published_ending) for end in published.split()]
                names = [prefix + end for prefix in theirs.split() or [""] for end in ends]
                yield ours + name.replace("*", ending), names


def _entries(section: Mapping[str, Any], before: str = "") -> Iterator[tuple[str, str]]:
    for name, value in section.items():
        if isinstance(value, str):
            yield before + name, value
        else:
            yield from _entries(value, f"{before}{name}.")


def count_layers(arrays: Arrays, prefix: str) -> int:
    """Return the number of layers, which are numbered from 0 after ``prefix``. Raises KeyError if there is none."""
    matches = (re.match(r"\d+", name.removeprefix(prefix)) for name in arrays if name.startswith(prefix))
    numbers = [int(match[0]) for match in matches if match]
    if not numbers:
        raise KeyError(f"{prefix}0")
    return 1 + max(numbers)


def step_in_name(path: Path, pattern: str) -> int:
    """Return the number that ``pattern`` captures in a file name, or 0."""
    match = re.search(pattern, path.name)
    return int(match[1]) if match else 0


@contextmanager
def converting(path: Path, code: str) -> Iterator[None]:
    """Raise UserError for an error in the block, such as a missing name, or sizes that fit no specification."""
    try:
        yield
        return
    except UserError:
        raise
    except KeyError as error:
        reason = f"it lacks {error}"
    except ValidationError as error:
        problems = ((*part["loc"], part["msg"].removeprefix("Value error, ")) for part in error.errors())
        reason = "; ".join(": ".join(map(str, words)) for words in problems)
    except (LookupError, ValueError, TypeError, RuntimeError) as error:
        reason = str(error)
    raise UserError(f"{path} is not a checkpoint of {code} that raysum can import: {reason}") from None
