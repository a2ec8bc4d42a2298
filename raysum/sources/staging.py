"""Sources on a store: local placeholders with the same names and sizes, which take no disk space.

Readers open files with ``opened`` or ``local_content``, which download a file for as long as it is read.
"""

import atexit
import gzip
import hashlib
import os
import re
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import BinaryIO, cast

from raysum.errors import UserError
from raysum.runtime.remote import (
    check_bucket,
    kept,
    listed,
    local,
    store,
    store_errors,
    url_of,
    writable_cache,
)
from raysum.sources.documents.text import as_utf8

_PATTERN = re.compile(r"[*?\[]")
_GZIPPED = re.compile(r"\.gz(-|$)")  # also with the number of a shard behind


def stage(url: str, with_siblings: bool = False) -> list[Path]:
    """Return placeholders for the files and folders that match ``url``, in natural order.

    ``with_siblings`` also stages the other files of the folder. Raises UserError if nothing matches.
    """
    if url_of(path := local(url)) is None:  # file://
        return [path]
    if _PATTERN.search(url):
        files, pattern = store(url)
        with store_errors(url):
            names = files.glob(pattern)
        if not names:
            check_bucket(url)
            raise UserError(f"no file on the store matches {url}")
        bucket = url.removesuffix(pattern)
        return [path for name in sorted(names, key=natural_key) for path in stage(bucket + name, with_siblings)]
    if not (files_there := listed(url)):
        check_bucket(url)
        raise UserError(f"no such file or folder: {url}")
    path = folder = staged_path(url)
    if with_siblings and "" in files_there:
        folder, files_there = path.parent, listed(url.rpartition("/")[0])
    shutil.rmtree(folder, ignore_errors=True)  # placeholders of an earlier listing
    for name, (size, version) in files_there.items():
        placeholder, changed = folder / name, int(hashlib.sha256(version.encode()).hexdigest()[:14], 16)
        placeholder.parent.mkdir(parents=True, exist_ok=True)
        placeholder.touch()
        os.truncate(placeholder, size)
        os.utime(placeholder, ns=(changed, changed))
    return [path]


def staged_path(url: str) -> Path:
    """Return the path of the placeholder of ``url`` in this process."""
    return _staging_folder(os.getpid()) / local(url).relative_to(kept())


@cache
def _staging_folder(process: int) -> Path:
    """Return the folder of this process, which is removed at its exit."""
    folder = Path(tempfile.mkdtemp(prefix="raysum-sources-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return folder


_origins = dict[str, str]()  # paths of archives by the folders they are unpacked to


def add_origin(folder: Path, archive: Path) -> None:
    """Let messages name ``archive`` for ``folder``."""
    _origins[str(folder)] = str(archive)


def with_urls(text: str) -> str:
    """Return ``text`` with URLs and archives instead of the paths of placeholders and unpacked folders."""
    for unpacked, archive in _origins.items():
        text = text.replace(unpacked, archive)
    return _with_remote_urls(text)


def _with_remote_urls(text: str) -> str:
    if not _staging_folder.cache_info().currsize:
        return text
    folder = re.escape(str(_staging_folder(os.getpid())))
    return re.sub(rf"{folder}/([^/]+)/", r"\1://", text).replace("://@/", ":///")


def origin_url(path: Path) -> str:
    """Return the URL of a placeholder, or "" for any other path."""
    url = _with_remote_urls(str(path))
    return "" if url == str(path) else url


@contextmanager
def local_content(path: Path) -> Iterator[Path]:
    """Yield the path of the content of a file. Raises UserError if the store does not provide it.

    The download of a placeholder has no name, so it takes no disk space after the block or a kill.
    """
    if not (url := origin_url(path)):
        yield path
        return
    files, name = store(url)
    with tempfile.TemporaryFile(dir=writable_cache()) as file:
        download = f"/proc/self/fd/{file.fileno()}"
        try:
            with store_errors(url):
                files.get_file(name, download)
        except FileNotFoundError:
            raise UserError(f"{url} is missing on the store; put back a copy, or create it again") from None
        yield Path(download)


@contextmanager
def opened(path: Path) -> Iterator[BinaryIO]:
    """Open a file with its content, unpacked if its name says that it is gzipped."""
    open_file = gzip.open if _GZIPPED.search(path.name) else open
    with local_content(path) as content_path, open_file(content_path, "rb") as file:
        yield cast(BinaryIO, file)


@contextmanager
def opened_text(path: Path) -> Iterator[BinaryIO]:
    """Open a text file as ``opened`` does, as UTF-8. A file in another encoding is converted to a copy on disk."""
    with opened(path) as file:
        lines = as_utf8(file, with_urls(str(path)))
        if lines is None:
            yield file
            return
        with tempfile.TemporaryFile(dir=writable_cache()) as copy:
            copy.writelines(lines)
            copy.seek(0)
            yield cast(BinaryIO, copy)


def head(path: Path, count: int) -> bytes:
    """Return the first ``count`` bytes of a file, without downloading the rest."""
    if url := origin_url(path):
        files, name = store(url)
        with store_errors(url):
            return files.cat_file(name, start=0, end=min(count, path.stat().st_size))
    with path.open("rb") as file:
        return file.read(count)


def natural_key(name: str) -> list[tuple[int, str]]:
    """Return the key of a natural sort, which has "part 2" before "part 10"."""
    return [(int(part), "") if part.isdecimal() else (-1, part) for part in re.split(r"(\d+)", name)]
