"""Paths on a store, such as s3://, gs://, hf:// and hdfs://: where each is kept on this machine, and what is asked of
the store, by fsspec. Credentials come from the environment, as the library of each protocol reads them.

What is kept of a URL is a folder or file of the cache (``RAYSUM_CACHE``, by default ~/.cache/raysum) whose path tells
the URL: whoever has one has the other.
"""

import errno
import fcntl
import hashlib
import logging
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from raysum.errors import UserError, check_no_password, without_users
from raysum.runtime.checksums import check_file
from raysum.runtime.extras import needs

if TYPE_CHECKING:
    from fsspec import AbstractFileSystem

_URL = re.compile(r"(?s)([a-z][a-z0-9+.-]+):/{1,2}(.*)")  # with one slash, too: pathlib joins two
_LIBRARIES = {"s3": "s3fs", "s3a": "s3fs", "gs": "gcsfs", "gcs": "gcsfs", "hf": "huggingface_hub"}
_FETCHED_FIRST = ("http", "https", "ftp")  # whose folders have no listing, and whose files may change unseen
_TRIES = 2  # of s3fs, and in each of botocore: a server that says nothing is left after a minute, not after seven
_PATIENCE: dict[str, Any] = dict.fromkeys(("s3", "s3a"), {"config_kwargs": {"retries": {"total_max_attempts": _TRIES}}})
_WITH_BUCKETS = ("s3:", "s3a:", "gs:", "gcs:")
_HADOOP = re.compile("libhdfs|libjvm|[Hh]adoop")  # what pyarrow says, where these are not there, in an OSError
_ROOT = "@"  # in the cache: that a path begins at the root of a store without hosts
_VERSION = ".version-"  # a folder of the cache that is one state of the URL above it
_TOLD_BY = ("ETag", "etag", "md5Hash", "blob_id", "mtime", "modified", "created", "LastModified")
_AT_ONCE = 8  # uploads
_LOCAL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EROFS)  # what a store does not say
_SECRET = re.compile("SECRET|TOKEN|PASSWORD|CREDENTIAL|ACCESS_KEY", re.IGNORECASE)


def cache_folder() -> Path:
    return Path(os.environ.get("RAYSUM_CACHE") or "~/.cache/raysum").expanduser().absolute()


def check_cache() -> None:
    """Raises UserError where the cache cannot be written."""
    try:
        cache_folder().mkdir(parents=True, exist_ok=True)
        if not os.access(cache_folder(), os.W_OK | os.X_OK):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))
    except OSError as error:
        raise UserError(f"cannot write the cache {cache_folder()} ({error.strerror}); set RAYSUM_CACHE") from None


def is_url(path: str | os.PathLike[str]) -> bool:
    return bool(_URL.fullmatch(os.fspath(path)))


def local(path: str | os.PathLike[str]) -> Path:
    """``path``, absolute; of a URL the place in the cache where it is kept. Raises UserError where it cannot be."""
    if not (found := _URL.fullmatch(os.fspath(path))):
        return Path(path).expanduser().absolute()
    check_no_password(os.fspath(path))
    protocol, rest = found.groups()
    if protocol in ("file", "local"):
        return Path(f"/{rest.lstrip('/')}")
    parts = [_ROOT] * rest.startswith("/") + [part for part in rest.split("/") if part]
    if ".." in parts or not parts:
        raise UserError(f"{protocol}://... is no place on a store; name it as {protocol}://BUCKET/FOLDER")
    check_cache()
    return kept() / protocol / Path(*parts)


def kept() -> Path:
    return cache_folder() / "kept"


def address(path: Path) -> str:
    """What means the same on any machine as ``path`` here: the URL of what is kept, in the state that is kept."""
    if not path.is_relative_to(kept()):
        return str(path)
    protocol, *parts = path.relative_to(kept()).parts
    return f"{protocol}://{'/'.join(parts)}".replace(f"://{_ROOT}/", ":///")


def url_of(path: Path) -> str | None:
    """The URL that is kept at ``path``; None of what is no copy of anything."""
    if not path.is_relative_to(kept()):
        return None
    return "/".join(part for part in address(path).split("/") if not part.startswith(_VERSION))


def shown(path: Path) -> str:
    """``path`` as the user named it."""
    return url_of(path) or str(path)


def as_named(text: str) -> str:
    """``text`` with URLs in place of the paths of what is kept of them."""

    def named(found: re.Match[str]) -> str:
        return str(url_of(Path(found[0])))

    return re.sub(rf"{re.escape(str(kept()))}/[^\s;,:'\"()]+", named, text)


def version(folder: Path, content: bytes | None = None) -> Path:
    """Where one state of what ``folder`` keeps is, which ``content`` tells from others; or a state to come."""
    return folder / f"{_VERSION}{hashlib.sha256(content).hexdigest()[:16] if content else 'new'}"


def is_version(path: Path) -> bool:
    return path.name.startswith(_VERSION)


def store(url: str) -> "tuple[AbstractFileSystem, str]":
    """The file system of ``url``, and the path in it. Raises UserError where the library for it is not installed."""
    import fsspec

    check_no_password(url)
    protocol = url.partition(":")[0]
    if protocol in _FETCHED_FIRST:
        raise UserError(f"{protocol}:// is no store; fetch the file (curl -LO URL) and name that")
    if protocol in _LIBRARIES:
        needs(_LIBRARIES[protocol], f"{protocol}://")
        logging.getLogger(_LIBRARIES[protocol]).setLevel(logging.CRITICAL)  # of a failure we tell ourselves
    if protocol not in fsspec.available_protocols():
        raise UserError(f"{protocol}:// is no protocol known here; s3://, gs://, hf:// and hdfs:// are")
    with asked(url):
        try:
            files, path = fsspec.url_to_fs(url, **_PATIENCE.get(protocol, {}))
        except (ImportError, OSError) as error:
            if isinstance(error, ImportError) or _HADOOP.search(str(error)):
                raise UserError(f"{protocol}:// needs a library that is not found: {_public(error)}") from None
            raise
    if protocol in _PATIENCE:
        files.retries = _TRIES
    return files, path


