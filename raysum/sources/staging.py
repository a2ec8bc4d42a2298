"""Staging of sources on a store: local placeholders with the same names and sizes that take no disk space.

A placeholder has content only while the file is read.
"""

import atexit
import gzip
import hashlib
import os
import re
import shutil
import socket
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import BinaryIO, cast

import psutil

from raysum.errors import UserError
from raysum.runtime.remote import (
    cache_folder,
    check_bucket,
    fetch,
    kept,
    listed,
    local,
    store,
    store_errors,
    url_of,
)

_PATTERN = re.compile(r"[*?\[]")
_GZIPPED = re.compile(r"\.gz(-|$)")  # also with the number of a shard behind
_downloaded = set[Path]()  # files of this process that have content now


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
        _write_placeholder(folder / name, size, int(hashlib.sha256(version.encode()).hexdigest()[:14], 16))
    return [path]


def staged_path(url: str) -> Path:
    """Return the path of the placeholder of ``url`` in this process."""
    return _staging_folder(os.getpid(), cache_folder()) / local(url).relative_to(kept())


def _write_placeholder(path: Path, size: int, changed: int) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("wb") as file:
        file.truncate(size)
    os.utime(path, ns=(changed, changed))


@cache
def _staging_folder(process: int, within: Path) -> Path:
    """Return the folder of this process, removed at its exit. Remove the folders of killed processes."""
    folders, prefix = within / "sources", f"{socket.gethostname()}@"
    folders.mkdir(parents=True, exist_ok=True)
    for folder in folders.glob(f"{prefix}*"):
        if not psutil.pid_exists(int(folder.name.removeprefix(prefix).partition("-")[0])):
            shutil.rmtree(folder, ignore_errors=True)
    own = Path(tempfile.mkdtemp(prefix=f"{prefix}{process}-", dir=folders))
    atexit.register(shutil.rmtree, own, ignore_errors=True)
    return own


def with_urls(text: str) -> str:
    """Return ``text`` with URLs instead of the paths of placeholders."""
    if not _staging_folder.cache_info().currsize:
        return text
    folder = re.escape(str(_staging_folder(os.getpid(), cache_folder())))
    return re.sub(rf"{folder}/([^/]+)/", r"\1://", text).replace("://@/", ":///")


def origin_url(path: Path) -> str:
    """Return the URL of a placeholder, or "" for any other path."""
    url = with_urls(str(path))
    return "" if url == str(path) else url


@contextmanager
def downloaded(path: Path) -> Iterator[None]:
    """Give the file its content within the block. Raises UserError if the store does not provide it."""
    url = "" if path in _downloaded or path.is_dir() else origin_url(path)
    if not url:
        yield
        return
    placeholder = path.stat()
    path.unlink()
    _downloaded.add(path)
    try:
        fetch(path, url=url)
        yield
    finally:
        _downloaded.discard(path)
        _write_placeholder(path, placeholder.st_size, placeholder.st_mtime_ns)


@contextmanager
def opened(path: Path) -> Iterator[BinaryIO]:
    """Open a file with its content, unpacked if its name says that it is gzipped."""
    with downloaded(path), gzip.open(path) if _GZIPPED.search(path.name) else path.open("rb") as file:
        yield cast(BinaryIO, file)


def head(path: Path, count: int) -> bytes:
    """Return the first ``count`` bytes of a file, without downloading the rest."""
    if url := "" if path in _downloaded else origin_url(path):
        files, name = store(url)
        with store_errors(url):
            return files.cat_file(name, start=0, end=min(count, path.stat().st_size))
    with path.open("rb") as file:
        return file.read(count)


def natural_key(name: str) -> list[tuple[int, str]]:
    """Return the key of a natural sort, which has "part 2" before "part 10"."""
    return [(int(part), "") if part.isdecimal() else (-1, part) for part in re.split(r"(\d+)", name)]
