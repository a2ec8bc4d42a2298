"""Checksums of files: written last, in a file of their own, and verified before the files are used."""

import hashlib
import json
import os
import zipfile
import zlib
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from raysum.errors import UserError
from raysum.runtime.storage import open_tensors, read_json, write_json

if TYPE_CHECKING:
    from torch import Tensor

SEAL = "checksums.json"
_OWN = "crc32"  # key of the checksum that a JSON file has of its other values
_BLOCK = 1 << 20  # bytes
_WRITTEN = 16 << 20  # bytes that are written and summed at once: other threads wait for the interpreter in between
_TYPES = {  # torch's names of types and those of safetensors
    **{"float64": "F64", "int64": "I64", "float32": "F32", "int32": "I32", "float16": "F16", "bfloat16": "BF16"},
    **{"int16": "I16", "int8": "I8", "uint8": "U8", "bool": "BOOL"},
}


def damaged(path: Path, what: str, mend: str = "put back a copy of it") -> UserError:
    """Return the error for a file that is missing or differs from what was written."""
    return UserError(f"{path} {what}; {mend}")


def seal(folder: Path, names: Iterable[str] = (), known: Mapping[str, Any] | None = None) -> None:
    """Flush the files ``names`` of ``folder`` (by default all files) to disk, then write their checksums.

    ``known`` are checksums of files that are on disk: they are not read.
    """
    files = [folder / name for name in names] or [path for path in folder.rglob("*") if path.is_file()]
    checksums = dict(known or {})
    for path in files:
        if (name := str(path.relative_to(folder))) not in checksums:
            checksums[name] = checksum(path, flush=True)
    write_json(folder / SEAL, sealed({"files": dict(sorted(checksums.items()))}))


def sealed_files(folder: Path) -> dict[str, dict[str, Any]]:
    """Return the checksums of the files of ``folder`` by relative path; none in folders of former versions.

    Raises UserError if the file with the checksums is damaged.
    """
    file = folder / SEAL
    checksums = check_sealed(read_json(file), file).get("files") if file.exists() else {}
    if not isinstance(checksums, dict) or not all(isinstance(one, dict) for one in checksums.values()):
        raise damaged(file, "holds no checksums of files")
    return checksums


def check(folder: Path, *parts: str) -> None:
    """Raises UserError if a file in ``parts`` (files or folders of ``folder``) is missing or differs from its checksum.

    Folders of former versions have no checksums: there each file must exist and have the format of its suffix.
    """
    checksums = sealed_files(folder)
    for part in parts:
        names = [name for name in checksums if name == part or name.startswith(f"{part}/")]
        for name in names:
            check_file(folder / name, checksums[name])
        if not names:
            for path in (folder / part, *sorted((folder / part).rglob("*"))):
                _check_format(path)


