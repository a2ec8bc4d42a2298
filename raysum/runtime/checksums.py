"""Checksums of files that a later step reads: told in a file that is written last, compared before they are used."""

import hashlib
import json
import os
import zipfile
import zlib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from raysum.errors import UserError
from raysum.runtime.storage import open_tensors, read_json, write_json

SEAL = "checksums.json"
_OWN = "crc32"  # of the file that tells the checksums: over the rest of what it tells
_BLOCK = 1 << 20  # bytes


def damaged(path: Path, what: str, mend: str = "put back a copy of it") -> UserError:
    """A file is missing, or not what was written."""
    return UserError(f"{path} {what}; {mend}")


def seal(folder: Path, names: Iterable[str] | None = None) -> None:
    """Put the checksums of the files ``names`` (None: of all) on disk in ``folder``, after those files themselves."""
    files = [folder / name for name in names or ()] if names else [path for path in folder.rglob("*") if path.is_file()]
    told = {str(path.relative_to(folder)): checksum(path, flush=True) for path in sorted(files)}
    write_json(folder / SEAL, sealed({"files": told}))


def check(folder: Path, *parts: str) -> None:
    """Raises UserError where one of the ``parts`` of ``folder``, files or folders, is not whole and as it was sealed.

    Without a seal, as of former versions, a part must be there and read as what its name says.
    """
    told = check_sealed(read_json(folder / SEAL), folder / SEAL).get("files") if (folder / SEAL).exists() else None
    if not isinstance(told, dict | None) or not all(isinstance(one, dict) for one in (told or {}).values()):
        raise damaged(folder / SEAL, "holds no checksums of files")
    for part in parts:
        if told is not None and (inside := [name for name in told if name == part or name.startswith(f"{part}/")]):
            for name in inside:
                check_file(folder / name, told[name])
        else:
            place = folder / part
            for path in sorted(place.rglob("*")) if place.is_dir() else [place]:
                _check_form(path)


def sealed(values: Mapping[str, Any]) -> dict[str, Any]:
    """``values``, which can be written as JSON, with a checksum of their own."""
    return {**values, _OWN: _own(values)}


def check_sealed(values: Any, path: Path, required: bool = False) -> dict[str, Any]:
    """What was read from ``path``, as a mapping. Raises UserError where it is none, or was changed; without a checksum
    of its own, as of former versions, it may have been, unless that is ``required``."""
    if not isinstance(values, dict):
        raise damaged(path, "is no mapping of names to values")
    if required and _OWN not in values:
        raise damaged(path, "has no checksum")
    if values.get(_OWN, own := _own({name: value for name, value in values.items() if name != _OWN})) != own:
        raise damaged(path, "was changed since it was written")
    return values


def checksum(path: Path, flush: bool = False) -> dict[str, int]:
    """Length in bytes and CRC-32 of a file, some 2 GB/s; ``flush`` waits until its content is on the disk."""
    length = value = 0
    with path.open("rb", buffering=0) as file:
        while block := file.read(_BLOCK):
            length, value = length + len(block), zlib.crc32(block, value)
        if flush:
            os.fsync(file)
    return {"bytes": length, "crc32": value}


def check_file(path: Path, told: Mapping[str, Any]) -> None:
    """Raises UserError where the file is missing, or has not the length, CRC-32 or SHA-256 that are ``told``."""
    try:
        size = path.stat().st_size
        if size != told.get("bytes", size):
            raise damaged(path, f"is damaged: it has {size} bytes of {told['bytes']}")
        if "crc32" in told and checksum(path)["crc32"] != told["crc32"]:
            raise damaged(path, "is damaged: its content is not what was written")
        if "sha256" in told and hashlib.sha256(path.read_bytes()).hexdigest() != told["sha256"]:
            raise damaged(path, "is damaged: its content is not what was written")
    except OSError as error:
        raise damaged(path, f"cannot be read ({error.strerror})") from None


def is_whole(path: Path, told: Mapping[str, Any]) -> bool:
    """Whether :func:`check_file` finds nothing wrong."""
    try:
        check_file(path, told)
    except UserError:
        return False
    return True


def _own(values: Mapping[str, Any]) -> int:
    return zlib.crc32(json.dumps(values, sort_keys=True).encode())


def _check_form(path: Path) -> None:
    """Raises UserError where a file is not of the form that its name says: what can be told without a checksum."""
    try:
        if path.suffix == ".safetensors":
            with open_tensors(path):
                pass
        elif path.suffix == ".pt" and (torn := zipfile.ZipFile(path).testzip()):
            raise damaged(path, f"is damaged at {torn}")
        elif path.suffix == ".json":
            check_sealed(read_json(path), path)
        path.stat()
    except (OSError, zipfile.BadZipFile) as error:
        raise damaged(path, f"cannot be read ({getattr(error, 'strerror', None) or error})") from None