@contextmanager
def asked(url: str) -> Iterator[None]:
    """The block asks the store of ``url``. Raises UserError for what the store, or the way to it, refuses; of what is
    not there FileNotFoundError."""
    try:
        yield
    except (UserError, FileNotFoundError, FileExistsError):
        raise
    except Exception as error:
        if isinstance(error, OSError) and error.errno in _LOCAL:
            raise UserError(
                f"cannot keep {url} in {cache_folder()} ({error.strerror}); set RAYSUM_CACHE elsewhere"
            ) from None
        told = f"({type(error).__name__}: {_public(error)})"
        if isinstance(error, PermissionError) or "redential" in type(error).__name__:
            raise UserError(f"{url} is denied {told}; check the credentials in the environment and rights") from None
        raise UserError(f"{url} cannot be reached {told}; check the address, the network and the credentials") from None


def _public(error: Exception) -> str:
    """The first line of what an error says, without what is secret in the environment or a URL."""
    text = next((line.strip() for line in str(error).splitlines() if line.strip()), "no reason is told")
    for name, value in os.environ.items():
        if len(value) > 3 and _SECRET.search(name):
            text = text.replace(value, "***")
    return without_users(text)[:300]


def listed(url: str) -> dict[str, tuple[int, str]]:
    """Size in bytes, and what changes with the content, of each file in the folder ``url``, by its path inside; of a
    file by an empty one."""
    found, root = {}, store(url)[1].rstrip("/")
    for name, told in _find(url).items():
        inside = name.strip("/").removeprefix(root.strip("/")).strip("/")
        if told.get("type") == "file" and not name.endswith("/") and ".." not in inside.split("/"):
            size = int(told.get("size") or 0)
            found[inside] = size, f"{size} {next((told[key] for key in _TOLD_BY if told.get(key)), '')}"
    return found


def _find(url: str) -> dict[str, Any]:
    files, root = store(url)
    files.invalidate_cache()
    with asked(url):
        try:
            return files.find(root, detail=True)
        except FileNotFoundError:
            return {}


def read(url: str) -> bytes | None:
    """The content of a small file; None where there is none."""
    files, name = store(url)
    with asked(url):
        try:
            return files.cat_file(name)
        except FileNotFoundError:
            return None


def check_bucket(url: str) -> None:
    """Raises UserError where it is known that there is no such bucket."""
    protocol, _, bucket, *_ = url.replace("//", "/").replace("/", "//", 1).split("/")  # pathlib writes s3:/bucket
    root, there = f"{protocol}//{bucket}", True
    with suppress(UserError):  # it may not be asked for
        there = protocol not in _WITH_BUCKETS or exists(root)
    if not there:
        raise UserError(f"there is no bucket {root}, or not for these credentials; check its name")


def exists(url: str) -> bool:
    files, name = store(url)
    with asked(url):
        files.invalidate_cache()
        return files.exists(name)


def fetch(path: Path, told: Mapping[str, Any] | None = None, url: str | None = None, anew: bool = False) -> Path:
    """``path``, fetched from the store if it is a file that is kept of one (or of ``url``) and is not here yet; or
    ``anew``.

    It has its name once it is whole, by the checksums that are ``told``; of processes that want it at once one fetches
    it. Raises UserError where the store does not give it whole.
    """
    url = url or url_of(path)
    if url is None or (path.is_file() and not anew):
        return path
    if ".." in path.parts:  # a store may hold any names
        raise UserError(f"{url} leads out of its folder; it is not fetched")
    files, name = store(url)
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(f".{path.name}.partial")
    with partial.open("ab") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        try:
            if anew or not path.is_file():
                with asked(url):
                    files.get_file(name, str(partial))
                check_file(partial, told or {})
                partial.replace(path)
        except FileNotFoundError:
            raise UserError(f"{url} is missing on the store; put back a copy, or make it again") from None
        except UserError as damage:
            raise UserError(str(damage).replace(str(partial), url)) from None
        finally:
            partial.unlink(missing_ok=True)
    return path


def upload(folder: Path, names: Sequence[str]) -> None:
    """Put files of ``folder``, which is kept of a URL, on the store. Raises UserError where that cannot be."""
    url = url_of(folder)
    assert url, f"{folder} is kept of a URL"
    files, root = store(url)
    try:
        with asked(url), ThreadPoolExecutor(_AT_ONCE if files.async_impl else 1) as pool:
            put = [pool.submit(files.put_file, str(folder / name), f"{root}/{name}") for name in names]
            try:
                for one in put:
                    one.result()
            finally:
                pool.shutdown(cancel_futures=True)
    except FileNotFoundError as error:
        raise UserError(f"cannot write {url} ({_public(error)}); make the bucket first") from None


def remove(url: str, names: Sequence[str]) -> None:
    """Take files out of the folder ``url``, as far as they are there."""
    files, root = store(url)
    for name in names:
        with asked(url):
            try:
                files.rm_file(f"{root}/{name}")
            except FileNotFoundError:
                continue
