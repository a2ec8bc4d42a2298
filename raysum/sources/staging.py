"""Sources on a store: files of the same names and sizes stand for them here, which take no room on the disk, and each
has its content only while it is read.
"""

import atexit
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

import psutil

from raysum.errors import UserError
from raysum.runtime.remote import (
    cache_folder,
    check_bucket,
    fetch,
    kept,
    listed,
    local,
    shown,
    store,
    store_errors,
    url_of,
)

_PATTERN = re.compile(r"[*?\[]")
_present = set[Path]()  # files of this process that have their content


def placed(url: str, beside: bool = False) -> list[Path]:
    """What stands for the files and folders that ``url``, or a pattern, names; ``beside``: with what lies in the same
    folder. In natural order. Raises UserError where it names nothing."""
    if url_of(here := local(url)) is None:  # file://
        return [here]
    if _PATTERN.search(url):
        files, pattern = store(url)
        with store_errors(url):
            names = files.glob(pattern)
        if not names:
            check_bucket(url)
            raise UserError(f"no file on the store matches {url}")
        before = url.removesuffix(pattern)
        return [part for name in sorted(names, key=natural) for part in placed(before + name, beside)]
    if not (found := listed(url)):
        check_bucket(url)
        raise UserError(f"no such file or folder: {url}")
    path = folder = stand_in(url)
    if beside and "" in found:
        folder, found = path.parent, listed(url.rpartition("/")[0])
    shutil.rmtree(folder, ignore_errors=True)  # of a former look
    for name, (size, told) in found.items():
        _write_stand_in(folder / name, size, int(hashlib.sha256(told.encode()).hexdigest()[:14], 16))
    return [path]


def stand_in(url: str) -> Path:
    """What stands in this process for the file or folder ``url``."""
    return _root(os.getpid(), cache_folder()) / local(url).relative_to(kept())


def _write_stand_in(path: Path, size: int, changed: int) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("wb") as file:
        file.truncate(size)
    os.utime(path, ns=(changed, changed))


@cache
def _root(process: int, within: Path) -> Path:
    """The folder of this process, removed with it. What killed ones have left is removed now."""
    places, own = within / "sources", f"{socket.gethostname()}@"
    places.mkdir(parents=True, exist_ok=True)
    for left in places.glob(f"{own}*"):
        if not psutil.pid_exists(int(left.name.removeprefix(own).partition("-")[0])):
            shutil.rmtree(left, ignore_errors=True)
    root = Path(tempfile.mkdtemp(prefix=f"{own}{process}-", dir=places))
    atexit.register(shutil.rmtree, root, ignore_errors=True)
    return root


def origin(path: Path) -> str:
    """The URL that ``path`` stands for; an empty one where it stands for none."""
    if not _is_used() or not path.is_relative_to(root := _root(os.getpid(), cache_folder())):
        return ""
    return shown(kept() / path.relative_to(root))


def _is_used() -> bool:
    """Whether this process reads anything on a store."""
    return _root.cache_info().currsize > 0


def as_asked(text: str) -> str:
    """``text`` with URLs in place of what stands for them."""
    return (
        re.sub(rf"{re.escape(str(_root(os.getpid(), cache_folder())))}/([^/]+)/", r"\1://", text)
        if _is_used()
        else text
    )


@contextmanager
def present(path: Path) -> Iterator[None]:
    """The file has its content in the block. Raises UserError where the store does not give it."""
    url = "" if path in _present or path.is_dir() else origin(path)
    if not url:
        yield
        return
    told = path.stat()
    path.unlink()
    _present.add(path)
    try:
        fetch(path, url=url)
        yield
    finally:
        _present.discard(path)
        _write_stand_in(path, told.st_size, told.st_mtime_ns)


def head(path: Path, count: int) -> bytes:
    """The first ``count`` bytes of a file, which need not be present."""
    if url := "" if path in _present else origin(path):
        files, name = store(url)
        with store_errors(url):
            return files.cat_file(name, start=0, end=min(count, path.stat().st_size))
    with path.open("rb") as file:
        return file.read(count)


def natural(name: str) -> list[tuple[int, str]]:
    """What names are sorted by: part 2 before part 10."""
    return [(int(part), "") if part.isdecimal() else (-1, part) for part in re.split(r"(\d+)", name)]
