"""The client of the fork server: it runs in place of a Ray worker's Python, and falls back to that Python.

    python -IS forkclient.py ADDRESS PYTHON SCRIPT ARGUMENT...

It starts without site packages, so it uses only the standard library.
"""

import json
import os
import signal
import socket
import sys

_TIMEOUT = 60  # seconds


def ask(address: str, python: str, argv: list[str]) -> bool:
    """Ask the server for a process with this one's streams, environment and folder; return whether it was started."""
    blocked = [int(number) for number in signal.pthread_sigmask(signal.SIG_BLOCK, [])]
    request = {"argv": argv, "python": python, "env": dict(os.environ), "cwd": os.getcwd(), "blocked": blocked}
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
            connection.settimeout(_TIMEOUT)
            connection.connect(address)
            socket.send_fds(connection, [b" "], [0, 1, 2])
            connection.sendall(json.dumps(request).encode())
            connection.shutdown(socket.SHUT_WR)
            return bool(connection.recv(1))
    except OSError:
        return False


def end_with(parent: int) -> None:
    """Make this process end with its ``parent``, also after it executes another program.

    A Ray worker that starts while its session is killed would otherwise search for the session for a minute.
    """
    import ctypes

    ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG
    if os.getppid() != parent:
        sys.exit(1)


if __name__ == "__main__":
    address, python, *argv = sys.argv[1:]
    if not ask(address, python, argv):
        end_with(int(os.environ.get("RAY_RAYLET_PID") or os.getppid()))
        os.execv(python, [python, *argv])
