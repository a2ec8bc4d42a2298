"""The processes of a real command, found by a mark in the environment that each of them inherits."""

import contextlib
import os
import random
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any
from uuid import uuid4

import psutil

from helpers.project import ROOT

_MARK = "RAYSUM_TEST_MARK"
LOOPBACK = {"127.0.0.1", "::ffff:127.0.0.1", "::1"}


class Command:
    """``raysum ARGUMENTS``, or ``python ARGUMENTS`` with ``python=True``, with all that it starts."""

    def __init__(self, *arguments: str, python: bool = False, **options: Any):
        self.mark = uuid4().hex
        environment = options.pop("env", os.environ) | {"PYTHONPATH": str(ROOT), _MARK: self.mark}
        self._log = getattr(options.get("stderr"), "name", None)
        self.process = subprocess.Popen(
            [sys.executable, *([] if python else ["-m", "raysum"]), *arguments],
            env=environment,
            preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),  # shells let background jobs ignore it
            **options,
        )

    def living(self, title: str = "") -> list[psutil.Process]:
        """The living processes of the command with ``title`` in their command line."""
        return [process for process in psutil.process_iter() if self._owns(process, title)]

    def listening(self) -> dict[str, set[str]]:
        """The addresses on which the living processes listen, without ports, by the names of the processes."""
        found: dict[str, set[str]] = {}
        for process in self.living():
            with contextlib.suppress(psutil.Error):
                sockets = [one for one in process.net_connections("inet") if one.status == psutil.CONN_LISTEN]
                if sockets:
                    found.setdefault(process.name(), set()).update(one.laddr.ip for one in sockets)
        return found

    def wait_until(self, condition: Callable[[], Any], seconds: float = 300) -> None:
        """Wait for the ``condition``, for which the command must live."""
        end = time.monotonic() + seconds
        while not condition():
            assert self.process.poll() is None, f"the command ended with {self.process.poll()}:\n{self._last_lines()}"
            assert time.monotonic() < end, f"nothing happened in {seconds:.0f} s:\n{self._last_lines()}"
            time.sleep(0.02)

    def _last_lines(self) -> str:
        """The end of what it wrote to stderr, if that is a file."""
        return Path(self._log).read_text(errors="replace")[-3000:] if self._log else ""

    def ended_or_killed(self, seconds: float, whole: bool) -> bool:
        """Kill it after so many ``seconds``, ``whole`` or the driver alone; whether it had not ended before."""
        try:
            self.process.wait(seconds)
            return False
        except subprocess.TimeoutExpired:
            self.kill() if whole else self.process.kill()
            self.process.wait()
            return True

    def kill(self) -> None:
        """Kill the whole tree, also what is being started meanwhile; nothing of it may live on."""
        while living := self.living():
            for process in living:
                with contextlib.suppress(psutil.NoSuchProcess):
                    process.kill()
        self.process.wait()
        self.wait_until_none_lives()

    def wait_until_none_lives(self, seconds: float = 30) -> float:
        """The seconds until none lived. Fails where some still live after ``seconds``."""
        began = time.monotonic()
        while left := self.living():
            assert time.monotonic() - began < seconds, [process.cmdline()[:3] for process in left]
            time.sleep(0.1)
        return time.monotonic() - began

    def _owns(self, process: psutil.Process, title: str) -> bool:
        try:
            alive = process.environ().get(_MARK) == self.mark and process.status() != psutil.STATUS_ZOMBIE
            return alive and title in " ".join(process.cmdline())
        except psutil.Error:
            return False


def free_port() -> int:
    """A port that no connection gets by chance while a server starts: below those that Linux chooses for clients."""
    while True:
        port = random.randrange(20000, 32000)
        with contextlib.suppress(OSError), socket.create_server(("127.0.0.1", port)):
            return port
