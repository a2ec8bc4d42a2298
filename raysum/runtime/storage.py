"""Files of folders that others read: written whole or not at all."""

import codecs
import json
import math
import os
import re
import shutil
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from raysum.errors import UserError
from raysum.runtime.lock import LOCK, folder_lock

if TYPE_CHECKING:
    from torch import Tensor

_TRUST = "RAYSUM_TRUST_OTHERS"  # set to 1 in the environment: files of other users are unpickled
_URL = re.compile(r"(?<![^/])[a-z][a-z0-9+.-]+:/.*")  # as pathlib writes it
# What safetensors, torch and Ray's workers say where the disk or its quota is full, as errors of their own.
_UNWRITTEN = ("(os error ", "inline_container", "PytorchStreamWriter", "[Errno 27]", "[Errno 28]", "[Errno 122]")


@contextmanager
def new_folder(out: Path, goes_on: Callable[[Path], bool] = lambda folder: False) -> Iterator[Path]:
    """A folder beside ``out`` that takes its name when the block ends well, and vanishes when it does not.

    What a killed process left there is removed first, unless ``goes_on`` says that it is of use. Raises UserError where
    ``out`` is taken, another process makes it, or it cannot be written.
    """
    check_vacant(out)
    folder = out.with_name(f".{out.name}.unfinished")
    with folder_lock(out, out.with_name(f".{out.name}.lock")):
        check_vacant(out)  # another may have made it meanwhile
        try:
            if not goes_on(folder):
                shutil.rmtree(folder, ignore_errors=True)
                folder.mkdir()
        except OSError as error:
            raise UserError(f"cannot write {out} ({error.strerror}); choose another folder") from None
        try:
            with writing(out):
                yield folder
                folder.replace(out)
        finally:
            shutil.rmtree(folder, ignore_errors=True)


def check_own(folder: Path) -> None:
    """Raises UserError where another user owns something in ``folder``, which is about to be unpickled.

    Unpickling runs what the maker of a file wants. The environment variable ``RAYSUM_TRUST_OTHERS=1`` allows it. What
    was copied or unpacked by this user counts as this user's: whoever does that must know where it comes from.
    """
    for path in (folder, *folder.rglob("*")):
        if path.exists() and path.stat().st_uid != os.getuid() and os.environ.get(_TRUST) != "1":
            raise UserError(
                f"{path} belongs to another user, and going on with {folder} would run code of whoever wrote it; "
                f"copy the folder, or set {_TRUST}=1, if you trust them"
            )


@contextmanager
def writing(folder: Path) -> Iterator[None]:
    """The block writes into ``folder``. Raises UserError where the disk is full, or takes nothing for other reasons."""
    try:
        yield
    except Exception as error:
        foreign = isinstance(error, FileNotFoundError) and folder not in Path(str(error.filename)).absolute().parents
        if (isinstance(error, OSError) and not foreign) or any(words in str(error) for words in _UNWRITTEN):
            lines = [line for line in str(error).splitlines() if any(words in line for words in _UNWRITTEN)]
            reason = getattr(error, "strerror", None) or (lines or [str(error)])[-1]
            raise UserError(f"cannot write {folder}: {reason}; free space there, or choose another folder") from None
        raise


def check_here(path: Path, option: str = "folder") -> None:
    """Raises UserError where ``path`` is made of a URL, for what works on this machine alone."""
    if found := _URL.search(str(path)):
        raise UserError(f"{found[0]} is on a store, and this is for folders of this machine; choose another {option}")


def check_vacant(out: Path) -> None:
    """Raises UserError where ``out`` is a file, or a folder that holds something other than a lock."""
    check_here(out)
    try:
        if out.exists() and (not out.is_dir() or any(item.name != LOCK for item in out.iterdir())):
            raise UserError(f"{out} exists already; remove it or choose another folder")
    except OSError as error:
        raise UserError(f"cannot write {out} ({error.strerror}); choose another folder") from None


def write_text(path: Path, text: str) -> None:
    """Write a whole file or nothing: to a neighbour first, which is on the disk before it is renamed."""
    partial = path.with_name(path.name + ".partial")
    with partial.open("w", encoding="utf-8", errors="backslashreplace") as file:  # names of files hold any bytes
        file.write(text)
        file.flush()
        os.fsync(file)
    os.replace(partial, path)


def write_page(path: Path, page: str, option: str) -> None:
    """Write an HTML page, as ``write_text`` does. Raises UserError naming ``option`` where that cannot be, or would
    replace something other than a page."""
    check_here(path, option)
    try:
        if path.exists():
            with path.open("rb") as file:
                if not file.read(32).lower().startswith(b"<!doctype html"):
                    raise UserError(f"{path} is no page, and is not written over; choose another {option}")
        write_text(path, page)
    except OSError as error:
        raise UserError(f"cannot write {path}: {error.strerror}; choose another {option}") from None


def write_json(path: Path, value: Any) -> None:
    write_text(path, json.dumps(value, indent=2, ensure_ascii=False) + "\n")


