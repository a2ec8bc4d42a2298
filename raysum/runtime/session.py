"""Start or join Ray, and stop a session that raysum started."""

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

# Ray reads these when it is imported or started; workers inherit them.
_ENVIRONMENT = {
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_TRAIN_ENABLE_STATE_TRACKING": "1",  # Train runs in the dashboard
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


def make_ready(purpose: str, address: str | None = None) -> None:
    """Start the fork server early if a private session will be needed; ``purpose`` is in ``forkserver.PURPOSES``.

    Raises UserError as :func:`start_ray` would, before the command writes anything.
    """
    _set_environment()
    ray = sys.modules.get("ray")
    if not (is_joined(address) or (ray and ray.is_initialized())):
        check_temporary()
        forkserver.start(purpose)


def is_joined(address: str | None) -> bool:
    """Return whether a session with ``address`` joins a running cluster instead of starting Ray on this machine."""
    return bool(address or os.environ.get("RAY_ADDRESS"))


def start_ray(address: str | None = None, cpus: float | None = None, purpose: str = "data") -> None:
    """Join the Ray cluster at ``address``, or start a private session, unless this process has one already.

    ``cpus`` is the least number of logical CPUs of a private session, so that workers never wait for cores that the
    machine lacks. ``purpose`` is one of ``forkserver.PURPOSES``. In a submitted job (`ray job submit`) the default
    address is the job's cluster. Raises UserError if ``address`` does not answer or Ray does not start.
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
        _check_listening(address)
        with delayed_signals():
            ray.init(address=address, job_config=same_modules(), log_to_driver=False, logging_level=logging.ERROR)
    except (OSError, ValueError, RuntimeError) as error:
        raise UserError(
            f"no Ray cluster answers at {address!r} ({reason(error)}); check the address, or leave it out"
        ) from None


def _set_environment() -> None:
    for name, value in _ENVIRONMENT.items():
        os.environ.setdefault(name, value)


def _check_listening(address: str) -> None:
    """Raises OSError if nothing listens at ``host:port``, for which Ray would try for minutes. Ignores other forms."""
    host, colon, port = address.rpartition("://")[2].rpartition(":")
    if colon and port.isdecimal():
        with socket.create_connection((host.strip("[]"), int(port)), timeout=10):
            pass


@contextmanager
def ray_session(address: str | None = None, cpus: float | None = None, purpose: str = "data") -> Iterator[None]:
    """Provide Ray during the block, as :func:`start_ray` does; a session that existed before stays.

    The folder of a private session (logs, sockets) is removed at the end, except after an unexpected error.
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
