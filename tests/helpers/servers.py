"""`raysum serve` as a process, with a client of it."""

import os
import signal
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from helpers.processes import Command, free_port
from raysum.serve.client import Client


class Server:
    """`raysum serve`, and a client of it."""

    def __init__(self, run: Path | str, *arguments: str):
        self.port = free_port()
        environment = {name: value for name, value in os.environ.items() if "OMP_" not in name}
        pipes: dict = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True, "start_new_session": True}
        self.command = Command("serve", str(run), f"--port={self.port}", *arguments, env=environment, **pipes)
        self.process = self.command.process
        self.client = self.another_client(retries=8)

    def another_client(self, retries: int = 0) -> Client:
        return Client(f"http://127.0.0.1:{self.port}", timeout=60, retries=retries)

    def wait_until_ready(self) -> None:
        assert self.process.stderr is not None
        told = ""
        for line in self.process.stderr:
            if "Ctrl-C" in line:
                return
            told += line
        pytest.fail(f"the server ended with {self.process.wait()}:\n{told}")

    def processes(self, title: str = "") -> list[int]:
        """The living processes that the server started, or is."""
        return [process.pid for process in self.command.living(title)]

    def environment(self, pid: int) -> dict[str, str]:
        """What a process had when it was started, and so what torch found there."""
        found = Path(f"/proc/{pid}/environ").read_text().split("\0")
        return dict(item.split("=", 1) for item in found if "=" in item)

    def stop(self, how: signal.Signals, group: bool = False) -> tuple[int, str, str]:
        """Send the signal, also to the process's ``group`` as `timeout` does, then `ended`."""
        (os.killpg if group else os.kill)(self.process.pid, how)
        return self.ended(timeout=60)

    def ended(self, timeout: float) -> tuple[int, str, str]:
        """Exit code, stdout and the rest of stderr, once nothing of the server is left, or 5 s after its end."""
        out, err = self.process.communicate(timeout=timeout)
        deadline = time.monotonic() + 5
        while self.processes() and time.monotonic() < deadline:
            time.sleep(0.1)
        return self.process.returncode, out, err


@contextmanager
def serving(run: Path | str, *arguments: str) -> Iterator[Server]:
    server = Server(run, *arguments)
    try:
        yield server
    finally:
        for pid in server.processes():
            os.kill(pid, signal.SIGKILL)
        server.process.communicate()
