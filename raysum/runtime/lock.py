"""One writer of a folder at a time: by a lock that the system frees when its holder ends, however it ends."""

import errno
import fcntl
import json
import os
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO

from raysum.errors import UserError
from raysum.runtime.progress import say

LOCK = ".lock"  # in a folder that is written over days
_LOOK = 0.05  # seconds, far more than :func:`is_held` holds a lock
_NO_LOCKS = (errno.ENOLCK, errno.EOPNOTSUPP, errno.ENOSYS)  # of file systems that cannot lock


@contextmanager
def held(folder: Path, lock: Path) -> Iterator[None]:
    """No other process writes ``folder`` in the block, on any machine that shares its file system.

    The holder's machine, process and start are in the file ``lock``, whose folder is made if need be. Both go with the
    block, but for what is in the folder by then. Raises UserError where another holds it, or it cannot be written.
    """
    made = [place for place in (lock.parent, *lock.parent.parents) if not place.exists()]
    try:
        lock.parent.mkdir(parents=True, exist_ok=True)
        if (file := _locked(lock)) is None:
            time.sleep(_LOOK)  # it may be somebody who only looked
            file = _locked(lock)
    except OSError as error:
        raise UserError(f"cannot write {folder}: {error.strerror}; choose another folder") from None
    if file is None:
        raise UserError(f"{folder} is being written by {_holder(lock)}; wait for its end, or choose another folder")
    try:
        yield
    finally:
        with suppress(OSError):
            lock.unlink(missing_ok=True)  # before it is free: whoever waits for it looks whether it is still there
            for place in made:
                place.rmdir()
        file.close()


def _locked(path: Path) -> IO[str] | None:
    """The file, made, locked and still at its place; None where another process has it."""
    while True:
        file = path.open("a+", encoding="utf-8")
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            file.close()
            return None
        except OSError as error:
            if error.errno not in _NO_LOCKS:
                file.close()
                raise
            say(f"{path.parent} is on a file system without locks; let no other command write there")
        if path.exists() and os.path.samestat(os.fstat(file.fileno()), path.stat()):
            holder = {"host": socket.gethostname(), "process": os.getpid(), "since": time.strftime("%F %T")}
            file.truncate(0)
            file.write(json.dumps(holder))
            file.flush()
            return file
        file.close()  # its holder has ended meanwhile, and removed it


def is_held(lock: Path) -> bool:
    """Whether a process holds the lock, as far as the file system tells; nothing is written."""
    try:
        with lock.open(encoding="utf-8") as file:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)  # freed as the file is closed
    except BlockingIOError:
        return True
    except OSError:
        return False
    return False


def _holder(path: Path) -> str:
    try:
        told = json.loads(path.read_text(encoding="utf-8"))
        return f"process {told['process']} on {told['host']} since {told['since']}"
    except (OSError, ValueError, KeyError, TypeError):
        return "another process"
