"""The client of the fork server: it starts a Ray worker in place of Ray's setup_worker.py, and falls back to that.

    python start_worker.py .../ray/_private/workers/default_worker.py ARGUMENT...

It must start fast, so it uses only the standard library.
"""

import json
import os
import signal
import socket
import sys

ADDRESS = "RAYSUM_FORK_SERVER"  # environment variable: the path of the server's socket
_TIMEOUT = 60  # seconds


def ask(argv: list[str]) -> bool:
    """Ask the server for a process with this one's streams, environment and folder; return whether it was started."""
    blocked = [int(number) for number in signal.pthread_sigmask(signal.SIG_BLOCK, [])]
    request = {"argv": argv, "python": sys.executable, "env": dict(os.environ), "cwd": os.getcwd(), "blocked": blocked}
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
            connection.settimeout(_TIMEOUT)
            connection.connect(os.environ[ADDRESS])
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
    argv = sys.argv[1:]
    if any(argument.startswith("--serialized-runtime-env-context=") for argument in argv):
        argv.insert(0, os.path.join(os.path.dirname(argv[0]), "setup_worker.py"))
    else:  # the raylet knows Ray's set-up script by its name, and would leave out both
        argv = [argument for argument in argv if not argument.startswith("--language=")]
    if not ask(argv):
        end_with(int(os.environ.get("RAY_RAYLET_PID") or os.getppid()))
        os.execv(sys.executable, [sys.executable, *argv])
