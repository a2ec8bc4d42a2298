"""Paths on stores (s3://, gs://, hf://, hdfs://), by fsspec, and their mirrors in the local cache.

Credentials come from the environment, as the library of each protocol reads them. The mirror of a URL is a file or
folder of the cache (``RAYSUM_CACHE``, by default ~/.cache/raysum); URL and path can be converted into each other.
"""

import errno
import hashlib
import logging
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from raysum.errors import UserError, check_no_password, without_users
from raysum.runtime.checksums import check_file
from raysum.runtime.extras import needs
from raysum.runtime.lock import waiting_lock

if TYPE_CHECKING:
    from fsspec import AbstractFileSystem

_URL = re.compile(r"(?s)([a-z][a-z0-9+.-]+):/{1,2}(.*)")  # also with one slash, since pathlib merges slashes
_LIBRARIES = {"s3": "s3fs", "s3a": "s3fs", "gs": "gcsfs", "gcs": "gcsfs", "hf": "huggingface_hub"}
_FETCHED_FIRST = ("http", "https", "ftp")  # they have no folder listings, and changes of files cannot be detected
_TRIES = 2  # of s3fs, each with that many of botocore: a silent server costs one minute instead of seven
_OPTIONS: dict[str, Any] = dict.fromkeys(("s3", "s3a"), {"config_kwargs": {"retries": {"total_max_attempts": _TRIES}}})
_WITH_BUCKETS = ("s3", "s3a", "gs", "gcs")
_ROOT = "@"  # first folder in the cache of a URL without a host, such as hdfs:///data
_VERSION = ".version-"  # prefix of a cache folder that holds one version of the URL above it
_VERSION_KEYS = ("ETag", "etag", "md5Hash", "blob_id", "mtime", "modified", "created", "LastModified")
_AT_ONCE = 8  # parallel uploads
_LOCAL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EROFS)  # errors of the local disk
_SECRET = re.compile("SECRET|TOKEN|PASSWORD|CREDENTIAL|ACCESS_KEY|API_KEY", re.IGNORECASE)


def cache_folder() -> Path:
    return Path(os.environ.get("RAYSUM_CACHE") or "~/.cache/raysum").expanduser().absolute()


def writable_cache() -> Path:
    """Return the cache folder, which is created. Raises UserError if it cannot be written."""
    folder = cache_folder()
    try:
        folder.mkdir(parents=True, exist_ok=True)
        if not os.access(folder, os.W_OK | os.X_OK):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))
    except OSError as error:
        raise UserError(f"cannot write the cache {folder} ({error.strerror}); set RAYSUM_CACHE") from None
    return folder


def kept() -> Path:
    """Return the folder of all mirrors."""
    return cache_folder() / "kept"


def is_url(path: str | os.PathLike[str]) -> bool:
    return bool(_URL.fullmatch(os.fspath(path)))


def local(path: str | os.PathLike[str]) -> Path:
    """Return the absolute local path: of a URL, that of its mirror.

    Raises UserError if the URL is not valid, or if the cache cannot be written.
    """
    if not (found := _URL.fullmatch(os.fspath(path))):
        return Path(path).expanduser().absolute()
    check_no_password(os.fspath(path))
    protocol, rest = found.groups()
    if protocol in ("file", "local"):
        return Path(f"/{rest.lstrip('/')}")
    parts = [_ROOT] * rest.startswith("/") + [part for part in rest.split("/") if part]
    if ".." in parts or not parts:
        raise UserError(f"{protocol}://... is no path on a store; write {protocol}://BUCKET/FOLDER")
    writable_cache()
    return kept() / protocol / Path(*parts)


def address(path: Path) -> str:
    """Return the path, or the URL and version of a mirror: a name that is valid on all machines."""
    if not path.is_relative_to(kept()):
        return str(path)
    protocol, *parts = path.relative_to(kept()).parts
    return f"{protocol}://{'/'.join(parts)}".replace(f"://{_ROOT}/", ":///")


def url_of(path: Path) -> str | None:
    """Return the URL that ``path`` mirrors, or None for other paths."""
    if not path.is_relative_to(kept()):
        return None
    return "/".join(part for part in address(path).split("/") if not part.startswith(_VERSION))


def shown(path: Path) -> str:
    """Return ``path`` as the user wrote it."""
    return url_of(path) or str(path)


def as_named(text: str) -> str:
    """Replace paths of mirrors in ``text`` by their URLs."""
    return re.sub(rf"{re.escape(str(kept()))}/[^\s;,:'\"()]+", lambda found: shown(Path(found[0])), text)


def version(folder: Path, content: bytes | None = None) -> Path:
    """Return the folder of the version of ``folder`` that ``content`` identifies; by default of a new version."""
    return folder / f"{_VERSION}{hashlib.sha256(content).hexdigest()[:16] if content else 'new'}"


def is_version(path: Path) -> bool:
    return path.name.startswith(_VERSION)


