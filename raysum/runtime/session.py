"""Starting or joining Ray, quietly; stopping what was started."""

import logging
import os
import socket
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

from raysum.errors import UserError
from raysum.runtime import forkserver
from raysum.runtime.compat import same_modules
from raysum.runtime.local import NotStartedError, check_temporary, delayed_signals, reason, start_local, stop_local
from raysum.runtime.log_filters import quiet_ray
from raysum.runtime.progress import say

# Ray reads these when it is imported or started. Workers inherit them.
_ENVIRONMENT = {
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_TRAIN_ENABLE_STATE_TRACKING": "1",  # Train runs in the dashboard
    "RAY_TRAIN_HEALTH_CHECK_INTERVAL_S": "0.5",  # how soon a lost worker is noticed, and how long a report waits
    # Waiting for free CPUs or GPUs is no failed start; Ray's own limit is a minute.
    "RAY_TRAIN_WORKER_GROUP_START_TIMEOUT_S": str(24 * 3600),
    "RAY_ENABLE_UV_RUN_RUNTIME_ENV": "0",
    "RAY_SERVE_LOG_TO_STDERR": "0",
    "RAY_SERVE_PROXY_READY_CHECK_TIMEOUT_S": "40",  # of three: by default, one not up within 15 s is killed for good
    "RAY_SERVE_PROXY_HEALTH_CHECK_PERIOD_S": "2",  # a dead proxy starts again after three checks
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
    "RAY_TQDM": "0",
    "RAY_prestart_worker_first_driver": "0",  # workers that Train and Tune do not use: theirs have an environment
    "RAY_AIR_NEW_OUTPUT": "0",  # the new one prints a box whatever its verbosity
    "TUNE_DISABLE_SIGINT_HANDLER": "1",  # Tune's returns as if the search had ended
}


def make_ready(purpose: str, address: str | None = None) -> None:
    """Begin to import what the workers of a session load, if it will be one of our own; see ``forkserver.PURPOSES``.

    Raises UserError as :func:`start_ray` would, before anything is written for what cannot start.
    """
    _set_environment()
    ray = sys.modules.get("ray")
    if not (is_joined(address) or (ray and ray.is_initialized())):
        check_temporary()
        forkserver.start(purpose)


def is_joined(address: str | None) -> bool:
    """Whether a session with ``address`` joins a running cluster instead of starting Ray on this machine."""
    return bool(address or os.environ.get("RAY_ADDRESS"))


def start_ray(address: str | None = None, cpus: float | None = None, purpose: str = "data") -> None:
    """Join the Ray cluster at ``address``, or start one on this machine; nothing if one is there already.

    ``cpus`` is accounting only: at least so many are offered, so that workers never wait for cores that are not there.
    ``purpose`` is one of ``forkserver.PURPOSES``. Inside a submitted job (`ray job submit`) the job's cluster is the
    address. Raises UserError where ``address`` does not answer, or no Ray of our own starts.
    """
    _set_environment()
    import ray

    if ray.is_initialized():
        return
    address = address or os.environ.get("RAY_ADDRESS") or "local"
    if address == "local":
        start_local(cpus, purpose)
    else:
        _join(address)
    quiet_ray()


def _join(address: str) -> None:
    import ray

    try:
        _knock(address)
        with delayed_signals():
            ray.init(address=address, job_config=same_modules(), log_to_driver=False, logging_level=logging.ERROR)
    except (OSError, ValueError, RuntimeError) as error:
        raise UserError(
            f"no Ray cluster answers at {address!r} ({reason(error)}); check the address, or leave it out"
        ) from None


def _set_environment() -> None:
    for name, value in _ENVIRONMENT.items():
        os.environ.setdefault(name, value)


def _knock(address: str) -> None:
    """Raises OSError where nothing listens at ``host:port``: Ray would try for minutes. Other forms are left to Ray."""
    host, colon, port = address.rpartition("://")[2].rpartition(":")
    if colon and port.isdecimal():
        with socket.create_connection((host.strip("[]"), int(port)), timeout=10):
            pass


@contextmanager
def ray_session(address: str | None = None, cpus: float | None = None, purpose: str = "data") -> Iterator[None]:
    """Ray for the length of the block, as of :func:`start_ray`; a session that was there before stays.

    The folder of a session of our own (logs, sockets) is removed with it, but where the block failed by a fault.
    """
    import ray

    if ray.is_initialized():
        yield
        return
    failed = True
    try:
        start_ray(address, cpus, purpose)
        yield
        failed = False
    except (UserError, KeyboardInterrupt):
        failed = False
        raise
    finally:
        stop_local(keep_logs=failed)


@contextmanager
def optional_session(address: str | None, wanted: bool) -> Iterator[bool]:
    """Ray for the length of the block if it is ``wanted`` and, without an ``address``, starts; whether it is there.

    One line says why Ray did not start. Raises UserError where ``address`` does not answer.
    """
    with ExitStack() as stack:
        if wanted:
            try:
                stack.enter_context(ray_session(address))
            except NotStartedError as error:
                say(f"one process does the work, without Ray: {error}")
                wanted = False
        yield wanted
