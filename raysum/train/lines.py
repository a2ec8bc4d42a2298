"""The metrics and events of a training as its driver follows them: from the run folder, or from another host by Ray."""

import json
import os
import time
from contextlib import ExitStack, suppress
from pathlib import Path
from queue import SimpleQueue
from typing import Any, BinaryIO

from raysum.errors import UserError
from raysum.runs.folder import Run
from raysum.runtime.compat import post, take_posted
from raysum.runtime.storage import parsed, read_lines

Line = dict[str, Any]  # of metrics.jsonl; an event has the key "event"
_LINES = "-lines-"  # between the token of a training and the time of a post


class WrittenLines:
    """The lines that are appended to the files of a run from now on."""

    def __init__(self, run: Run):
        self._files = ExitStack()
        self._metrics, self._events = self._opened(run.metrics), self._opened(run.events_file)
        self._path = run.metrics

    def _opened(self, path: Path) -> BinaryIO:
        """Open a file at its end; a missing one is created."""
        return self._files.enter_context(path.open("ab+"))

    def new(self) -> list[Line]:
        """Return the lines since the last call, events first, or all metrics after workers have started again."""
        if os.fstat(self._metrics.fileno()).st_nlink == 0:  # replaced by Run.rewind
            self._metrics = self._opened(self._path)
            self._metrics.seek(0)
        metrics = [*parsed(self._metrics)]  # read first: the event of a new start is written before its lines
        return [*parsed(self._events), *metrics]

    def close(self) -> list[Line]:
        """Return the last lines."""
        with self._files:
            return self.new()


class PostedLines:
    """The lines that rank 0 posts with the ``token`` of a training whose run folder is on a store."""

    def __init__(self, run: Run, token: str):
        self._run, self._token = run, token

    def new(self) -> list[Line]:
        """Return the lines since the last call."""
        return [line for posted in take_posted(self._token + _LINES) for line in json.loads(posted)]

    def close(self) -> list[Line]:
        """Return all metrics, which the store has at the end of a training."""
        with suppress(UserError):  # a damaged file, which the next command names
            return [*read_lines(self._run.metrics)]
        return []


def post_lines(token: str, lines: "SimpleQueue[Line]") -> None:
    """Post the waiting ``lines`` for :class:`PostedLines`."""
    if waiting := [lines.get_nowait() for _ in range(lines.qsize())]:
        post(f"{token}{_LINES}{time.time_ns():020d}", json.dumps(waiting).encode())
