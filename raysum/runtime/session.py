"""Starting or joining Ray, quietly; stopping what was started."""

import fcntl
import logging
import os
import signal
import socket
import sys
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from raysum.errors import UserError
from raysum.runtime import forkserver
from raysum.runtime.processes import environment
from raysum.runtime.silence import quiet_ray

NO_DASHBOARD = "RAYSUM_NO_DASHBOARD"  # set in the environment: Ray is started without its dashboard
_OBJECT_STORE = 400 << 20  # bytes; the default is 30 % of the memory, and raysum's blocks are a few MB each

# Ray reads these when it is imported or started. Workers inherit them.
_ENVIRONMENT = {
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_TRAIN_ENABLE_STATE_TRACKING": "1",  # Train runs in the dashboard
    "RAY_TRAIN_HEALTH_CHECK_INTERVAL_S": "0.5",  # how soon a lost worker is noticed, and how long a report waits
    "RAY_ENABLE_UV_RUN_RUNTIME_ENV": "0",
    "RAY_SERVE_LOG_TO_STDERR": "0",
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
    "RAY_TQDM": "0",
    "RAY_prestart_worker_first_driver": "0",  # workers that Train and Tune do not use: theirs have an environment
    "RAY_AIR_NEW_OUTPUT": "0",  # the new one prints a box whatever its verbosity
    "TUNE_DISABLE_SIGINT_HANDLER": "1",  # Tune's returns as if the search had ended
}


def make_ready(purpose: str, address: str | None = None) -> None:
    """Begin to import what the workers of a session load, if it will be one of our own; see ``forkserver.PURPOSES``."""
    ray = sys.modules.get("ray")
    if not (address or os.environ.get("RAY_ADDRESS") or (ray and ray.is_initialized())):
        forkserver.start(purpose)


def start_ray(address: str | None = None, cpus: float | None = None, purpose: str = "data") -> None:
    """Join the Ray cluster at ``address``, or start one on this machine; nothing if one is there already.

    ``cpus`` is accounting only: at least so many are offered, so that workers never wait for cores that are not there.
    ``purpose`` is one of ``forkserver.PURPOSES``. Inside a submitted job (`ray job submit`) the job's cluster is the
    address. Raises UserError where ``address`` does not answer.
    """
    for name, value in _ENVIRONMENT.items():
        os.environ.setdefault(name, value)
    import ray

    if ray.is_initialized():
        return
    address = address or os.environ.get("RAY_ADDRESS") or "local"
    try:
        if address == "local":
            forkserver.start(purpose)
            with _alone(), _interrupt_held(), environment(_own(port := _free_port())), forkserver.forked_python():
                ray.init(
                    address="local",
                    num_cpus=max(int(cpus or 0), os.cpu_count() or 1, 4),
                    object_store_memory=_OBJECT_STORE,
                    include_dashboard=not os.environ.get(NO_DASHBOARD),
                    dashboard_port=port,
                    log_to_driver=False,
                    logging_level=logging.ERROR,
                )
            ray.remote(num_cpus=0)(lambda: None).remote()  # the fork server begins to load Ray while we do
        else:
            _knock(address)
            ray.init(address=address, log_to_driver=False, logging_level=logging.ERROR)
    except (OSError, ValueError, RuntimeError) as error:
        first = next(iter(str(error).strip().splitlines()), type(error).__name__)
        raise UserError(
            f"no Ray cluster answers at {address!r} ({first}); check the address, or leave it out"
        ) from None
    quiet_ray()


def _knock(address: str) -> None:
    """Raises OSError where nothing listens at ``host:port``: Ray would try for minutes. Other forms are left to Ray."""
    host, colon, port = address.rpartition("://")[2].rpartition(":")
    if colon and port.isdecimal():
        with socket.create_connection((host.strip("[]"), int(port)), timeout=10):
            pass


@contextmanager
def _alone() -> Iterator[None]:
    """No other session of this user starts in the block: it would find the same port free."""
    lock = os.open(f"{tempfile.gettempdir()}/raysum-{os.getuid()}.lock", os.O_CREAT | os.O_RDWR | os.O_NOFOLLOW, 0o600)
    with os.fdopen(lock) as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _free_port(first: int = 8265) -> int:
    """The first port of this machine that nothing listens on, from the dashboard's usual one on."""
    for port in range(first, first + 1000):
        with socket.socket() as probe, suppress(OSError):
            probe.bind(("127.0.0.1", port))
            return port
    raise OSError("no port is free for the dashboard")


def _own(port: int) -> dict[str, str]:
    """What the processes of a Ray of our own are told, whose dashboard is at ``port``.

    Without an address Ray Train's clean-up asks the newest session of the machine whether a training still runs, dies,
    and never frees the CPUs of a trial that Tune stopped. And no cloud takes this machine back: nothing watches for it.
    """
    return {"RAY_API_SERVER_ADDRESS": f"http://127.0.0.1:{port}", "RAY_TRAIN_ENABLE_PREEMPTION_WATCHER": "0"}


@contextmanager
def _interrupt_held() -> Iterator[None]:
    """Ctrl-C waits for the end of the block, and what starts in the block never sees it.

    Ray interrupted while it starts leaves processes behind, or waits without end for one that Ctrl-C has ended. What is
    started inherits this thread's mask; another thread that has none may take the signal, which the handler keeps.
    """
    pressed: list[int] = []
    main = threading.current_thread() is threading.main_thread()  # only there Python handles signals
    handler = signal.signal(signal.SIGINT, lambda number, _: pressed.append(number)) if main else None
    before = signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGINT])
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
        if main:
            signal.signal(signal.SIGINT, handler)
    if pressed:
        signal.raise_signal(signal.SIGINT)


@contextmanager
def ray_session(address: str | None = None, cpus: float | None = None, purpose: str = "data") -> Iterator[None]:
    """Ray for the length of the block, as of :func:`start_ray`; a session that was there before stays."""
    import ray

    was_there = ray.is_initialized()
    try:
        start_ray(address, cpus, purpose)
        yield
    finally:
        if not was_there:
            ray.shutdown()
            forkserver.stop()
