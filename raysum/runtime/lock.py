"""Locks of folders: one writer at a time, and temporary folders that a later process removes.

The system frees a lock when its holder ends for any reason.
"""

import errno
import fcntl
import json
import os
import shutil
import socket
import stat
import tempfile
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
_PREFIX = "raysum-"  # of private folders
_MARK = "temporary"  # file in a private folder, except in those that are left to the user


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
    with file:
        try:
            yield
        finally:
            with suppress(OSError):
                lock.unlink(missing_ok=True)  # before it is free: a waiting process checks whether it still exists
                for parent in created:
                    parent.rmdir()


def _locked(path: Path) -> IO[str] | None:
    """Create and lock the file; return None if another process holds the lock."""
    while True:
        file = path.open("a+", encoding="utf-8")
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            if error.errno not in _NO_LOCKS:
                file.close()
                if isinstance(error, BlockingIOError):
                    return None
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
    except OSError as error:
        return isinstance(error, BlockingIOError)
    return False


def _holder(path: Path) -> str:
    try:
        holder = json.loads(path.read_text(encoding="utf-8"))
        return f"process {holder['process']} on {holder['host']} since {holder['since']}"
    except (OSError, ValueError, KeyError, TypeError):
        return "another process"


@contextmanager
def waiting_lock(path: Path) -> Iterator[None]:
    """Hold the lock of the file ``path``, which stays, during the block; wait while another process holds it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("ab") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


class PrivateFolder:
    """A new folder in ``parent`` with mode 0700 and a random name. Creating one removes the leftovers in ``parent``."""

    def __init__(self, parent: str):
        remove_leftovers(parent)
        self.path = tempfile.mkdtemp(prefix=_PREFIX, dir=parent)
        self._folder = os.open(self.path, os.O_RDONLY)
        with suppress(OSError):  # a file system without locks
            fcntl.flock(self._folder, fcntl.LOCK_EX)
        Path(self.path, _MARK).touch()

    def close(self, keep: bool = False) -> None:
        """Remove the folder, or leave it to the user: then no process removes it."""
        if keep:
            Path(self.path, _MARK).unlink(missing_ok=True)
        else:
            shutil.rmtree(self.path, ignore_errors=True)
        os.close(self._folder)


def remove_leftovers(parent: str) -> None:
    """Remove the private folders in ``parent`` of this user's processes that ended without removing them.

    It follows no links, and touches no folder of another user, of a living process or without the mark.
    """
    for path in Path(parent).glob(f"{_PREFIX}*"):
        with suppress(OSError):
            folder = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
            try:
                status = os.fstat(folder)
                is_own = status.st_uid == os.geteuid() and stat.S_IMODE(status.st_mode) == 0o700
                if is_own and stat.S_ISREG(os.stat(_MARK, dir_fd=folder, follow_symlinks=False).st_mode):
                    fcntl.flock(folder, fcntl.LOCK_EX | fcntl.LOCK_NB)  # raises OSError while the owner lives
                    shutil.rmtree(path, ignore_errors=True)
            finally:
                os.close(folder)
