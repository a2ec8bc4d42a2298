"""Read PyTorch checkpoints of other codes without running code in them."""

import argparse
import gzip
import pickle
import re
import shutil
import tempfile
import warnings
import zipfile
import zlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.serialization import safe_globals

from raysum.errors import UserError
from raysum.runtime.storage import check_regular

_GLOBAL = re.compile(r"GLOBAL (\S+)")


def read_checkpoint(path: Path, is_needed: Callable[[str], bool]) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
    """Return the ``is_needed`` tensors of the file's ``model`` in float32, and its ``opt`` as a mapping.

    ``opt`` is an argparse namespace. Other tensors and the optimizer's state do not fill memory, except in files of
    PyTorch before 1.6, which are read as a whole. ``path`` may be gzipped. Raises UserError if it is missing,
    damaged, of another format, or contains Python objects other than tensors and the namespace.
    """
    with _unpacked(path) as plain:
        checkpoint = _load(plain, path)
        model, options = map(checkpoint.get, ("model", "opt")) if isinstance(checkpoint, Mapping) else (None, None)
        options = vars(options) if isinstance(options, argparse.Namespace) else options
        if not isinstance(model, Mapping) or not isinstance(options, Mapping):
            raise UserError(f"{path} is not a hiersumm checkpoint, which is a mapping with the keys 'model' and 'opt'")
        tensors = {str(name): value for name, value in model.items() if is_needed(str(name))}
        return {name: array_of(name, value, path) for name, value in tensors.items()}, dict(options)


def read_tensors(path: Path) -> dict[str, np.ndarray]:
    """Return all tensors of a file that maps names to them, in float32.

    Raises UserError as :func:`read_checkpoint` does.
    """
    with _unpacked(path) as plain:
        tensors = _load(plain, path)
        if not isinstance(tensors, Mapping):
            raise UserError(f"{path} is not a mapping of names to tensors")
        return {str(name): array_of(name, value, path) for name, value in tensors.items()}


def array_of(name: Any, value: Any, path: Path) -> np.ndarray:
    """Return a copy of ``value`` in float32, which does not need the file any more.

    Raises UserError if it is not a dense tensor of real numbers, or repeats its numbers, by which a small file could
    fill memory.
    """
    kind: Any = type(value).__name__
    if isinstance(value, Tensor):
        if not value.is_meta and value.layout == torch.strided and value.is_floating_point():
            if value.nbytes > value.untyped_storage().nbytes():
                raise UserError(f"{path} contains fewer numbers than {name} has: save contiguous tensors")
            return value.detach().float().numpy().copy()
        kind = "a tensor without values" if value.is_meta else f"a tensor of {value.dtype}, {value.layout}"
    raise UserError(f"{path} contains {kind} in {name}: save dense tensors of real numbers")


def _load(plain: Path, path: Path) -> Any:
    mapped = zipfile.is_zipfile(plain)
    if mapped:  # PyTorch does not check tensors that it maps into memory
        try:
            with zipfile.ZipFile(plain) as archive:
                compressed = (info.filename for info in archive.infolist() if info.compress_type != zipfile.ZIP_STORED)
                # PyTorch never compresses, and a small file could expand to fill memory.
                bad = next(compressed, None) or archive.testzip()
        except (zipfile.BadZipFile, NotImplementedError, zlib.error, EOFError):
            bad = "its table of contents"
        if bad:
            raise UserError(f"{path} is damaged: the checksum of {bad} differs; copy the checkpoint again")
    try:
        with safe_globals([argparse.Namespace]), warnings.catch_warnings():
            warnings.simplefilter("ignore")  # about the file's content
            return torch.load(plain, map_location="cpu", weights_only=True, mmap=mapped)
    except Exception as error:  # damaged bytes can cause any error in the unpickler
        match = _GLOBAL.search(str(error)) if isinstance(error, pickle.UnpicklingError) else None
        if match:
            raise UserError(
                f"{path} refers to {match[1].rstrip('.')}, which may run code and which no checkpoint needs: "
                "get the checkpoint from another source"
            ) from None
        raise UserError(f"{path} is not a PyTorch checkpoint, or is damaged: copy it again") from None


@contextmanager
def _unpacked(path: Path) -> Iterator[Path]:
    """Yield ``path``, or a temporary file with its content if it is gzipped."""
    try:
        check_regular(path)
        with path.open("rb") as file:
            is_gzipped = file.read(2) == b"\x1f\x8b"
    except OSError as error:
        raise UserError(f"cannot read {path}: {error.strerror}") from None
    if not is_gzipped:
        yield path
        return
    with tempfile.NamedTemporaryFile(suffix=".pt") as plain:
        try:
            with gzip.open(path) as content:
                shutil.copyfileobj(content, plain)
            plain.flush()
        except (OSError, EOFError, zlib.error) as error:
            raise UserError(f"cannot unpack {path}: {error}; copy it again, or unpack it first") from None
        yield Path(plain.name)
