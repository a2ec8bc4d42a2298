"""Files that other processes read: written completely or not at all."""

import codecs
import errno
import json
import math
import os
import re
import shutil
import tempfile
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from itertools import compress
from pathlib import Path
from typing import Any

from raysum.errors import UserError
from raysum.runtime.lock import LOCK, folder_lock

_TRUST = "RAYSUM_TRUST_OTHERS"  # environment variable; 1 allows unpickling files of other users
_URL = re.compile(r"(?<![^/])[a-z][a-z0-9+.-]+:/.*")  # with one slash, as pathlib writes it
# Texts in the errors of safetensors, torch and Ray's workers if the disk or the quota is full.
_UNWRITTEN = ("(os error ", "inline_container", "PytorchStreamWriter", "[Errno 27]", "[Errno 28]", "[Errno 122]")


@contextmanager
def new_folder(out: Path, can_resume: Callable[[Path], bool] = lambda folder: False) -> Iterator[Path]:
    """Yield a folder that is renamed to ``out`` if the block succeeds, and deleted if it fails.

    The folder of a killed process is deleted first, unless ``can_resume`` accepts it. Raises UserError if ``out``
    exists, if another process writes it, or if it cannot be written.
    """
    check_vacant(out)
    folder = out.with_name(f".{out.name}.unfinished")
    with folder_lock(out, out.with_name(f".{out.name}.lock")), writing(out):
        check_vacant(out)  # another process may have created it
        if not can_resume(folder):
            shutil.rmtree(folder, ignore_errors=True)
            folder.mkdir()
        try:
            yield folder
            folder.replace(out)
        finally:
            shutil.rmtree(folder, ignore_errors=True)


def check_own(folder: Path) -> None:
    """Raises UserError if another user owns a file of ``folder``, which the caller will unpickle.

    Unpickling runs code that the author of a file chose. ``RAYSUM_TRUST_OTHERS=1`` in the environment allows it. Files
    that this user copied or unpacked belong to this user, who must trust their source.
    """
    for path in (folder, *folder.rglob("*")):
        if path.exists() and path.stat().st_uid != os.getuid() and os.environ.get(_TRUST) != "1":
            raise UserError(
                f"{path} belongs to another user, and resuming from {folder} would run code that they chose; "
                f"if you trust them, copy the folder or set {_TRUST}=1"
            )


@contextmanager
def writing(folder: Path) -> Iterator[None]:
    """Convert errors of the block that come from writing ``folder``, such as a full disk, to UserError."""
    try:
        yield
    except Exception as error:
        foreign = isinstance(error, FileNotFoundError) and not _is_along(Path(str(error.filename)), folder)
        if (isinstance(error, OSError) and not foreign) or any(words in str(error) for words in _UNWRITTEN):
            lines = [line for line in str(error).splitlines() if any(words in line for words in _UNWRITTEN)]
            reason = getattr(error, "strerror", None) or (lines or [str(error)])[-1]
            fix = "" if isinstance(error, FileExistsError | NotADirectoryError) else "free space there, or "
            raise UserError(f"cannot write {folder}: {reason}; {fix}choose another folder") from None
        raise


def _is_along(path: Path, folder: Path) -> bool:
    """Return whether ``path`` is in ``folder``, or is the folder itself or one above it."""
    path, folder = path.absolute(), folder.absolute()
    return path == folder or folder in path.parents or path in folder.parents


def check_writable(folder: Path) -> None:
    """Raises UserError if ``folder``, which need not exist, cannot get files: before work whose result they are."""
    missing = [each for each in (folder, *folder.parents) if not each.exists()]
    with writing(folder):
        try:
            folder.mkdir(parents=True, exist_ok=True)
            with tempfile.TemporaryFile(dir=folder):
                pass
        finally:
            for each in missing:
                with suppress(OSError):  # another process has a file there
                    each.rmdir()


def check_picture(file: Path) -> None:
    """Raises UserError if ``file`` is neither a PNG nor an SVG, or its folder cannot get files."""
    if file.suffix.lower() not in (".png", ".svg"):
        raise UserError(f"cannot draw into {file}: name a file that ends with .png or .svg")
    if not file.absolute().parent.is_dir():
        raise UserError(f"cannot draw into {file}: there is no folder {file.absolute().parent}; create it")
    check_writable(file.absolute().parent)


def check_here(path: Path, option: str = "folder") -> None:
    """Raises UserError if ``path`` comes from a URL, for commands that need a local folder."""
    if found := _URL.search(str(path)):
        raise UserError(f"{found[0]} is on a store, but this command needs a local path; choose another {option}")


def check_vacant(out: Path) -> None:
    """Raises UserError if ``out`` is a file, a link to nothing, or a folder that holds more than a lock."""
    check_here(out)
    with writing(out):
        if os.path.lexists(out) and (not out.is_dir() or any(item.name != LOCK for item in out.iterdir())):
            raise UserError(f"{out} exists already; remove it or choose another folder")


def write_text(path: Path, text: str | Iterable[str]) -> None:
    """Write a file, also of parts, atomically: flush a temporary file to disk, then rename it."""
    partial = path.with_name(path.name + ".partial")
    with partial.open("w", encoding="utf-8", errors="backslashreplace") as file:  # file names may hold any bytes
        file.writelines([text] if isinstance(text, str) else text)
        file.flush()
        os.fsync(file)
    os.replace(partial, path)


def check_page(path: Path, option: str) -> None:
    """Raises UserError with ``option`` if ``write_page`` cannot write ``path``: before work whose result it is."""
    check_here(path, option)
    try:
        if path.exists():
            with path.open("rb") as file:
                if not file.read(32).lower().startswith(b"<!doctype html"):
                    raise UserError(f"{path} is not an HTML page and is not overwritten; choose another {option}")
        if not os.access(path.parent, os.W_OK):
            reason = errno.EACCES if path.parent.is_dir() else errno.ENOENT
            raise OSError(reason, os.strerror(reason))
    except OSError as error:
        raise UserError(f"cannot write {path}: {error.strerror}; choose another {option}") from None


