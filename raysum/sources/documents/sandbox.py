"""Read documents in a child process with limits on memory and CPU time, which the kernel enforces.

A small file can make a library use gigabytes or minutes. The child reads one document after the other, so a folder of
small files needs only one start. It is replaced after a document has exceeded a limit.
"""

import atexit
import json
import os
import resource
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict, dataclass
from functools import cache
from importlib import import_module
from pathlib import Path
from pkgutil import resolve_name
from typing import Any

from raysum.errors import UserError
from raysum.runtime.processes import child_command
from raysum.sources.documents.file_positions import Piece
from raysum.sources.documents.text import DocumentText

_MEMORY, _MEMORY_PER_BYTE = 150 << 20, 50  # additional bytes for the child, plus a multiple of the file size
_SECONDS, _SECONDS_PER_MIB = 1, 15  # of CPU time, rounded up to the next second
_MAX_GROWTH = 100 << 20  # bytes; a child that has grown more is replaced


@dataclass(frozen=True)
class DocumentFormat:
    """A kind of document, called ``title`` in messages.

    ``reader`` is the function, in a module beside this one, that returns the DocumentText of bytes and a name, or the
    rows of a table. It runs in a child process with limits and may raise any error. ``library``, if installed, is
    loaded before the limits apply. Files with other suffixes are recognized by ``signatures``, their first bytes in
    lower case.
    """

    title: str
    suffixes: tuple[str, ...]
    reader: str = ""  # plain text has none
    library: str = ""
    signatures: tuple[str, ...] = ()


def read_limited(form: DocumentFormat, content: bytes, name: str) -> DocumentText:
    """Return the text of the document ``name``. Raises UserError if it is damaged, or if reading it exceeds a limit."""
    found = limited(form, content, name)
    sections = [(start, section) for start, section in found["sections"]]
    return DocumentText(found["text"], found["title"], sections, pieces=[Piece(*piece) for piece in found["pieces"]])


def limited(form: DocumentFormat, content: bytes, name: str) -> Any:
    """Return what the reader of ``form`` makes of the file ``name``, as JSON. Raises UserError as read_limited."""
    reply = _child_of(os.getpid()).ask({**asdict(form), "name": name, "size": len(content)}, content)
    if reply is None:
        raise UserError(
            f"{name} cannot be read as {form.title} within {_seconds(len(content))} s and "
            f"{_memory(len(content)) >> 20} MiB; save it again, in parts or as text, or leave it out"
        )
    if "error" in reply:
        raise UserError(reply["error"])
    return reply["found"]


def _memory(size: int) -> int:
    return _MEMORY + _MEMORY_PER_BYTE * size


def _seconds(size: int) -> int:
    return _SECONDS + (_SECONDS_PER_MIB * size >> 20)


class _Child:
    """The child of a process, started by its first document."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._process: Any = None

    def ask(self, request: dict[str, Any], content: bytes) -> dict[str, Any] | None:
        """Return the reply of the child, or None if the document has killed it."""
        with self._lock:
            if self._process is None or self._process.poll() is not None:
                self._process = _start()
            line = b""
            with suppress(BrokenPipeError):
                self._process.stdin.write(json.dumps(request).encode() + b"\n" + content)
                self._process.stdin.flush()
                line = self._process.stdout.readline()
            reply = json.loads(line) if line.endswith(b"\n") else None
            if reply is None or reply["has_grown"]:
                self.end()
            return reply

    def end(self) -> None:
        """End the child, if there is one. The next document starts a new one."""
        if self._process is not None:
            with suppress(BrokenPipeError), self._process:
                self._process.kill()
            self._process = None


@cache
def _child_of(process: int) -> _Child:
    """Return the child of this process, which has its own lock: a fork does not use the child of its parent."""
    return _Child()


@atexit.register
def end() -> None:
    """End the child of this process, if it has one."""
    _child_of(os.getpid()).end()


def _start() -> "subprocess.Popen[bytes]":
    return subprocess.Popen(
        child_command(__name__),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env=os.environ | {"OMP_NUM_THREADS": "1", "MALLOC_ARENA_MAX": "1"},
    )


def main() -> None:
    """Reply to the requests on standard input until it ends."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C ends the parent, which ends this process
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    requests, replies = sys.stdin.buffer, os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # output of libraries must not mix with replies
    initial = _data_size()
    while line := requests.readline():
        request = json.loads(line)
        reply = _reply(request, requests.read(request["size"]))
        print(json.dumps(reply | {"has_grown": _data_size() > initial + _MAX_GROWTH}), file=replies, flush=True)


def _reply(request: dict[str, Any], content: bytes) -> dict[str, Any]:
    read: Callable[[bytes, str], Any] = resolve_name(f"{__package__}.{request['reader']}")
    with suppress(ImportError, ValueError):  # it is not installed, or the reader needs none
        import_module(request["library"])  # before the limits, so that its import does not count
    _limit(len(content))
    try:
        found = read(content, request["name"])
        return {"found": asdict(found) if isinstance(found, DocumentText) else found}
    except UserError as error:
        return {"error": str(error)}
    except MemoryError:
        reason = f"it takes more than {_memory(len(content)) >> 20} MiB"
    except Exception as error:  # libraries raise errors of many kinds on damaged files
        reason = f"{type(error).__name__}: {' '.join(str(error).split())[:100]}"
    problem = f"{request['name']} cannot be read as {request['title']} ({reason})"
    return {"error": f"{problem}; save or fetch it again, or leave it out"}


def _limit(size: int) -> None:
    used = resource.getrusage(resource.RUSAGE_SELF)
    limits = {
        resource.RLIMIT_CPU: int(used.ru_utime + used.ru_stime) + 1 + _seconds(size),
        resource.RLIMIT_DATA: _data_size() + _memory(size),
    }
    for kind, limit in limits.items():
        hard = resource.getrlimit(kind)[1]
        resource.setrlimit(kind, (limit if hard == resource.RLIM_INFINITY else min(limit, hard), hard))


def _data_size() -> int:
    """Return the bytes of this process that RLIMIT_DATA counts."""
    return int(Path("/proc/self/statm").read_text().split()[5]) * resource.getpagesize()
