"""A folder of published weights, as transformers saves it: JSON files and tensors. No code in it is run."""

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


def read_config_json(folder: Path, name: str) -> dict[str, Any]:
    """Return the object in a file of the folder. Raises UserError if it is missing or damaged."""
    path = folder / name
    try:
        value = json.loads(path.read_text())
    except (FileNotFoundError, NotADirectoryError):
        raise UserError(f"{folder} has no {name}: name a folder that save_pretrained() wrote") from None
    except (OSError, ValueError, RecursionError) as error:
        raise UserError(f"{path} cannot be read ({error}): copy it again") from None
    if not isinstance(value, dict):
        raise UserError(f"{path} is not a JSON object: copy it again")
    return value


def read_arrays(folder: Path) -> dict[str, np.ndarray]:
    """Return the tensors of the folder in float32. Raises UserError if they are missing or damaged."""
    name = next((name for name in _WEIGHTS if (folder / name).is_file()), None)
    if name is None:
        raise UserError(f"{folder} has no weights: it needs one of {', '.join(_WEIGHTS)}")
    parts = [folder / name]
    if name.endswith(".json"):
        files = read_config_json(folder, name).get("weight_map")
        if not isinstance(files, Mapping) or not all(_is_file_name(file) for file in files.values()):
            raise UserError(f"{folder / name} does not name the files of its tensors: copy it again")
        parts = [folder / file for file in dict.fromkeys(files.values())]
        if missing := [part.name for part in parts if not part.is_file()]:
            raise UserError(f"{folder} lacks {missing[0]}, which {name} lists: download it")
    return {tensor: array for part in parts for tensor, array in _read(part)}


def _is_file_name(name: Any) -> bool:
    """Return whether ``name`` is a printable file name without a folder."""
    return isinstance(name, str) and name.isprintable() and Path(name).name == name != ".."


def _read(path: Path) -> Iterator[tuple[str, np.ndarray]]:
    if path.suffix != ".safetensors":
        yield from read_tensors(path).items()
        return
    with open_tensors(path) as file:
        for name in file.keys():  # noqa: SIM118
            yield name, array_of(name, file.get_tensor(name), path)


def untied(arrays: Arrays, needs_head: bool) -> Arrays:
    """Return ``arrays`` with each distinct embedding matrix once.

    It is ``SHARED``, or ``SOURCE`` and ``TARGET`` if these differ, and ``HEAD`` if it differs from the target's. The
    tensors decide what is tied, because versions of transformers interpret ``tie_word_embeddings`` differently; a
    file has a tied matrix under one of its names or under several. Raises KeyError if it has none, or no ``HEAD``
    although the output layer ``needs_head``.
    """
    rest = dict(arrays)
    matrices = [rest.pop(name, None) for name in (SHARED, SOURCE, TARGET, HEAD)]
    shared = next((matrix for matrix in matrices if matrix is not None), None)
    if shared is None or (needs_head and matrices[-1] is None):
        raise KeyError(SHARED if shared is None else HEAD)
    source, target, head = (shared if matrix is None else matrix for matrix in matrices[1:])
    rest |= {SHARED: target} if _is_same(source, target) else {SOURCE: source, TARGET: target}
    return rest if _is_same(head, target) else rest | {HEAD: head}


def vocabulary_size(arrays: Arrays) -> int:
    """Return the vocabulary size."""
    return len(arrays[SHARED] if SHARED in arrays else arrays[TARGET])


def _is_same(matrix: np.ndarray, other: np.ndarray) -> bool:
    return matrix is other or np.array_equal(matrix, other)
