"""`raysum serve`: host a run over HTTP until stopped, and leave nothing running."""

import logging
import os
import signal
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import httpx

from raysum.config.loading import validate
from raysum.config.sections import DecodeConfig
from raysum.errors import UserError
from raysum.run import Run
from raysum.runtime.progress import say
from raysum.runtime.session import ray_session
from raysum.serve.limits import MAX_BODY

_NAME = "raysum"
_READY = 120  # seconds after the deployment is up until it must answer


def serve(
    run_path: str | os.PathLike[str],
    host: str = "127.0.0.1",
    port: int = 8000,
    replicas: int = 1,
    checkpoint: str = "best",
    dtype: str = "fp32",
    decode: dict[str, Any] | None = None,
    address: str | None = None,
) -> None:
    """Host a run, or the best of a search, at ``http://host:port`` until SIGINT or SIGTERM.

    ``replicas`` copies of the model share the cores; ``dtype`` is as in ``raysum.load``; ``decode`` overrides the run's
    decode settings; ``address`` names a running Ray cluster to use instead of one of its own.
    Raises UserError for a wrong run, setting or address, and where the port is taken.
    """
    from raysum.serve.api import curl_example

    with serving(run_path, host, port, replicas, checkpoint, dtype, decode, address) as url:
        say(f"serving {run_path} at {url}\n  the interface: {url}/docs\n  try: {curl_example(url)}")
        if host not in ("127.0.0.1", "localhost"):
            say(f"warning: whoever reaches {host} can use it; 127.0.0.1 keeps it to this machine")
        say("Ctrl-C stops it")
        _wait_for_signal()
        say("stopping")


@contextmanager
def serving(
    run_path: str | os.PathLike[str],
    host: str = "127.0.0.1",
    port: int = 8000,
    replicas: int = 1,
    checkpoint: str = "best",
    dtype: str = "fp32",
    decode: dict[str, Any] | None = None,
    address: str | None = None,
    max_body: int = MAX_BODY,
) -> Iterator[str]:
    """The server for the length of the block, as its address; ``port`` 0 takes a free one. Raises as `serve` does."""
    if replicas < 1:
        raise UserError(f"replicas must be at least 1 (got {replicas})")
    run = Run.resolve(run_path)
    found = run.checkpoint(checkpoint)
    settings = validate(run.decode.model_dump() | (decode or {}), root=DecodeConfig)
    port = _free_port(host, port)
    with ray_session(address, cpus=replicas):
        from ray import serve as ray_serve

        from raysum.serve.replicas import application

        if ray_serve.status().proxies:
            raise UserError("this Ray cluster runs Ray Serve already; stop that first, or leave the address out")
        deployments = application(
            str(run.path),
            str(found.step),
            dtype,
            decode or {},
            replicas,
            settings.batch_examples,
            run.path.name,
            found.step,
            max_body,
        )
        logs = {"log_level": "ERROR", "enable_access_log": False}
        logging.getLogger("ray.serve").setLevel(logging.CRITICAL)  # in this process; what fails is raised, too
        try:
            ray_serve.start(proxy_location="HeadOnly", http_options={"host": host, "port": port}, logging_config=logs)
            _run(deployments, logs)
            url = f"http://{'127.0.0.1' if host == '0.0.0.0' else host}:{port}"
            _wait_until_ready(url)
            yield url
        finally:
            ray_serve.shutdown()


def _free_port(host: str, port: int) -> int:
    """``port`` if it can be bound here, any free one for 0. Asked before Ray starts, which would say it late."""
    if not 0 <= port <= 65535:
        raise UserError(f"port {port} is not between 0 and 65535")
    try:
        with socket.create_server((host, port)) as listener:
            return listener.getsockname()[1]
    except OSError as error:
        raise UserError(
            f"cannot listen on {host} port {port} ({error.strerror}); choose another --port or --host"
        ) from None


def _run(deployments: Any, logs: dict[str, Any]) -> None:
    """Deploy and wait for the replicas. A UserError that one of them raised while it loaded the run is raised here."""
    from ray import serve as ray_serve

    try:
        ray_serve.run(deployments, name=_NAME, route_prefix="/", logging_config=logs)
    except RuntimeError:
        parts = ray_serve.status().applications[_NAME].deployments.values()
        reason = "\n".join(part.message for part in parts if part.message)
        _, _, mistake = reason.partition("raysum.errors.UserError: ")
        raise (UserError(mistake.strip()) if mistake else RuntimeError(reason)) from None


def _wait_until_ready(url: str) -> None:
    """Return once the server answers through its port: routes reach the proxy a moment after the replicas are up."""
    deadline = time.monotonic() + _READY
    while time.monotonic() < deadline:
        try:
            if httpx.get(f"{url}/healthz", timeout=5).status_code == 200:
                return
        except httpx.TransportError:
            pass
        time.sleep(0.05)
    raise RuntimeError(f"the server at {url} did not answer within {_READY} s")


def _wait_for_signal() -> None:
    """Sleep until SIGINT or SIGTERM."""
    stopped = threading.Event()
    for name in (signal.SIGINT, signal.SIGTERM):
        signal.signal(name, lambda *_: stopped.set())
    stopped.wait()
