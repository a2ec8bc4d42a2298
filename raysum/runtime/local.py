"""A private Ray session on this machine: it listens on loopback only, and leaves nothing behind when it stops."""

import fcntl
import logging
import os
import re
import shutil
import signal
import socket
import sys
import tempfile
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

from raysum.errors import UserError
from raysum.runtime import forkserver
from raysum.runtime.compat import (
    loopback_only,
    no_sigterm_handler,
    own_groups,
    same_modules,
    stop_half_started,
)
from raysum.runtime.log_filters import muted
from raysum.runtime.private_folder import PrivateFolder
from raysum.runtime.processes import cores, environment
from raysum.runtime.progress import say

NO_DASHBOARD = "RAYSUM_NO_DASHBOARD"  # environment variable: start Ray without its dashboard
_OBJECT_STORE = 400 << 20  # bytes; the default is 30 % of the memory, and raysum's blocks are a few MB each
_STARTS = 5  # attempts, if another user's session takes a port between our check and Ray's start
_SOCKET = (
    f"/raysum-12345678/ray/session_2026-11-22_05-42-14_534597_{os.getpid()}/sockets/plasma_store"  # Ray's longest path
)
_LONGEST = 107 - len(_SOCKET)  # bytes; the path of a socket has at most 107

_folder: PrivateFolder | None = None  # the folder of the running session


class NotStartedError(UserError):
    """Ray did not start on this machine."""


def check_temporary() -> None:
    """Raises NotStartedError if Ray cannot keep its files and sockets in the folder for temporary files."""
    name, folder = _temporary()
    setting = f"{name}={folder}" if name else folder
    if len(os.fsencode(os.path.abspath(folder))) > _LONGEST:
        raise NotStartedError(
            f"{setting} is too long a path for Ray's sockets; set TMPDIR to one of at most {_LONGEST} bytes"
        )
    try:
        with tempfile.TemporaryFile(dir=folder) as file:
            file.write(b" " * 4096)
    except OSError as error:
        raise NotStartedError(
            f"Ray cannot keep its files in {setting} ({error.strerror}); set TMPDIR to a folder that can be written"
        ) from None


def _temporary() -> tuple[str | None, str]:
    """Return the environment variable that sets the folder for Ray's temporary files (None: default) and the folder."""
    name = next((name for name in ("RAY_TMPDIR", "TMPDIR") if name in os.environ and sys.platform == "linux"), None)
    return name, os.environ[name] if name else "/tmp"


def start_local(cpus: float | None, purpose: str) -> None:
    """Start Ray with at least ``cpus`` logical CPUs. Raises NotStartedError if it does not start."""
    global _folder
    import ray

    check_temporary()
    forkserver.start(purpose)
    _leave_folder(keep=False)  # from a session that ended without stop_local
    _folder = PrivateFolder(os.path.abspath(_temporary()[1]))
    temporary = os.path.join(_folder.path, "tmp")  # killed workers leave files, which are removed with the session
    os.mkdir(temporary)
    port = 8265  # the dashboard's default port
    for attempt in range(1, _STARTS + 1):
        try:
            with (
                _alone(),
                delayed_signals(),
                muted("ray._private.services"),
                loopback_only(),
                own_groups(),
                forkserver.forked_python(),
            ):
                port = _free_port(port)
                with environment(_own(port, temporary)):
                    ray.init(
                        address="local",
                        job_config=same_modules(),
                        num_cpus=max(int(cpus or 0), cores(), 4),
                        object_store_memory=_OBJECT_STORE,
                        _temp_dir=os.path.join(_folder.path, "ray"),  # Ray gives it mode 0777
                        include_dashboard=not os.environ.get(NO_DASHBOARD),
                        dashboard_port=port,
                        log_to_driver=False,
                        logging_level=logging.ERROR,
                    )
            break
        except Exception as error:  # Ray has no exception class for a failed start
            folder = stop_half_started(error)
            taken = re.search("already occupied|already in use", str(error))
            if not taken or attempt == _STARTS:
                logs = f"; its logs are in {folder}/logs" if folder else ""
                _leave_folder(keep=bool(folder))
                without = ", or train without Ray (train.workers=0)" if purpose == "train" else ""
                raise NotStartedError(
                    f"Ray did not start on this machine ({reason(error)}){logs}; "
                    f"try again when it is less busy{without}"
                ) from None
            shutil.rmtree(folder or "", ignore_errors=True)
            port += 1
    with suppress(OSError):  # anyone who can read Ray's token can run code here
        (Path.home() / ".ray" / "auth_token").chmod(0o600)
    ray.remote(num_cpus=0)(lambda: None).remote()  # the fork server begins to load Ray while we do