def store(url: str) -> "tuple[AbstractFileSystem, str]":
    """Return the file system of ``url`` and the path in it. Raises UserError if its library is not installed."""
    import fsspec

    check_no_password(url)
    protocol = url.partition(":")[0]
    if protocol in _FETCHED_FIRST:
        raise UserError(f"{protocol}:// is not supported; download the file (curl -LO URL) and pass its path")
    if protocol in _LIBRARIES:
        needs(_LIBRARIES[protocol], f"{protocol}://")
        logging.getLogger(_LIBRARIES[protocol]).setLevel(logging.CRITICAL)  # we report failures ourselves
    if protocol not in fsspec.available_protocols():
        raise UserError(f"{protocol}:// is an unknown protocol; use s3://, gs://, hf:// or hdfs://")
    with store_errors(url):
        try:
            files, path = fsspec.url_to_fs(url, **_OPTIONS.get(protocol, {}))
        except ImportError as error:
            raise UserError(f"{protocol}:// needs a library that is not found: {public_message(error)}") from None
    if protocol in _OPTIONS:
        files.retries = _TRIES
    return files, path


@contextmanager
def store_errors(url: str) -> Iterator[None]:
    """Convert errors of a store in the block to UserError, except FileNotFoundError and FileExistsError."""
    try:
        yield
    except (UserError, FileNotFoundError, FileExistsError):
        raise
    except Exception as error:
        reason = f"({type(error).__name__}: {public_message(error)})"
        if isinstance(error, OSError) and error.errno in _LOCAL:
            problem = f"cannot be kept in {cache_folder()} ({error.strerror}); set RAYSUM_CACHE elsewhere"
        elif isinstance(error, PermissionError) or "redential" in type(error).__name__:
            problem = f"is denied {reason}; check the credentials in the environment and rights"
        else:
            problem = f"cannot be reached {reason}; check the address, the network and the credentials"
        raise UserError(f"{url} {problem}") from None


def public_message(error: Exception) -> str:
    """Return the first line of an error's message without secrets of the environment or of URLs."""
    text = next((line.strip() for line in str(error).splitlines() if line.strip()), "no reason given")
    for name, value in os.environ.items():
        if len(value) > 3 and _SECRET.search(name):
            text = text.replace(value, "***")
    return without_users(text)[:300]


def listed(url: str) -> dict[str, tuple[int, str]]:
    """Return (size in bytes, version) of each file in the folder ``url`` by its relative path, "" if ``url`` is a file.

    The version is a text that changes with the content.
    """
    found: dict[str, tuple[int, str]] = {}
    files, root = store(url)
    files.invalidate_cache()
    with store_errors(url), suppress(FileNotFoundError):
        for name, info in files.find(root, detail=True).items():
            inside = name.strip("/").removeprefix(root.strip("/")).strip("/")
            if info.get("type") == "file" and not name.endswith("/") and ".." not in inside.split("/"):
                size = int(info.get("size") or 0)
                found[inside] = size, f"{size} {next((info[key] for key in _VERSION_KEYS if info.get(key)), '')}"
    return found


def read(url: str) -> bytes | None:
    """Return the content of a small file, or None if it does not exist."""
    files, name = store(url)
    with store_errors(url), suppress(FileNotFoundError):
        return files.cat_file(name)
    return None


def exists(url: str) -> bool:
    files, name = store(url)
    with store_errors(url):
        files.invalidate_cache()
        return files.exists(name)


def check_bucket(url: str) -> None:
    """Raises UserError if the store says that the bucket does not exist."""
    protocol, _, path = url.partition(":")
    root, is_there = f"{protocol}://{path.strip('/').partition('/')[0]}", True
    with suppress(UserError):  # listing it may be forbidden
        is_there = protocol not in _WITH_BUCKETS or exists(root)
    if not is_there:
        raise UserError(f"there is no bucket {root}, or not for these credentials; check its name")


def fetch(path: Path, expected: Mapping[str, Any] | None = None, replace: bool = False) -> Path:
    """Return ``path`` after downloading it, if it mirrors a URL and is missing or ``replace`` is set.

    The file appears under its name only when it matches the ``expected`` checksums. Of several processes that need it,
    one downloads it. Raises UserError if the download fails.
    """
    url = url_of(path)
    if url is None or (path.is_file() and not replace):
        return path
    if ".." in path.parts:  # names on a store are arbitrary
        raise UserError(f"{url} leads out of its folder; it is not fetched")
    files, name = store(url)
    partial = path.with_name(f".{path.name}.partial")
    with waiting_lock(partial):
        try:
            if replace or not path.is_file():
                with store_errors(url):
                    files.get_file(name, str(partial))
                check_file(partial, expected or {})
                partial.replace(path)
        except FileNotFoundError:
            raise UserError(f"{url} is missing on the store; put back a copy, or create it again") from None
        except UserError as damage:
            raise UserError(str(damage).replace(str(partial), url)) from None
        finally:
            partial.unlink(missing_ok=True)
    return path


def upload(folder: Path, names: Sequence[str], source: Path | None = None) -> None:
    """Upload files of the mirror ``folder``, by default from there. Raises UserError if the store refuses them."""
    url = url_of(folder)
    assert url, f"{folder} mirrors no URL"
    files, root = store(url)
    try:
        for start in range(0, len(names), _AT_ONCE):
            part = names[start : start + _AT_ONCE]
            with store_errors(url):
                files.put([str((source or folder) / name) for name in part], [f"{root}/{name}" for name in part])
    except FileNotFoundError as error:
        raise UserError(f"cannot write {url} ({public_message(error)}); make the bucket first") from None


def remove(url: str, names: Sequence[str]) -> None:
    """Delete files of the folder ``url`` that exist."""
    files, root = store(url)
    for name in names:
        with store_errors(url), suppress(FileNotFoundError):
            files.rm_file(f"{root}/{name}")