def read_json(path: Path) -> Any:
    """Raises UserError where the file is missing or broken."""
    try:
        return _loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise UserError(f"{path} is missing; the folder is incomplete") from None
    except (OSError, ValueError, RecursionError) as error:
        raise UserError(f"{path} does not read as JSON ({error}); put back a copy, or make it again") from None


class _TooLarge(ValueError):
    """A number that no float holds."""


def _loads(text: str | bytes) -> Any:
    """``text`` as JSON. Raises ValueError if it is none, or holds a number that no float holds, such as 1e400."""
    return json.loads(text, parse_float=_float, parse_int=_int)


def _float(text: str) -> float:
    if math.isinf(value := float(text)):
        raise _TooLarge(f"the number {text:.20} is too large")
    return value


def _int(text: str) -> int:
    if len(text) > sys.float_info.max_10_exp:
        raise _TooLarge(f"a number of {len(text)} digits is too large")
    return int(text)


def converted(head: bytes, name: str | Path) -> str:
    """How to make UTF-8 of the file ``name`` that begins with ``head``, for a message; UTF-16 and UTF-32 are known."""
    marks = {codecs.BOM_UTF32_LE: "UTF-32", codecs.BOM_UTF32_BE: "UTF-32", codecs.BOM_UTF16_LE: "UTF-16"}
    marks |= {codecs.BOM_UTF16_BE: "UTF-16"}  # after UTF-32, whose mark may begin with that of UTF-16
    found = next((kind for mark, kind in marks.items() if head.startswith(mark)), None)
    if found is None and (zeros := [byte == 0 for byte in head[:2]]).count(True) == 1:  # one of a letter's two bytes
        found = "UTF-16BE" if zeros[0] else "UTF-16LE"
    return f"it is {found}: iconv -f {found} -t UTF-8 {name} > OTHER" if found else "save it as UTF-8"


def append_line(path: Path, value: Any) -> None:
    """Write one more object of a JSONL file, on a line of its own where a killed writer has torn the last one."""
    with path.open("a+b") as file:
        if file.tell():
            file.seek(-1, os.SEEK_END)
            file.write(b"" if file.read() == b"\n" else b"\n")
        file.write(json.dumps(value).encode() + b"\n")


def keep_lines(path: Path, is_wanted: Callable[[dict[str, Any]], bool]) -> None:
    """Remove from a JSONL file, if it exists, unwanted lines, and lines that a killed writer has torn."""
    lines = path.read_bytes().splitlines(keepends=True) if path.is_file() else []
    kept = [line for line in lines if any(map(is_wanted, parsed([line])))]
    if len(kept) < len(lines):
        write_text(path, b"".join(kept).decode())


def read_lines(path: Path, wanted: bytes = b"", every: int = 1) -> Iterator[dict[str, Any]]:
    """The objects of a JSONL file; nothing where it does not exist. A torn line (of a killed writer) is left out.

    With ``wanted`` those whose lines hold it, each ``every``-th of the others (0: none), and the last.
    Raises UserError where a line is something else.
    """
    if path.is_file():
        end = path.stat().st_size
        with path.open("rb") as lines:
            for number, line in enumerate(lines, 1):
                end -= len(line)
                if (not every or number % every) and end > 0 and wanted not in line and line.startswith(b"{"):
                    continue
                try:
                    found = _object(line)
                except _TooLarge as error:
                    raise UserError(f"{path}, line {number}: {error}; put back a copy, or remove that line") from None
                if found is None and not line.startswith((b"{", b"\0")):  # zeros are what a crashed disk leaves
                    raise UserError(f"{path}, line {number} is no JSON object; put back a copy, or remove that line")
                if found is not None:
                    yield found


def parsed(lines: Iterable[bytes]) -> Iterator[dict[str, Any]]:
    """The objects of lines of JSON, without those that are torn."""
    for line in lines:
        with suppress(_TooLarge):
            if (found := _object(line)) is not None:
                yield found


def _object(line: bytes) -> dict[str, Any] | None:
    """The object of a line of JSON; None if it is torn. Raises _TooLarge as :func:`_loads`."""
    try:
        found = _loads(line)
    except _TooLarge:
        raise
    except (ValueError, RecursionError):
        return None
    return found if isinstance(found, dict) else None


@contextmanager
def open_tensors(path: Path, framework: str = "pt") -> Iterator[Any]:
    """A file of safetensors, opened to read its header and its tensors. Raises UserError if it is damaged."""
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(str(path), framework) as file:
            yield file
    except (OSError, SafetensorError) as error:
        raise UserError(f"{path} cannot be read ({error}); put back a copy of it") from None


def load_tensors(path: Path, framework: str = "pt") -> dict[str, Any]:
    """All tensors of a file of safetensors, as torch's or numpy's. Raises UserError if it is damaged."""
    with open_tensors(path, framework) as file:
        return {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 - it is no mapping


def save_tensors(tensors: "dict[str, Tensor]", path: Path, told: dict[str, str] | None = None) -> None:
    """A file of safetensors, for whoever may read what this user writes; the library keeps it to its owner.

    ``told`` is what the file says of itself.
    """
    from safetensors.torch import save_file

    path.touch()
    mode = path.stat().st_mode
    save_file(tensors, path, told)
    path.chmod(mode)
