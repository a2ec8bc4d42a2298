"""The command line program: it runs a command, and turns mistakes, full disks and signals into one message."""

import errno
import os
import re
import signal
import sys
import threading
from contextlib import suppress
from itertools import pairwise
from typing import Any

from raysum.cli.commands import app
from raysum.errors import UserError, check_no_password
from raysum.runtime.progress import log
from raysum.runtime.remote import as_named

_ENCODING = "PYTHONIOENCODING"
_ERRORS = "backslashreplace"
_FAULTS = (errno.EACCES, errno.EPERM, errno.EROFS, errno.EIO, errno.ENXIO, errno.ESTALE)  # of files, disks and mounts


def main() -> None:
    """Run the command line. A user error prints one message and returns exit code 2.

    SIGTERM and closing the terminal (except under nohup) end it as Ctrl-C does.
    """
    _open_streams()
    terminated: list[int] = []
    terminals = [stream for stream in (1, 2) if os.isatty(stream)]

    def terminate(number: int, frame: Any) -> None:
        terminated.append(number)
        if number == signal.SIGHUP:  # writing to a closed terminal raises an error
            _silence(*terminals)
        raise KeyboardInterrupt

    def again(lost: Any) -> None:
        """Send a signal again whose KeyboardInterrupt was raised in a destructor, where Python ignores errors."""
        if isinstance(lost.exc_value, KeyboardInterrupt):
            number = terminated[-1] if terminated else signal.SIGINT
            threading.Timer(0.1, os.kill, (os.getpid(), number)).start()
        else:
            sys.__unraisablehook__(lost)

    sys.unraisablehook = again
    signal.signal(signal.SIGTERM, terminate)
    if signal.getsignal(signal.SIGHUP) != signal.SIG_IGN:
        signal.signal(signal.SIGHUP, terminate)
    try:
        try:
            # A teacher may need a password in its URL.
            arguments = [argument for before, argument in pairwise(sys.argv) if before != "--teacher"]
            check_no_password(" ".join(arguments))
            app()
        finally:
            sys.stdout.flush()
    except BrokenPipeError:
        try:
            sys.stdout.flush()
        except BrokenPipeError:  # a reader such as head has closed the pipe
            _silence(1)
            sys.exit(1)
        raise
    except Exception as error:
        if (message := _message_of(error)) is None:
            raise
        if not log("error", as_named(message)):
            print(f"raysum: {as_named(message)}", file=sys.stderr)
        sys.exit(2)
    except SystemExit as end:
        if end.code == 130:  # typer's code for Ctrl-C
            print("raysum: stopped", file=sys.stderr)
            sys.exit(128 + terminated[0] if terminated else 130)
        raise


def _message_of(error: Exception) -> str | None:
    """Return the message of an error that the user can repair, or None."""
    if isinstance(error, UserError):
        return str(error)
    if isinstance(error, OSError) and error.errno == errno.ENAMETOOLONG:
        return f"{str(error.filename)[:60]}... is too long a name for a file"
    if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
        _silence(1)  # Python flushes again at exit
        return f"cannot write {error.filename or 'the output of the command'}: {error.strerror}; free space there"
    if isinstance(error, OSError) and error.errno in _FAULTS:
        return f"{error.filename or 'a file of the command'}: {error.strerror}; check its permissions and its disk"
    if isinstance(error, MemoryError) or re.search("allocate memory|out of memory", str(error)):
        return "not enough memory; use fewer beams, shorter texts or smaller batches"
    return None


def _silence(*streams: int) -> None:
    """Discard what this process writes to these file descriptors."""
    with open(os.devnull, "wb") as null:
        for stream in streams:
            os.dup2(null.fileno(), stream)


def _open_streams() -> None:
    """Open closed standard streams on the null device, and escape characters that a stream cannot encode.

    Otherwise the next file that is opened takes the number of the closed stream, and printed text goes into it.
    """
    for number, (name, mode) in enumerate((("stdin", "r"), ("stdout", "w"), ("stderr", "w"))):
        try:
            os.fstat(number)
        except OSError:
            nowhere = os.open(os.devnull, os.O_RDWR)
            if nowhere != number:
                os.dup2(nowhere, number)
                os.close(nowhere)
            os.set_inheritable(number, True)
            setattr(sys, name, open(number, mode, encoding="utf-8", closefd=False))  # noqa: SIM115 - stays open
    for stream in (sys.stdout, sys.stderr):
        with suppress(AttributeError):  # replacements in notebooks and tests may have no encoding
            stream.reconfigure(errors=_ERRORS)  # type: ignore[union-attr]
    if encoding := os.environ.get(_ENCODING):
        os.environ[_ENCODING] = f"{encoding.partition(':')[0]}:{_ERRORS}"  # for child processes
