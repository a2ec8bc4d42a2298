"""Locks of folders on a store: one writer at a time, by a lock object that its holder renews.

S3 and Google Storage create the object atomically, so exactly one of several writers gets the lock. On other stores two
writers that start at the same moment may both get it. A holder that has not renewed the object for 30 s counts as dead.
If it was only disconnected, it finds the other's object before it writes again, and stops.
"""

import json
import os
import secrets
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import psutil

from raysum.errors import UserError
from raysum.runtime.lock import LOCK
from raysum.runtime.progress import say
from raysum.runtime.remote import read, remove, store, store_errors, url_of

_RENEWED, _GONE = 8, 30  # seconds between renewals, and without renewal until the lock is free
_LOOK = 0.5
_SKEW = 3600  # seconds that clocks may differ


@contextmanager
def leased(folder: Path) -> Iterator[None]:
    """Hold the lock of the store folder that ``folder`` mirrors during the block; do nothing for local folders.

    Raises UserError if another process holds it, or if the store cannot be written.
    """
    if (url := url_of(folder)) is None:
        yield
        return
    holder: dict[str, Any] = {"token": secrets.token_hex(8), "machine": _machine(), "host": socket.gethostname()}
    holder |= {"process": os.getpid(), "since": time.strftime("%F %T")}
    _take(url, holder)
    _own_token(folder).parent.mkdir(parents=True, exist_ok=True)
    _own_token(folder).write_text(holder["token"], encoding="utf-8")
    ended = threading.Event()

    def renew() -> None:
        number = 0
        while not ended.wait(_RENEWED):
            with suppress(UserError):  # disconnected; writers check the lock themselves
                check_lease(folder)
                number += 1
                _write_lock(url, holder | {"renewed": number}, create=False)

    renewing = threading.Thread(target=renew, daemon=True)
    renewing.start()
    try:
        yield
    finally:
        ended.set()
        renewing.join()
        if _token(url) == holder["token"]:
            remove(url, [LOCK])
        _own_token(folder).unlink(missing_ok=True)


def is_leased(url: str) -> bool:
    """Return whether a process writes the store folder ``url``.

    The store's clock may differ from ours: a lock that seems to be old is watched for some seconds.
    """
    files, root = store(url)
    with store_errors(url), suppress(FileNotFoundError):
        files.invalidate_cache()
        age = time.time() - files.modified(f"{root}/{LOCK}").timestamp()
        if age < 2 * _GONE or age > _SKEW:
            return age < 2 * _GONE
        found, end = _read_lock(url), time.monotonic() + 2 * _RENEWED
        while found and time.monotonic() < end:
            time.sleep(_LOOK)
            if (now := _read_lock(url)) != found:
                return now is not None
    return False


def check_lease(folder: Path) -> None:
    """Raises UserError if another process has taken the lock of ``folder`` from this writer."""
    own, url = _own_token(folder), url_of(folder)
    if url and own.is_file() and own.read_text(encoding="utf-8") != _token(url):
        raise UserError(f"{url} was taken over by another command while this one was cut off from it; stop one of them")


def _own_token(folder: Path) -> Path:
    """Return the local file with the token of the lock, for all processes of the writer."""
    return folder.with_name(f".{folder.name}.lease")


def _take(url: str, holder: dict[str, Any]) -> None:
    """Create the lock object; one that nobody renews is replaced. Raises UserError if its holder renews it."""
    seen, since = None, 0.0
    while not _write_lock(url, holder, create=True):
        found = _read_lock(url)
        if found is None:  # it was released
            continue
        name = f"process {found.get('process')} on {found.get('host')} since {found.get('since')}"
        died_here = found.get("machine") == holder["machine"] and not psutil.pid_exists(int(found.get("process", 0)))
        if seen is None:
            seen, since = found, time.monotonic()
            if not died_here:
                say(f"{url} has a lock of {name}; it counts as dead if it is not renewed within {_GONE} s")
        elif found != seen:
            raise UserError(f"{url} is being written by {name}; wait for its end, or choose another folder")
        if died_here or time.monotonic() - since > _GONE:
            _write_lock(url, holder, create=False)
            time.sleep(_LOOK)  # another process may have done the same
            if _token(url) == holder["token"]:
                return
            seen = None
        time.sleep(_LOOK)


def _write_lock(url: str, holder: dict[str, Any], create: bool) -> bool:
    """Write the lock object and return whether it was written; with ``create`` only if there is none."""
    files, root = store(url)
    try:
        with store_errors(url):
            files.pipe_file(f"{root}/{LOCK}", json.dumps(holder).encode(), mode="create" if create else "overwrite")
    except FileExistsError:
        return False
    except FileNotFoundError:
        raise UserError(f"cannot write {url}: there is no such bucket; make it first") from None
    return True


def _read_lock(url: str) -> dict[str, Any] | None:
    """Return the content of the lock object, or None if there is none."""
    content = read(f"{url}/{LOCK}")
    try:
        found = json.loads(content or b"null")
    except ValueError:
        found = {}
    return found if isinstance(found, dict) or content is None else {}


def _token(url: str) -> str | None:
    return (_read_lock(url) or {}).get("token")


def _machine() -> str:
    """Return an identifier of this machine's boot and of its process namespace."""
    with suppress(OSError):
        return f"{Path('/proc/sys/kernel/random/boot_id').read_text().strip()} {os.readlink('/proc/self/ns/pid')}"
    return secrets.token_hex(8)  # not Linux: unknown to all other processes
