"""Archives: zip and tar files are unpacked to a folder of the cache, with limits on sizes, names, links and nesting."""

import atexit
import lzma
import os
import re
import shutil
import stat
import tarfile
import zipfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path, PurePosixPath
from typing import IO

import psutil

from raysum.errors import UserError
from raysum.runtime.progress import say
from raysum.runtime.remote import writable_cache
from raysum.sources.staging import add_origin, local_content

_ARCHIVE = re.compile(r"(?i)\.(zip|tar|tgz|tbz2?|txz|tar\.(gz|bz2|xz))$")
_MAX_RATIO, _ALWAYS = 100, 64 << 20  # unpacked bytes per byte of the archive, and bytes that are always allowed
_MAX_FILES = 1_000_000
_MAX_DEPTH = 2  # archives in archives
_FOLDER = "unpacked-"  # in the cache, with the id of the process that removes it
_DAMAGES = (zipfile.BadZipFile, tarfile.TarError, lzma.LZMAError, zlib.error, EOFError, NotImplementedError)
_Member = tuple[str, bool, int, IO[bytes] | None]  # name, whether it is a file, its size, its content


def is_archive(path: Path) -> bool:
    """Return whether the name of ``path`` is one of an archive."""
    return bool(_ARCHIVE.search(path.name))


def archive_of(path: Path) -> Path | None:
    """Return the archive that ``path`` is, or that it leads into, or None."""
    return next((outer for outer in (path, *path.parents) if is_archive(outer) and outer.is_file()), None)


def unpacked(path: Path) -> Path:
    """Return the folder with the content of an archive; it exists until this process ends.

    Links, devices and names outside of the folder are skipped and counted. A folder that is alone in its folder is
    returned instead of that one. Raises UserError if the archive is damaged, locked, or unpacks to more than 100 times
    its size and 64 MiB, to more than a million files, or to more than fits on the disk.
    """
    folder = _unpack(path, path.stat().st_mtime_ns)
    while [folder] != [folder := _only_folder(folder)]:
        pass
    return folder


def member(path: Path, inner: Path) -> Path:
    """Return where a file or folder of an archive is unpacked; ``inner`` may leave out folders that are alone."""
    whole, folder = _unpack(path, path.stat().st_mtime_ns), unpacked(path)
    return whole / inner if (whole / inner).exists() and not (folder / inner).exists() else folder / inner


def _only_folder(folder: Path) -> Path:
    items = [item for item in folder.iterdir() if not item.name.startswith((".", "__MACOSX"))]
    return items[0] if len(items) == 1 and items[0].is_dir() else folder


@cache
def _unpack(path: Path, changed: int) -> Path:
    folder = _process_folder() / f"{changed}" / path.name
    add_origin(folder, path)
    shutil.rmtree(folder, ignore_errors=True)
    limits = _Limits(path)
    with local_content(path) as content:
        limits.unpack(content, path, folder, 0)
    if limits.skipped:
        say(f"{path}: skipped {limits.skipped} links, devices or names outside of the archive")
    return folder


@cache
def _process_folder() -> Path:
    """Return the folder of this process. Those of processes that were killed are removed."""
    for other in writable_cache().glob(f"{_FOLDER}*"):
        if not psutil.pid_exists(int(other.name.removeprefix(_FOLDER))):
            shutil.rmtree(other, ignore_errors=True)
    folder = writable_cache() / f"{_FOLDER}{os.getpid()}"
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return folder


class _Limits:
    """What an archive, with those in it, may still unpack to."""

    def __init__(self, path: Path):
        self.path, self.skipped, self.files = path, 0, _MAX_FILES
        self.allowed = self.bytes = _ALWAYS + _MAX_RATIO * path.stat().st_size

    def unpack(self, content: Path, path: Path, folder: Path, depth: int) -> None:
        """Write the files of the archive ``path`` into ``folder``. Its bytes are those of the file ``content``."""
        try:
            with _members(content, path) as members:
                for name, is_file, size, file in members:
                    self._write(name, is_file, size, file, folder)
        except _DAMAGES as error:
            reason = str(error).partition(":")[0]
            raise UserError(f"{path} is damaged or of an unknown kind ({reason}); make or fetch it again") from None
        except RuntimeError:  # zipfile's for encrypted members
            raise UserError(f"{path} is locked by a password; unpack it, and give the folder") from None
        except OSError as error:
            raise UserError(f"cannot unpack {path} to {folder} ({error.strerror or error}); free space there") from None
        for archive in [*filter(is_archive, folder.rglob("*"))] if depth < _MAX_DEPTH else []:
            self.unpack(archive, archive, archive.with_name(_ARCHIVE.sub("", archive.name) + ".unpacked"), depth + 1)
            archive.unlink()

    def _write(self, name: str, is_file: bool, size: int, file: IO[bytes] | None, folder: Path) -> None:
        parts = PurePosixPath(name.replace("\\", "/")).parts
        if not is_file or not parts or ".." in parts or parts[0] == "/" or file is None:
            self.skipped += 1
            return
        self.files, self.bytes = self.files - 1, self.bytes - size
        if self.files < 0 or self.bytes < 0:
            raise UserError(
                f"{self.path} unpacks to more than {self.allowed >> 20} MiB or {_MAX_FILES:,} files, as no archive of "
                "texts does; if you trust it, unpack it, and give the folder"
            )
        target = folder.joinpath(*parts)
        target.parent.mkdir(parents=True, exist_ok=True)
        with target.open("wb") as copy:
            shutil.copyfileobj(file, copy)


@contextmanager
def _members(content: Path, path: Path) -> Iterator[Iterator[_Member]]:
    """Yield the members except folders. Neither library reads more bytes of a member than the size it states."""
    if zipfile.is_zipfile(content):
        with zipfile.ZipFile(content) as archive:
            infos = (info for info in archive.infolist() if not info.is_dir())
            yield (
                (info.filename, not stat.S_ISLNK(info.external_attr >> 16), info.file_size, archive.open(info))
                for info in infos
            )
        return
    with tarfile.open(content) as tar:
        members = (member for member in tar if not member.isdir())
        yield ((m.name, m.isreg(), m.size, tar.extractfile(m) if m.isreg() else None) for m in members)
