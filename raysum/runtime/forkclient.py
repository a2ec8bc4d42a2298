"""What runs in place of Python for a worker of Ray: it asks the fork server for a process, or becomes Python.

    python -IS forkclient.py ADDRESS PYTHON SCRIPT ARGUMENT...

Only the standard library, for it starts without site packages.
"""

import json
import os
import signal
import socket
import sys

_PATIENCE = 60  # seconds


def ask(address: str, python: str, argv: list[str]) -> bool:
    """Whether the server has made the process. It gets our streams, environment and folder."""
    blocked = [int(number) for number in signal.pthread_sigmask(signal.SIG_BLOCK, [])]
    request = {"argv": argv, "python": python, "env": dict(os.environ), "cwd": os.getcwd(), "blocked": blocked}
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
            connection.settimeout(_PATIENCE)
            connection.connect(address)
            socket.send_fds(connection, [b" "], [0, 1, 2])
            connection.sendall(json.dumps(request).encode())
            connection.shutdown(socket.SHUT_WR)
            return bool(connection.recv(1))
    except OSError:
        return False


def end_with(parent: int) -> None:
    """This process, also as what it becomes, ends with the ``parent`` that started it.

    A worker of Ray that starts while its session is killed would look for that for a minute.
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
