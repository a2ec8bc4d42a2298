"""Documents read in a child process whose memory and CPU time the kernel limits.

A small file can ask a library for gigabytes or minutes. The child reads one document after the other, so that a folder
of small files costs one start, and is replaced when a document breaks a limit.
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
from importlib import import_module
from pathlib import Path
from pkgutil import resolve_name
from typing import Any

from raysum.errors import UserError
from raysum.runtime.extras import has, needs
from raysum.sources.documents.text import Text

_NAMES = {  # of a kind of document, and the library that reads it
    "docx": ("a Word document", "docx"),
    "html": ("a web page", "trafilatura"),
    "mail": ("e-mail", "trafilatura"),
    "markdown": ("Markdown", "markdown_it"),
    "pdf": ("PDF", "pypdf"),
}
_MEMORY, _MEMORY_OF_A_BYTE = 150 << 20, 50  # bytes beyond what the child has, and more for each byte of the file
_SECONDS, _SECONDS_OF_A_MIB = 1, 15  # of CPU, rounded up to the next second
_RETIRED = 100 << 20  # bytes by which a child has grown when it is replaced
_PROGRAM = "import sys; sys.path[:] = {path!r}; from {module} import main; main()"


def read_limited(kind: str, content: bytes, name: str) -> Text:
    """The text of a document; ``kind`` is a module of this package, and ``name`` stands in messages.

    Raises UserError where it does not read, or not within the limits.
    """
    title, library = _NAMES[kind]
    if kind != "mail" and not has(library):
        needs(library, name)
    with _lock:
        reply = _child().ask({"kind": kind, "name": name, "size": len(content)}, content)
    if reply is None:
        raise UserError(
            f"{name} does not read as {title} within {_seconds(len(content))} s and "
            f"{_memory(len(content)) >> 20} MiB; save it again, in parts or as text, or leave it out"
        )
    if "error" in reply:
        raise UserError(reply["error"])
    return Text(reply["text"], reply["title"], [(start, place) for start, place in reply["places"]])


def _memory(size: int) -> int:
    return _MEMORY + _MEMORY_OF_A_BYTE * size


def _seconds(size: int) -> int:
    return _SECONDS + (_SECONDS_OF_A_MIB * size >> 20)


class _Child:
    def __init__(self) -> None:
        program = _PROGRAM.format(path=[place or os.getcwd() for place in sys.path], module=__name__)
        self.owner = os.getpid()
        self.process: Any = subprocess.Popen(
            [sys.executable, "-c", program],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=os.environ | {"OMP_NUM_THREADS": "1", "MALLOC_ARENA_MAX": "1"},
        )

    def ask(self, request: dict[str, Any], content: bytes) -> dict[str, Any] | None:
        """The child's reply; None where it has died of the document."""
        line = b""
        with suppress(BrokenPipeError):
            self.process.stdin.write(json.dumps(request).encode() + b"\n" + content)
            self.process.stdin.flush()
            line = self.process.stdout.readline()
        reply = json.loads(line) if line.endswith(b"\n") else None
        if reply is None or reply["retired"]:
            self.end()
        return reply

    def end(self) -> None:
        with suppress(BrokenPipeError):
            self.process.stdin.close()
        self.process.stdout.close()
        self.process.wait()


_lock = threading.Lock()
_children = list[_Child]()  # at most one


def _forget_lock() -> None:
    """A fork inherits the lock of a thread that reads a document, and not the thread."""
    global _lock
    _lock = threading.Lock()


os.register_at_fork(after_in_child=_forget_lock)


def _child() -> _Child:
    """The child of this process: one that a fork has inherited belongs to another."""
    if not _children or _children[0].owner != os.getpid() or _children[0].process.poll() is not None:
        _children[:] = [_Child()]
    return _children[0]


@atexit.register
def end() -> None:
    """End the child of this process, if there is one; the next document starts another."""
    if _children and _children[0].owner == os.getpid() and _children[0].process.poll() is None:
        _children[0].end()


def main() -> None:
    """Reply to requests on standard input, until it ends."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the parent, whose end closes standard input
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    requests, replies = sys.stdin.buffer, os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what libraries print is no reply
    begun = _data()
    while line := requests.readline():
        request = json.loads(line)
        reply = _reply(request["kind"], requests.read(request["size"]), request["name"])
        retired = _data() > begun + _RETIRED
        print(json.dumps(reply | {"retired": retired}), file=replies, flush=True)
        if retired:
            break


def _reply(kind: str, content: bytes, name: str) -> dict[str, Any]:
    title, library = _NAMES[kind]
    read: Callable[[bytes, str], Text] = resolve_name(f"{__package__}.{kind}:read")
    with suppress(ImportError):
        import_module(library)  # whose own memory and time do not count
    _limit(len(content))
    try:
        found = read(content, name)
        return {"text": found.text, "title": found.title, "places": [*map(list, found.places)]}
    except UserError as error:
        return {"error": str(error)}
    except MemoryError:
        told = f"it takes more than {_memory(len(content)) >> 20} MiB"
    except Exception as error:  # libraries raise errors of many kinds on damaged files
        told = f"{type(error).__name__}: {' '.join(str(error).split())[:100]}"
    return {"error": f"{name} does not read as {title} ({told}); save or fetch it again, or leave it out"}


def _limit(size: int) -> None:
    used = resource.getrusage(resource.RUSAGE_SELF)
    limits = {
        resource.RLIMIT_CPU: int(used.ru_utime + used.ru_stime) + 1 + _seconds(size),
        resource.RLIMIT_DATA: _data() + _memory(size),
    }
    for kind, limit in limits.items():
        most = resource.getrlimit(kind)[1]
        resource.setrlimit(kind, (limit if most == resource.RLIM_INFINITY else min(limit, most), most))


def _data() -> int:
    """Bytes that this process has of its own, as RLIMIT_DATA counts them."""
    return int(Path("/proc/self/statm").read_text().split()[5]) * resource.getpagesize()
