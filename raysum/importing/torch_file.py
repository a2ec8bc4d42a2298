"""PyTorch checkpoints of other codes: read without running anything that they hold."""

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

_GLOBAL = re.compile(r"GLOBAL (\S+)")


def read_checkpoint(path: Path, wanted: Callable[[str], bool]) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
    """The ``wanted`` tensors of the file's ``model`` in float32, and its ``opt``, an argparse namespace, as a mapping.

    Tensors that are not wanted, and the optimizer's state, do not fill memory, but for files of PyTorch before 1.6,
    which are of one piece. ``path`` may be gzipped. Raises UserError where it is missing, damaged, of another kind, or
    asks for any other Python object than tensors and the namespace.
    """
    with _unpacked(path) as plain:
        checkpoint = _load(plain, path)
        model, options = map(checkpoint.get, ("model", "opt")) if isinstance(checkpoint, Mapping) else (None, None)
        options = vars(options) if isinstance(options, argparse.Namespace) else options
        if not isinstance(model, Mapping) or not isinstance(options, Mapping):
            raise UserError(f"{path} is no hiersumm checkpoint: that is a mapping with the keys 'model' and 'opt'")
        found = {str(name): value for name, value in model.items() if wanted(str(name))}
        return {name: array_of(name, value, path) for name, value in found.items()}, dict(options)


def read_tensors(path: Path) -> dict[str, np.ndarray]:
    """All tensors of a file that maps names to them, in float32. Raises UserError as :func:`read_checkpoint` does."""
    with _unpacked(path) as plain:
        found = _load(plain, path)
        if not isinstance(found, Mapping):
            raise UserError(f"{path} holds no mapping of names to tensors")
        return {str(name): array_of(name, value, path) for name, value in found.items()}


def array_of(name: Any, value: Any, path: Path) -> np.ndarray:
    """A copy in float32: the file may go. Raises UserError where ``value`` is no dense tensor of real numbers, or tells
    the same ones again and again: a small file would fill memory."""
    kind: Any = type(value).__name__
    if isinstance(value, Tensor):
        if not value.is_meta and value.layout == torch.strided and value.is_floating_point():
            if value.nbytes > value.untyped_storage().nbytes():
                raise UserError(f"{path} holds fewer numbers than {name} is of; save contiguous tensors")
            return value.detach().float().numpy().copy()
        kind = "a tensor without values" if value.is_meta else f"a tensor of {value.dtype}, {value.layout}"
    raise UserError(f"{path} holds {kind} in {name}, where dense tensors of real numbers are read; save them as such")


def _load(plain: Path, path: Path) -> Any:
    mapped = zipfile.is_zipfile(plain)
    if mapped:  # PyTorch does not check tensors that it maps into memory
        try:
            with zipfile.ZipFile(plain) as archive:
                packed = (one.filename for one in archive.infolist() if one.compress_type != zipfile.ZIP_STORED)
                bad = next(packed, None) or archive.testzip()  # PyTorch packs nothing, and a little may unpack to much
        except (zipfile.BadZipFile, NotImplementedError, zlib.error, EOFError):
            bad = "its table of contents"
        if bad:
            raise UserError(f"{path} is damaged: {bad} is not what was written; copy the checkpoint again")
    try:
        with safe_globals([argparse.Namespace]), warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of what the file's makers did
            return torch.load(plain, map_location="cpu", weights_only=True, mmap=mapped)
    except Exception as error:  # whatever the bytes of a damaged file lead the unpickler to
        found = _GLOBAL.search(str(error)) if isinstance(error, pickle.UnpicklingError) else None
        if found:
            raise UserError(
                f"{path} is not read: it asks for {found[1].rstrip('.')}, which no checkpoint needs and which may run "
                "code; get it from another place"
            ) from None
        raise UserError(f"{path} does not read as a PyTorch checkpoint; it is of another kind, or damaged") from None


@contextmanager
def _unpacked(path: Path) -> Iterator[Path]:
    """``path``, or a temporary file with its content where it is gzipped."""
    try:
        with path.open("rb") as file:
            packed = file.read(2) == b"\x1f\x8b"
    except OSError as error:
        raise UserError(f"cannot read {path}: {error.strerror}") from None
    if not packed:
        yield path
        return
    with tempfile.NamedTemporaryFile(suffix=".pt") as plain:
        try:
            with gzip.open(path) as content:
                shutil.copyfileobj(content, plain)
            plain.flush()
        except (OSError, EOFError, zlib.error) as error:
            raise UserError(f"cannot unpack {path}: {error}; copy it again, or unpack it yourself") from None
        yield Path(plain.name)
