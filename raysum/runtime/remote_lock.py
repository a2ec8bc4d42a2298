"""One writer of a folder on a store at a time: by a file there that its holder renews.

Where the store makes a file only if there is none (S3, Google Storage), of writers that begin at once one gets it. On
others two that begin within the same moment may both. A holder that has not renewed it for half a minute counts as
gone; if it was merely cut off, it finds another's file there before it writes again, and does not.
"""

import json
import os
import secrets
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psutil

from raysum.errors import UserError
from raysum.runtime.lock import LOCK
from raysum.runtime.progress import say
from raysum.runtime.remote import asked, read, remove, store, url_of

_RENEWED, _GONE = 8, 30  # seconds: how often, and after how long without it is free
_LOOK = 0.5
_OWN = ".lease"  # beside what is kept of the folder, for all processes of its writer: the token


@contextmanager
def leased(folder: Path) -> Iterator[None]:
    """No other holds the lease of the URL that is kept at ``folder`` in the block; nothing where it is kept of none.

    Raises UserError where another holds it, or nothing can be written there.
    """
    if (url := url_of(folder)) is None:
        yield
        return
    told: dict[str, Any] = {"token": secrets.token_hex(8), "machine": _machine(), "host": socket.gethostname()}
    told |= {"process": os.getpid(), "since": time.strftime("%F %T")}
    _take(url, told)
    own, ended = _own(folder), threading.Event()
    own.parent.mkdir(parents=True, exist_ok=True)
    own.write_text(told["token"], encoding="utf-8")
    renewing = threading.Thread(target=_renew, args=(folder, told, ended), daemon=True)
    renewing.start()
    try:
        yield
    finally:
        ended.set()
        renewing.join()
        if _token(url) == told["token"]:
            remove(url, [LOCK])
        own.unlink(missing_ok=True)


def check_lease(folder: Path) -> None:
    """Raises UserError where the writer of what is kept at ``folder`` has lost the lease meanwhile."""
    own, url = _own(folder), url_of(folder)
    if url and own.is_file() and own.read_text(encoding="utf-8") != _token(url):
        raise UserError(f"{url} was taken over by another command while this one was cut off from it; stop one of them")


def _own(folder: Path) -> Path:
    return folder.with_name(f".{folder.name}{_OWN}")


def _take(url: str, told: dict[str, Any]) -> None:
    seen, since = None, time.monotonic()
    while not _made(url, told, anew=True):
        found = _found(url)
        if found is None:  # it was given back
            continue
        if seen is None:
            seen, since = found, time.monotonic()
            if not _died_here(found):
                say(f"{url} has a lock of {_holder(found)}; whether that still runs is known in {_GONE} seconds")
        elif found != seen:
            raise UserError(f"{url} is being written by {_holder(found)}; wait for its end, or choose another place")
        if _died_here(found) or time.monotonic() - since > _GONE:
            _made(url, told, anew=False)
            time.sleep(_LOOK)  # another may have found the same
            if _token(url) == told["token"]:
                return
            seen = None
        time.sleep(_LOOK)


def _renew(folder: Path, told: dict[str, Any], ended: threading.Event) -> None:
    url, number = str(url_of(folder)), 0
    while not ended.wait(_RENEWED):
        try:
            check_lease(folder)
            number += 1
            _made(url, told | {"renewed": number}, anew=False)
        except UserError:
            continue  # it is cut off; if it was taken over, whoever writes is told


def _made(url: str, told: dict[str, Any], anew: bool) -> bool:
    """Write the lease; whether that could be, ``anew`` only where there is none."""
    files, root = store(url)
    try:
        with asked(url):
            files.pipe_file(f"{root}/{LOCK}", json.dumps(told).encode(), mode="create" if anew else "overwrite")
    except FileExistsError:
        return False
    except FileNotFoundError:
        raise UserError(f"cannot write {url}: there is no such bucket; make it first") from None
    return True


def _found(url: str) -> dict[str, Any] | None:
    content = read(f"{url}/{LOCK}")
    try:
        found = None if content is None else json.loads(content)
    except ValueError:
        found = {}
    return found if isinstance(found, dict) or found is None else {}


def _token(url: str) -> str | None:
    return (_found(url) or {}).get("token")


def _holder(found: dict[str, Any]) -> str:
    return f"process {found.get('process')} on {found.get('host')} since {found.get('since')}"


def _died_here(found: dict[str, Any]) -> bool:
    return found.get("machine") == _machine() and not psutil.pid_exists(int(found.get("process", 0)))


def _machine() -> str:
    """What tells this machine, since it was started, and the processes that can be seen here from others."""
    boot = Path("/proc/sys/kernel/random/boot_id")
    started = boot.read_text().strip() if boot.exists() else str(int(psutil.boot_time()))
    space = os.stat("/proc/self/ns/pid").st_ino if Path("/proc/self/ns/pid").exists() else 0
    return f"{socket.gethostname()} {started} {space}"
