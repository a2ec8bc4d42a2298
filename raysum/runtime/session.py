"""Start or join Ray, and stop a session that raysum started.

A private session on this machine listens on loopback only, and leaves nothing behind when it stops.
"""

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
    no_log_monitor,
    no_sigterm_handler,
    own_groups,
    same_modules,
    stop_half_started,
)
from raysum.runtime.lock import PrivateFolder, waiting_lock
from raysum.runtime.network import check_listening, free_port
from raysum.runtime.processes import cores, environment, muted, quiet_ray
from raysum.runtime.progress import say
from raysum.runtime.versions import check_nodes

# Ray reads these when it is imported or started; workers inherit them.
_ENVIRONMENT = {
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_TRAIN_ENABLE_STATE_TRACKING": "1",  # Train runs in the dashboard
    # Ray tries ten times, a second apart, to connect to the object store, which is often too early by milliseconds.
    "RAY_raylet_client_connect_timeout_milliseconds": "20",
    "RAY_raylet_client_num_connect_attempts": "500",
    "RAY_TRAIN_HEALTH_CHECK_INTERVAL_S": "0.5",  # delay until a lost worker is noticed, and of each report
    # Time that a training may wait for CPUs and GPUs; Ray's default is one minute.
    "RAY_TRAIN_WORKER_GROUP_START_TIMEOUT_S": str(24 * 3600),
    "RAY_ENABLE_UV_RUN_RUNTIME_ENV": "0",
    "RAY_SERVE_LOG_TO_STDERR": "0",
    "RAY_SERVE_PROXY_READY_CHECK_TIMEOUT_S": "40",  # default 15 s, after which the proxy is killed
    "RAY_SERVE_PROXY_HEALTH_CHECK_PERIOD_S": "2",  # a dead proxy restarts after three checks
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
    "RAY_TQDM": "0",
    "RAY_prestart_worker_first_driver": "0",  # Train and Tune need workers with an environment, not these
    "RAY_AIR_NEW_OUTPUT": "0",  # the new output ignores verbosity
    "TUNE_DISABLE_SIGINT_HANDLER": "1",  # Tune's handler returns as if the search had ended
}
NO_DASHBOARD = "RAYSUM_NO_DASHBOARD"  # environment variable: start Ray without its dashboard
_DASHBOARD = 8265  # Ray's default port
_OBJECT_STORE = 400 << 20  # bytes; the default is 30 % of the memory, and raysum's blocks are a few MB each
_STARTS = 5  # attempts, if another user's session takes a port between our check and Ray's start
_LONGEST = 23  # bytes of TMPDIR; the path of a socket has at most 107, of which 84 are folders and names of Ray


class NotStartedError(UserError):
    """Ray did not start on this machine."""


def make_ready(purpose: str, address: str | None = None) -> None:
    """Start the fork server early if a private session will be needed; ``purpose`` is in ``forkserver.PURPOSES``.

    Raises UserError as :func:`ray_session` would, before the command writes anything.
    """
    _set_environment()
    ray = sys.modules.get("ray")
    if not (is_joined(address) or (ray and ray.is_initialized())):
        temporary_folder()
        forkserver.start(purpose)


def is_joined(address: str | None) -> bool:
    """Return whether a session with ``address`` joins a running cluster instead of starting Ray on this machine."""
    return bool(address or os.environ.get("RAY_ADDRESS"))


def _set_environment() -> None:
    for name, value in _ENVIRONMENT.items():
        os.environ.setdefault(name, value)


@contextmanager
def ray_session(address: str | None = None, cpus: float | None = None, purpose: str = "data") -> Iterator[None]:
    """Provide Ray during the block: join the cluster at ``address``, or start a private session.

    A session that this process had before is used and stays. ``cpus`` is the least number of logical CPUs of a private
    session, so that workers never wait for cores that the machine lacks. ``purpose`` is one of
    ``forkserver.PURPOSES``. In a submitted job (`ray job submit`) the default address is the job's cluster.
    The folder of a private session (logs, sockets) is removed at the end, except after an unexpected error.
    Raises UserError if ``address`` does not answer, its nodes have other versions, or Ray does not start.
    """
    _set_environment()
    import ray

    if ray.is_initialized():
        yield
        return
    address = address or os.environ.get("RAY_ADDRESS") or "local"
    folder = PrivateFolder(temporary_folder()) if address == "local" else None
    keeps_logs = True
    try:
        if folder:
            _start(Path(folder.path), cpus, purpose)
        else:
            _join(address)
            check_nodes()
        quiet_ray()
        yield
        keeps_logs = False
    except (UserError, KeyboardInterrupt) as error:
        keeps_logs = isinstance(error, NotStartedError)
        raise
    finally:
        ray.shutdown(wait_for_processes=True)
        forkserver.stop()
        if folder:
            folder.close(keeps_logs)


@contextmanager
def optional_session(address: str | None, wanted: bool) -> Iterator[bool]:
    """Provide Ray during the block if it is ``wanted`` and starts; yield whether it is available.

    A message gives the reason if a private session does not start. Raises UserError if ``address`` does not answer.
    """
    with ExitStack() as stack:
        if wanted:
            try:
                stack.enter_context(ray_session(address))
            except NotStartedError as error:
                say(f"one process does the work, without Ray: {error}")
                wanted = False
        yield wanted


