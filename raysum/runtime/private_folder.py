"""Temporary folders that only this user can open, and that a later process removes if their owner was killed."""

import fcntl
import os
import shutil
import stat
import tempfile
from contextlib import suppress

_PREFIX = "raysum-"
_OWNER = "owner"  # a file that the owner of a folder locks; the system frees the lock when the owner ends


class PrivateFolder:
    """A new folder in ``parent`` with mode 0700 and a random name. Creating one removes the leftovers in ``parent``."""

    def __init__(self, parent: str):
        remove_leftovers(parent)
        self.path = tempfile.mkdtemp(prefix=_PREFIX, dir=parent)
        owner = os.path.join(self.path, _OWNER)
        self._lock = os.open(f"{owner}.new", os.O_CREAT | os.O_RDWR, 0o600)
        with suppress(OSError):  # a file system without locks
            fcntl.flock(self._lock, fcntl.LOCK_EX)
        os.rename(f"{owner}.new", owner)  # now it is locked, so nobody takes the folder for a leftover

    def remove(self) -> None:
        shutil.rmtree(self.path, ignore_errors=True)
        os.close(self._lock)

    def keep(self) -> None:
        """Leave the folder to the user; no process removes it."""
        with suppress(OSError):
            os.unlink(os.path.join(self.path, _OWNER))
        os.close(self._lock)


def remove_leftovers(parent: str) -> None:
    """Remove the private folders in ``parent`` of this user's processes that ended without removing them.

    It follows no links, and touches no folder of another user, of a living process or without an owner file.
    """
    with suppress(OSError), os.scandir(parent) as entries:
        for entry in entries:
            if entry.name.startswith(_PREFIX) and entry.is_dir(follow_symlinks=False):
                with suppress(OSError):
                    _remove_leftover(entry.path)


def _remove_leftover(path: str) -> None:
    folder = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
    try:
        status = os.fstat(folder)
        if status.st_uid != os.geteuid() or stat.S_IMODE(status.st_mode) != 0o700:
            return
        lock = os.open(_OWNER, os.O_RDWR | os.O_NOFOLLOW | os.O_NONBLOCK, dir_fd=folder)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)  # raises OSError while the owner lives
            shutil.rmtree(path, ignore_errors=True)
        finally:
            os.close(lock)
    finally:
        os.close(folder)
