"""The log of requests: a line of JSON each, with the name of the key. It has no texts and no keys."""

import json
import logging
import time
from collections.abc import Callable
from logging.handlers import WatchedFileHandler

from raysum.errors import UserError

WriteLine = Callable[[str, str, str, float], None]  # of route, status, key and seconds


def request_log(file: str | None) -> WriteLine | None:
    """Return a function that appends a line to ``file``, also after another program has moved the file.

    Returns None without a file. Raises UserError if it cannot be written.
    """
    if file is None:
        return None
    try:
        handler = WatchedFileHandler(file, encoding="utf-8")
    except OSError as error:
        raise UserError(f"cannot write the log of requests {file}: {error.strerror}; choose another --log") from None

    def write(route: str, status: str, key: str, seconds: float) -> None:
        values = {"time": time.strftime("%FT%TZ", time.gmtime()), "route": route, "status": int(status)}
        line = json.dumps(values | {"key": key, "seconds": round(seconds, 4)})
        handler.emit(logging.LogRecord("raysum", logging.INFO, "", 0, line, None, None))

    return write
