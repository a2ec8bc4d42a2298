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
from importlib import import_module
from pathlib import Path
from pkgutil import resolve_name
from typing import Any

from raysum.errors import UserError
from raysum.runtime.extras import has, needs
from raysum.sources.documents.text import DocumentText

_KINDS = {  # kind: name in messages, library, function that reads it
    "docx": ("a Word document", "docx", "office:read_docx"),
    "html": ("a web page", "trafilatura", "markup:read_html"),
    "mail": ("e-mail", "trafilatura", "markup:read_mail"),
    "markdown": ("Markdown", "markdown_it", "markup:read_markdown"),
    "pdf": ("PDF", "pypdf", "office:read_pdf"),
}
_MEMORY, _MEMORY_PER_BYTE = 150 << 20, 50  # additional bytes for the child, plus a multiple of the file size
_SECONDS, _SECONDS_PER_MIB = 1, 15  # of CPU time, rounded up to the next second
_MAX_GROWTH = 100 << 20  # bytes; a child that has grown more is replaced
_PROGRAM = "import sys; sys.path[:] = {path!r}; from {module} import main; main()"


def read_limited(kind: str, content: bytes, name: str) -> DocumentText:
    """Return the text of a document called ``name``.

    Raises UserError if it is not valid for its ``kind``, or if reading it exceeds a limit.
    """
    title, library, _ = _KINDS[kind]
    if kind != "mail" and not has(library):
        needs(library, name)
    with _lock:
        reply = _child().ask({"kind": kind, "name": name, "size": len(content)}, content)
    if reply is None:
        raise UserError(
            f"{name} cannot be read as {title} within {_seconds(len(content))} s and "
            f"{_memory(len(content)) >> 20} MiB; save it again, in parts or as text, or leave it out"
        )
    if "error" in reply:
        raise UserError(reply["error"])
    return DocumentText(reply["text"], reply["title"], [(start, section) for start, section in reply["sections"]])


def _memory(size: int) -> int:
    return _MEMORY + _MEMORY_PER_BYTE * size


def _seconds(size: int) -> int:
    return _SECONDS + (_SECONDS_PER_MIB * size >> 20)


class _Child:
    def __init__(self) -> None:
        program = _PROGRAM.format(path=[folder or os.getcwd() for folder in sys.path], module=__name__)
        self.owner = os.getpid()
        self.process: Any = subprocess.Popen(
            [sys.executable, "-c", program],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=os.environ | {"OMP_NUM_THREADS": "1", "MALLOC_ARENA_MAX": "1"},
        )

    def ask(self, request: dict[str, Any], content: bytes) -> dict[str, Any] | None:
        """Return the reply of the child, or None if the document has killed it."""
        line = b""
        with suppress(BrokenPipeError):
            self.process.stdin.write(json.dumps(request).encode() + b"\n" + content)
            self.process.stdin.flush()
            line = self.process.stdout.readline()
        reply = json.loads(line) if line.endswith(b"\n") else None
        if reply is None or reply["ended"]:
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
    """Replace the lock after a fork: another thread may have held it, and the fork has no such thread."""
    global _lock
    _lock = threading.Lock()


os.register_at_fork(after_in_child=_forget_lock)


def _child() -> _Child:
    """Return the child of this process, not the one inherited by a fork; start one if necessary."""
    if not _children or _children[0].owner != os.getpid() or _children[0].process.poll() is not None:
        _children[:] = [_Child()]
    return _children[0]


@atexit.register
def end() -> None:
    """End the child of this process, if it has one. The next document starts a new one."""
    if _children and _children[0].owner == os.getpid() and _children[0].process.poll() is None:
        _children[0].end()


def main() -> None:
    """Reply to the requests on standard input until it ends."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C ends the parent, which closes standard input
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    requests, replies = sys.stdin.buffer, os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # output of libraries must not mix with replies
    initial = _data_size()
    while line := requests.readline():
        request = json.loads(line)
        reply = _reply(request["kind"], requests.read(request["size"]), request["name"])
        is_last = _data_size() > initial + _MAX_GROWTH
        print(json.dumps(reply | {"ended": is_last}), file=replies, flush=True)
        if is_last:
            break


def _reply(kind: str, content: bytes, name: str) -> dict[str, Any]:
    title, library, function = _KINDS[kind]
    read: Callable[[bytes, str], DocumentText] = resolve_name(f"{__package__}.{function}")
    with suppress(ImportError):
        import_module(library)  # before the limits, so that its import does not count
    _limit(len(content))
    try:
        document = read(content, name)
        return {"text": document.text, "title": document.title, "sections": [*map(list, document.sections)]}
    except UserError as error:
        return {"error": str(error)}
    except MemoryError:
        reason = f"it takes more than {_memory(len(content)) >> 20} MiB"
    except Exception as error:  # libraries raise errors of many kinds on damaged files
        reason = f"{type(error).__name__}: {' '.join(str(error).split())[:100]}"
    return {"error": f"{name} cannot be read as {title} ({reason}); save or fetch it again, or leave it out"}


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
