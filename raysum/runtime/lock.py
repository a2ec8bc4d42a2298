"""Folder locks: one writer at a time. The system frees a lock when its holder ends for any reason."""

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

LOCK = ".lock"  # file name in run and search folders
_LOOK = 0.05  # seconds; :func:`is_held` holds a lock for much less
_NO_LOCKS = (errno.ENOLCK, errno.EOPNOTSUPP, errno.ENOSYS)  # errors of file systems without locks


@contextmanager
def folder_lock(folder: Path, lock: Path) -> Iterator[None]:
    """Hold the only write access to ``folder`` during the block, on all machines that share its file system.

    The file ``lock`` names the holder's machine, process and start time. The block's end removes it, and the folders
    that were created for it if they are still empty. Raises UserError if another process holds the lock, or if it
    cannot be written.
    """
    created = [parent for parent in (lock.parent, *lock.parent.parents) if not parent.exists()]
    try:
        lock.parent.mkdir(parents=True, exist_ok=True)
        if (file := _locked(lock)) is None:
            time.sleep(_LOOK)  # another process may only have checked the lock
            file = _locked(lock)
    except OSError as error:
        raise UserError(f"cannot write {folder}: {error.strerror}; choose another folder") from None
    if file is None:
        raise UserError(f"{folder} is being written by {_holder(lock)}; wait for its end, or choose another folder")
    try:
        yield
    finally:
        with suppress(OSError):
            lock.unlink(missing_ok=True)  # before it is free: a waiting process checks whether the file still exists
            for parent in created:
                parent.rmdir()
        file.close()


def _locked(path: Path) -> IO[str] | None:
    """Create and lock the file; return None if another process holds the lock."""
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
        file.close()  # the holder has ended and removed the file


def is_held(lock: Path) -> bool:
    """Return whether a process holds the lock. Writes nothing."""
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
        holder = json.loads(path.read_text(encoding="utf-8"))
        return f"process {holder['process']} on {holder['host']} since {holder['since']}"
    except (OSError, ValueError, KeyError, TypeError):
        return "another process"
