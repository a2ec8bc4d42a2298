"""The keys of a service: a file of names, hashes and limits, which `raysum keys` changes and the service reads.

The file has the SHA-256 of each key. A key is 32 random bytes, so nobody can find it by trying, and a slow hash for
passwords would only delay every request.
"""

import os
import secrets
import stat
import time
from collections.abc import Iterator
from contextlib import contextmanager
from hashlib import sha256
from hmac import compare_digest
from pathlib import Path
from typing import Any

from pydantic import Field

from raysum.config.base import Section
from raysum.config.problems import did_you_mean, validate
from raysum.errors import UserError
from raysum.runtime.lock import waiting_lock
from raysum.runtime.rendering import Grid, Shown
from raysum.runtime.storage import check_here, read_json, write_json

FILE = "keys.json"  # default file of `raysum keys`
_PREFIX = "raysum-"  # lets scanners for leaked secrets recognize a key
_BYTES = 32  # of a key; 256 random bits
_FORBIDDEN = stat.S_IWGRP | stat.S_IRWXO  # a Kubernetes secret is readable for its group


class KeyLimits(Section):
    """Limits of a key. They count in the front of the service, from 0 after each start."""

    requests_per_minute: int | None = Field(None, gt=0, le=10**9, description="requests per minute; the rest gets 429")
    tokens_per_minute: int | None = Field(
        None, gt=0, le=10**12, description="source tokens per minute; before they are counted, 4 characters are one"
    )


class Key(KeyLimits):
    name: str = Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$", description="name in logs and metrics")
    sha256: str = Field(pattern="^[0-9a-f]{64}$", description="SHA-256 of the key")
    created: str = Field("", description="time of its creation")
    revoked: bool = Field(False, description="whether the service refuses it")

    def to_dict(self) -> dict[str, Any]:
        """Return everything except the hash."""
        return self.model_dump(exclude={"sha256"})


class KeyFile(Section):
    """The content of the file."""

    keys: list[Key] = []

    @classmethod
    def read(cls, path: Path) -> "KeyFile":
        """Raises UserError if the file is missing, broken or no file here, or if others may change or read it."""
        check_here(path, "file")
        try:
            mode = path.stat().st_mode
        except OSError as error:
            fix = f"create it with `raysum keys add NAME --file {path}`"
            raise UserError(f"cannot read the keys in {path} ({error.strerror}); {fix}") from None
        if not stat.S_ISREG(mode):
            raise UserError(f"{path} is not a regular file; name the file of the keys")
        if mode & _FORBIDDEN:
            raise UserError(f"other users can read or change the keys in {path}; run `chmod 600 {path}`")
        values = read_json(path)
        if not isinstance(values, dict):
            raise UserError(f"{path} is not a file of keys; create one with `raysum keys add NAME --file FILE`")
        return validate(values, dict.fromkeys(values, str(path)), cls)

    def find(self, key: bytes) -> Key | None:
        """Return the entry of a key, also a revoked one. The time does not depend on how much of a hash agrees."""
        digest, found = sha256(key).hexdigest(), None
        for entry in self.keys:
            if compare_digest(digest, entry.sha256):
                found = entry
        return found


class Keys(list[Key], Shown):
    """The keys of a file for people, without hashes."""

    def render(self) -> Any:
        grid = Grid("name", "created", "requests per minute", "tokens per minute", "state")
        for key in self:
            limits = (f"{limit:,}" if limit else "" for limit in (key.requests_per_minute, key.tokens_per_minute))
            grid.add_row(key.name, key.created, *limits, "revoked" if key.revoked else "")
        return grid


def add_key(file: str, name: str, limits: KeyLimits) -> str:
    """Add a key to the file, which need not exist, and return it. Raises UserError if the name is in use."""
    key = _PREFIX + secrets.token_urlsafe(_BYTES)
    with _changing(file, must_exist=False) as keys:
        if any(entry.name == name for entry in keys):
            raise UserError(f"{file} has a key {name!r}; choose another name, so that logs stay clear")
        values = {"name": name, "sha256": sha256(key.encode()).hexdigest(), **limits.model_dump()}
        keys.append(validate(values | {"created": time.strftime("%FT%TZ", time.gmtime())}, None, Key))
    return key


def revoke_key(file: str, name: str) -> None:
    """Mark the key as revoked; running services refuse it from now on. Raises UserError if there is none."""
    with _changing(file) as keys:
        numbers = [number for number, entry in enumerate(keys) if entry.name == name]
        if not numbers:
            near = did_you_mean(name, [entry.name for entry in keys])
            raise UserError(f"{file} has no key {name!r}; {near}`raysum keys list --file {file}` lists them")
        keys[numbers[0]] = keys[numbers[0]].model_copy(update={"revoked": True})


@contextmanager
def _changing(file: str, must_exist: bool = True) -> Iterator[list[Key]]:
    """Yield the keys of the file and write what the block makes of them, with mode 600."""
    path = Path(file)
    check_here(path, "--file")
    try:
        with waiting_lock(path.with_name(f".{path.name}.lock")):  # two commands at a time lose no key
            keys = KeyFile.read(path).keys if must_exist or path.exists() else []
            yield keys
            before = os.umask(0o077)
            try:
                write_json(path, KeyFile(keys=keys).model_dump())
            finally:
                os.umask(before)
    except OSError as error:
        raise UserError(f"cannot write the keys in {path}: {error.strerror}; choose another --file") from None