def sealed(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return the JSON ``values`` with a checksum of themselves."""
    return {**values, _OWN: zlib.crc32(json.dumps(values, sort_keys=True).encode())}


def check_sealed(values: Any, path: Path, required: bool = False) -> dict[str, Any]:
    """Return the values read from ``path``. Raises UserError if they are no mapping or their checksum differs.

    Files of former versions have no checksum, which is an error only if it is ``required``.
    """
    if not isinstance(values, dict):
        raise damaged(path, "is no mapping of names to values")
    if required and _OWN not in values:
        raise damaged(path, "has no checksum")
    if _OWN in values and values != sealed({name: value for name, value in values.items() if name != _OWN}):
        raise damaged(path, "was changed since it was written")
    return values


def checksum(path: Path, flush: bool = False) -> dict[str, int]:
    """Return the length in bytes and the CRC-32 of a file (about 2 GB/s); ``flush`` waits until it is on disk."""
    length = value = 0
    with path.open("rb", buffering=0) as file:
        while block := file.read(_BLOCK):
            length, value = length + len(block), zlib.crc32(block, value)
        if flush:
            os.fsync(file)
    return {"bytes": length, "crc32": value}


class ChecksumFile:
    """A new file that computes its checksum while it is written.

    ``close`` raises the first error of a write: torch, which calls ``write``, would replace it by one of its own.
    """

    def __init__(self, path: Path):
        self._file = path.open("wb")
        self._error: OSError | None = None
        self._length = self._crc32 = 0

    def write(self, content: Any) -> int:
        block = memoryview(content).cast("B")
        for start in range(0, len(block), _WRITTEN):
            part = block[start : start + _WRITTEN]
            self._length, self._crc32 = self._length + len(part), zlib.crc32(part, self._crc32)
            self._try(self._file.write, part)
        return len(block)

    def flush(self) -> None:
        self._try(self._file.flush)

    def close(self) -> dict[str, int]:
        """Wait until the file is on disk, and return its checksum as :func:`checksum` does. Raises OSError."""
        self.flush()
        self._try(os.fsync, self._file)
        self._try(self._file.close)
        if self._error:
            raise self._error
        return {"bytes": self._length, "crc32": self._crc32}

    def _try(self, action: Callable[..., Any], *arguments: Any) -> None:
        try:
            if self._error is None:
                action(*arguments)
        except OSError as error:
            self._error = error


def write_tensors(
    tensors: Mapping[str, "Tensor"], path: Path, metadata: Mapping[str, str] | None = None
) -> dict[str, int]:
    """Write a safetensors file, and return its checksum. Tensors with larger elements come first."""
    import torch

    header, end = dict[str, Any]({"__metadata__": metadata} if metadata else {}), 0
    ordered = sorted(tensors.items(), key=lambda item: (-item[1].itemsize, item[0]))
    for name, tensor in ordered:
        begin, end = end, end + tensor.numel() * tensor.itemsize
        kind = _TYPES[str(tensor.dtype).removeprefix("torch.")]
        header[name] = {"dtype": kind, "shape": [*tensor.shape], "data_offsets": [begin, end]}
    text = json.dumps(header, separators=(",", ":"), ensure_ascii=False).encode()
    text += b" " * (-len(text) % 8)
    file = ChecksumFile(path)
    file.write(len(text).to_bytes(8, "little") + text)
    for _, tensor in ordered:
        file.write(tensor.detach().cpu().contiguous().flatten().view(torch.uint8).numpy())
    return file.close()


def check_file(path: Path, expected: Mapping[str, Any]) -> None:
    """Raises UserError if the file is missing or its length, CRC-32 or SHA-256 differ from those ``expected``."""
    try:
        size = path.stat().st_size
        if size != expected.get("bytes", size):
            raise damaged(path, f"is damaged: it has {size} bytes of {expected['bytes']}")
        differs = "crc32" in expected and checksum(path)["crc32"] != expected["crc32"]
        if differs or "sha256" in expected and hashlib.sha256(path.read_bytes()).hexdigest() != expected["sha256"]:
            raise damaged(path, "is damaged: its content is not what was written")
    except OSError as error:
        raise damaged(path, f"cannot be read ({error.strerror})") from None


def is_whole(path: Path, expected: Mapping[str, Any]) -> bool:
    """Return whether :func:`check_file` accepts the file."""
    try:
        check_file(path, expected)
    except UserError:
        return False
    return True


def _check_format(path: Path) -> None:
    """Raises UserError if a file is missing, or if its content does not have the format of its suffix."""
    try:
        path.stat()
        if path.suffix == ".safetensors":
            with open_tensors(path):
                pass
        elif path.suffix == ".pt" and (torn := zipfile.ZipFile(path).testzip()):
            raise damaged(path, f"is damaged at {torn}")
        elif path.suffix == ".json":
            check_sealed(read_json(path), path)
    except (OSError, zipfile.BadZipFile) as error:
        raise damaged(path, f"cannot be read ({getattr(error, 'strerror', None) or error})") from None