def stop_local(keep_logs: bool) -> None:
    """Disconnect from Ray, stop a private session, and remove its folder unless ``keep_logs``."""
    import ray

    ray.shutdown(wait_for_processes=True)
    forkserver.stop()
    _leave_folder(keep_logs)


def _leave_folder(keep: bool) -> None:
    global _folder
    folder, _folder = _folder, None
    if folder:
        (folder.keep if keep else folder.remove)()


def reason(error: Exception) -> str:
    """Return the first line of an error's message, or the name of its class."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return lines[0] if lines else type(error).__name__


@contextmanager
def _alone() -> Iterator[None]:
    """Keep other sessions of this user from starting during the block, since they would choose the same free port.

    The lock file is in the folder of Ray's token, which other users cannot write. Without that folder nothing is
    locked.
    """
    folder = Path.home() / ".ray"
    with ExitStack() as stack:
        with suppress(OSError):
            folder.mkdir(mode=0o700, exist_ok=True)
            file = stack.enter_context((folder / f"raysum-{socket.gethostname()}.lock").open("w"))
            fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _free_port(first: int = 8265) -> int:
    """Return the first free port of this machine, from ``first`` up."""
    for port in range(first, first + 1000):
        with socket.socket() as probe, suppress(OSError):
            probe.bind(("127.0.0.1", port))
            return port
    raise OSError("no port is free for the dashboard")


def _own(port: int, temporary: str) -> dict[str, str]:
    """Return the environment of the processes of a private session with a dashboard at ``port``.

    Without the address Ray Train's clean-up asks the newest session of the machine whether a training still runs,
    fails, and never frees the CPUs of a trial that Tune stopped. The preemption watcher is for cloud machines.
    """
    return {
        "RAY_API_SERVER_ADDRESS": f"http://127.0.0.1:{port}",
        "RAY_TRAIN_ENABLE_PREEMPTION_WATCHER": "0",
        "TMPDIR": temporary,
    }


@contextmanager
def delayed_signals() -> Iterator[None]:
    """Delay Ctrl-C, SIGTERM and SIGHUP until the end of the block; processes started in it never receive Ctrl-C.

    If Ray is interrupted while it starts, it leaves processes behind or waits forever for a process that Ctrl-C ended.
    Ray's own SIGTERM handler would end this process before it has cleaned up; if there was no handler before, this
    function installs one like it at the end. Child processes inherit this thread's signal mask. Another thread may
    still receive a signal, so the handlers record it and print a message.
    """
    received: list[int] = []
    ending = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    delayed = ending if threading.current_thread() is threading.main_thread() else ()

    def hold(number: int, frame: Any) -> None:
        if not received:
            say("stopping, as soon as Ray has started")
        received.append(number)

    def leave(number: int, frame: Any) -> None:
        sys.exit(number)

    handlers = {number: signal.signal(number, hold) for number in delayed}
    before = signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGINT])
    try:
        with no_sigterm_handler():
            yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
        for number, handler in handlers.items():
            bare = number == signal.SIGTERM and handler == signal.SIG_DFL
            signal.signal(number, leave if bare else handler)  # like Ray's handler: Ray ends when Python exits
        for which in dict.fromkeys(received):
            signal.raise_signal(which)
