"""A folder of published weights as transformers saves it: its JSON files and its tensors. Nothing in it is run."""

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from raysum.errors import UserError
from raysum.importing.mapping import Arrays
from raysum.importing.torch_file import array_of, read_tensors
from raysum.runtime.storage import open_tensors

SHARED = "shared.weight"
SOURCE, TARGET = "encoder.embed_tokens.weight", "decoder.embed_tokens.weight"
HEAD = "lm_head.weight"
_WEIGHTS = ("model.safetensors", "model.safetensors.index.json", "pytorch_model.bin", "pytorch_model.bin.index.json")


def read_json(folder: Path, name: str) -> dict[str, Any]:
    """The object in a file of the folder. Raises UserError."""
    path = folder / name
    try:
        found = json.loads(path.read_text())
    except (FileNotFoundError, NotADirectoryError):
        raise UserError(f"{folder} has no {name}; name a folder that save_pretrained() wrote") from None
    except (OSError, ValueError, RecursionError) as error:
        raise UserError(f"{path} does not read ({error}); copy it again") from None
    if not isinstance(found, dict):
        raise UserError(f"{path} holds no JSON object; copy it again")
    return found


def read_arrays(folder: Path) -> dict[str, np.ndarray]:
    """The tensors of the folder in float32. Raises UserError where there are none, or they are damaged."""
    name = next((name for name in _WEIGHTS if (folder / name).is_file()), None)
    if name is None:
        raise UserError(f"{folder} has no weights that are read, which are {', '.join(_WEIGHTS)}")
    parts = [folder / name]
    if name.endswith(".json"):
        places = read_json(folder, name).get("weight_map")
        if not isinstance(places, Mapping) or not all(_plain(part) for part in places.values()):
            raise UserError(f"{folder / name} tells no files of its tensors; copy it again")
        parts = [folder / part for part in dict.fromkeys(places.values())]
        if missing := [part.name for part in parts if not part.is_file()]:
            raise UserError(f"{folder} lacks {missing[0]}, which {name} tells of; download it, too")
    return {tensor: array for part in parts for tensor, array in _read(part)}


def _plain(name: Any) -> bool:
    return isinstance(name, str) and name.isprintable() and Path(name).name == name != ".."


def _read(path: Path) -> Iterator[tuple[str, np.ndarray]]:
    if path.suffix != ".safetensors":
        yield from read_tensors(path).items()
        return
    with open_tensors(path) as file:
        for name in file.keys():  # noqa: SIM118
            yield name, array_of(name, file.get_tensor(name), path)


def untied(arrays: Arrays, needs_head: bool) -> Arrays:
    """Return ``arrays`` with each different matrix of tokens once: ``SHARED``, or ``SOURCE`` and ``TARGET`` where these
    differ, and ``HEAD`` where it differs from the target's.

    The tensors decide what is tied, because versions of transformers read ``tie_word_embeddings`` differently; a file
    has a tied matrix under one of its names or under several. Raises KeyError if it has none, or lacks ``HEAD`` where
    the output layer ``needs_head``.
    """
    found = dict(arrays)
    named = [found.pop(name, None) for name in (SHARED, SOURCE, TARGET, HEAD)]
    shared = next((one for one in named if one is not None), None)
    if shared is None or (needs_head and named[-1] is None):
        raise KeyError(SHARED if shared is None else HEAD)
    source, target, head = (shared if one is None else one for one in named[1:])
    found |= {SHARED: target} if _same(source, target) else {SOURCE: source, TARGET: target}
    return found if _same(head, target) else found | {HEAD: head}


def rows(arrays: Arrays) -> int:
    """Return the vocabulary size."""
    return len(arrays[SHARED] if SHARED in arrays else arrays[TARGET])


def _same(one: np.ndarray, other: np.ndarray) -> bool:
    return one is other or np.array_equal(one, other)
