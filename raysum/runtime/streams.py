"""Standard streams that take whatever a command writes."""

import os
import sys
from contextlib import suppress

_ENCODING = "PYTHONIOENCODING"
_ERRORS = "backslashreplace"


def open_streams() -> None:
    """Open each closed standard stream on the null device, and let none fail on a character that it cannot encode.

    Without that, the next file that is opened takes the number of a closed stream, and what is printed goes into it.
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
            setattr(sys, name, open(number, mode, encoding="utf-8", closefd=False))  # noqa: SIM115 - for all the time
    for stream in (sys.stdout, sys.stderr):
        with suppress(AttributeError):  # what a notebook or a test puts in its place may have no encoding
            stream.reconfigure(errors=_ERRORS)  # type: ignore[union-attr]
    if told := os.environ.get(_ENCODING):
        os.environ[_ENCODING] = f"{told.partition(':')[0]}:{_ERRORS}"  # of the processes that this one starts