def write_page(path: Path, page: str, option: str) -> None:
    """Write an HTML page atomically. Raises UserError with ``option`` on failure, or if it would replace another
    file."""
    check_page(path, option)
    try:
        write_text(path, page)
    except OSError as error:
        raise UserError(f"cannot write {path}: {error.strerror}; choose another {option}") from None


def write_json(path: Path, value: Any) -> None:
    write_text(path, json.dumps(value, indent=2, ensure_ascii=False) + "\n")


def read_json(path: Path) -> Any:
    """Raises UserError if the file is missing or broken."""
    try:
        return _loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise UserError(f"{path} is missing; the folder is incomplete") from None
    except (OSError, ValueError, RecursionError) as error:
        raise UserError(f"{path} does not read as JSON ({error}); restore a copy, or create it again") from None


class _TooLarge(ValueError):
    """A number that does not fit a float."""


def _loads(text: str | bytes) -> Any:
    """Parse JSON. Raises ValueError if it is malformed or holds a number that does not fit a float, such as 1e400."""
    return json.loads(text, parse_float=_checked(float), parse_int=_checked(int))


def _checked(kind: type[float]) -> Callable[[str], float]:
    def number(digits: str) -> float:
        if math.isinf(float(digits)):
            raise _TooLarge(f"the number {digits:.20} is too large")
        return kind(digits)

    return number


def converted(head: bytes, name: str | Path) -> str:
    """Return advice, for a message, how to convert the file ``name`` that starts with ``head`` to UTF-8."""
    marks = {codecs.BOM_UTF32_LE: "UTF-32", codecs.BOM_UTF32_BE: "UTF-32"}  # first: they may start with UTF-16's mark
    marks |= {codecs.BOM_UTF16_LE: "UTF-16", codecs.BOM_UTF16_BE: "UTF-16"}
    found = next((kind for mark, kind in marks.items() if head.startswith(mark)), None)
    if found is None and head[:2].count(0) == 1:  # one zero of two bytes
        found = "UTF-16BE" if head[0] == 0 else "UTF-16LE"
    return f"it is {found}: iconv -f {found} -t UTF-8 {name} > OTHER" if found else "save it as UTF-8"


def check_regular(path: Path) -> Path:
    """Return ``path``. Raises OSError if it is a pipe, which may have no writer, or a device, which may have no end."""
    if path.exists() and not path.is_file():
        raise OSError(errno.EINVAL, "it is not a regular file", str(path))
    return path


def append_line(path: Path, value: Any) -> None:
    """Append an object to a JSONL file, on a new line even if a killed writer left an incomplete one."""
    with path.open("a+b") as file:
        if file.tell():
            file.seek(-1, os.SEEK_END)
            file.write(b"" if file.read() == b"\n" else b"\n")
        file.write(json.dumps(value).encode() + b"\n")


def keep_lines(path: Path, is_wanted: Callable[[dict[str, Any]], bool]) -> None:
    """Remove unwanted and incomplete lines from a JSONL file, if it exists."""
    if not path.is_file():
        return
    with path.open("rb") as lines:
        kept = [any(map(is_wanted, parsed([line]))) for line in lines]
        if not all(kept):
            lines.seek(0)
            write_text(path, (line.decode() for line in compress(lines, kept)))


def read_lines(path: Path, wanted: bytes = b"", every: int = 1) -> Iterator[dict[str, Any]]:
    """Yield the objects of a JSONL file, if it exists, without incomplete lines of a killed writer.

    With ``wanted``, yield the lines that contain it, each ``every``-th of the others (0: none), and the last line.
    Raises UserError if a line is not a JSON object.
    """
    if not path.is_file():
        return
    end = path.stat().st_size
    with path.open("rb") as lines:
        for number, line in enumerate(lines, 1):
            end -= len(line)
            if (not every or number % every) and end > 0 and wanted not in line and line.startswith(b"{"):
                continue
            problem = "" if line.startswith((b"{", b"\0")) else " is not a JSON object"  # zeros remain after a crash
            try:
                found = _object(line)
            except _TooLarge as error:
                found, problem = None, f": {error}"
            if found is not None:
                yield found
            elif problem:
                raise UserError(f"{path}, line {number}{problem}; restore a copy, or remove that line")


def parsed(lines: Iterable[bytes]) -> Iterator[dict[str, Any]]:
    """Yield the objects of JSON lines, without incomplete lines."""
    for line in lines:
        with suppress(_TooLarge):
            if (found := _object(line)) is not None:
                yield found


def _object(line: bytes) -> dict[str, Any] | None:
    """Return the object of a JSON line, or None if it is incomplete. Raises _TooLarge as :func:`_loads` does."""
    try:
        found = _loads(line)
    except _TooLarge:
        raise
    except (ValueError, RecursionError):
        return None
    return found if isinstance(found, dict) else None


@contextmanager
def open_tensors(path: Path, framework: str = "pt") -> Iterator[Any]:
    """Open a safetensors file for reading. Raises UserError if it is damaged."""
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(str(path), framework) as file:
            yield file
    except (OSError, SafetensorError) as error:
        raise UserError(f"{path} cannot be read ({error}); put back a copy of it") from None


def load_tensors(path: Path, framework: str = "pt") -> dict[str, Any]:
    """Return all tensors of a safetensors file, as torch or numpy arrays. Raises UserError if it is damaged."""
    with open_tensors(path, framework) as file:
        return {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 - not a mapping