def _join(address: str) -> None:
    import ray

    try:
        check_listening(address)  # Ray would try for minutes
        with delayed_signals():
            ray.init(address=address, job_config=same_modules(), log_to_driver=False, logging_level=logging.ERROR)
    except (OSError, ValueError, RuntimeError) as error:
        raise UserError(
            f"no Ray cluster answers at {address!r} ({reason(error)}); check the address, or leave it out"
        ) from None


def temporary_folder() -> str:
    """Return the folder for Ray's files and sockets. Raises NotStartedError if Ray cannot keep them there."""
    names = ("RAY_TMPDIR", "TMPDIR") if sys.platform == "linux" else ()
    name = next((name for name in names if name in os.environ), None)
    folder = os.path.abspath(os.environ[name] if name else "/tmp")
    setting = f"{name}={folder}" if name else folder
    if len(os.fsencode(folder)) > _LONGEST:
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
    return folder


def _start(folder: Path, cpus: float | None, purpose: str) -> None:
    """Start Ray with its files in ``folder``. Raises NotStartedError if it does not start."""
    import ray

    forkserver.start(purpose)
    port = _DASHBOARD
    for attempt in range(1, _STARTS + 1):
        try:
            with _alone(), delayed_signals(), muted("ray._private.services"), loopback_only(), own_groups():
                port = free_port(port)
                _init(folder, cpus, port)
            break
        except Exception as error:  # Ray has no exception class for a failed start
            session = stop_half_started(error)
            if attempt == _STARTS or not re.search("already occupied|already in use", str(error)):
                logs = f"; its logs are in {session}/logs" if session else ""
                without = ", or train without Ray (train.workers=0)" if purpose == "train" else ""
                raise NotStartedError(
                    f"Ray did not start on this machine ({reason(error)}){logs}; "
                    f"try again when it is less busy{without}"
                ) from None
            shutil.rmtree(session or "", ignore_errors=True)
            port += 1
    with suppress(OSError):  # anyone who can read Ray's token can run code here
        (Path.home() / ".ray" / "auth_token").chmod(0o600)
    ray.remote(num_cpus=0)(lambda: None).remote()  # the fork server begins to load Ray while we do


def _init(folder: Path, cpus: float | None, port: int) -> None:
    """Start Ray once, with a dashboard at ``port``.

    Without the API address Ray Train's clean-up asks the newest session of the machine whether a training still runs,
    fails, and never frees the CPUs of a trial that Tune stopped. The preemption watcher is for cloud machines.
    """
    import ray

    temporary = folder / "tmp"  # killed workers leave files, which are removed with the session
    temporary.mkdir(exist_ok=True)
    values = {"RAY_API_SERVER_ADDRESS": f"http://127.0.0.1:{port}", "TMPDIR": str(temporary)}
    values["RAY_TRAIN_ENABLE_PREEMPTION_WATCHER"] = "0"
    with forkserver.forked_workers(), no_log_monitor(), environment(values):
        ray.init(
            address="local",
            job_config=same_modules(),
            num_cpus=max(int(cpus or 0), cores(), 4),
            object_store_memory=_OBJECT_STORE,
            _temp_dir=str(folder / "ray"),  # Ray gives it mode 0777
            include_dashboard=not os.environ.get(NO_DASHBOARD),
            dashboard_port=port,
            log_to_driver=False,
            logging_level=logging.ERROR,
        )


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
            stack.enter_context(waiting_lock(folder / f"raysum-{socket.gethostname()}.lock"))
        yield


@contextmanager
def delayed_signals() -> Iterator[None]:
    """Delay Ctrl-C, SIGTERM and SIGHUP until the end of the block; processes started in it never receive Ctrl-C.

    If Ray is interrupted while it starts, it leaves processes behind or waits forever for a process that Ctrl-C ended.
    Ray's own SIGTERM handler would end this process before it has cleaned up; if there was no handler before, this
    function installs one like it at the end. Child processes inherit this thread's signal mask. Another thread may
    still receive a signal, so the handlers record it and print a message.
    """
    received: list[int] = []
    in_main = threading.current_thread() is threading.main_thread()

    def hold(number: int, frame: Any) -> None:
        if not received:
            say("stopping, as soon as Ray has started")
        received.append(number)

    def leave(number: int, frame: Any) -> None:
        sys.exit(number)

    delayed = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP) if in_main else ()
    handlers = {number: signal.signal(number, hold) for number in delayed}
    before = signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGINT])
    try:
        with no_sigterm_handler():
            yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
        for number, handler in handlers.items():
            is_bare = number == signal.SIGTERM and handler == signal.SIG_DFL
            signal.signal(number, leave if is_bare else handler)  # like Ray's handler: Ray ends when Python exits
        for which in dict.fromkeys(received):
            signal.raise_signal(which)


def reason(error: Exception) -> str:
    """Return the first line of an error's message, or the name of its class."""
    return next((line.strip() for line in str(error).splitlines() if line.strip()), type(error).__name__)
