"""Make the standard streams accept every output."""

import os
import sys
from contextlib import suppress

_ENCODING = "PYTHONIOENCODING"
_ERRORS = "backslashreplace"


def open_streams() -> None:
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
