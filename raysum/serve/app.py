"""`raysum serve`: host a run over HTTP until it is stopped."""

import os
import signal
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import httpx

from raysum.config.base import with_settings
from raysum.config.loading import section_of
from raysum.errors import UserError
from raysum.runtime.lock import LOCK, is_held
from raysum.runtime.network import http_url, listening
from raysum.runtime.processes import muted
from raysum.runtime.progress import say
from raysum.runtime.session import ray_session
from raysum.serve.config import ServeConfig
from raysum.serve.served import all_served
from raysum.serve.tracing import tracing_libraries

_NAME = "raysum"
_EXPORTER = "raysum.serve.tracing:exporter"
_LONGEST = 300.0  # seconds until a request is cancelled and answered with 408; also the timeout of our client
_IDLE = 60  # seconds until an idle connection is closed
_LOOK, _SOON = 5.0, 1.0  # seconds between two looks for problems of the front, and until it must answer
_READY = 120  # seconds in which a running deployment must answer


@with_settings(ServeConfig)
def serve(run: str | os.PathLike[str] | Mapping[str, str | os.PathLike[str]], **settings: Any) -> None:
    """Host a run, or the best of a search, at ``http://host:port`` until SIGINT or SIGTERM.

    Several models have names: ``{"pht": "runs/pht", "fast": "lexrank"}``. Requests choose one by ``model``.

    Raises UserError if the run, a setting or the address is wrong, or if the port is in use.

    >>> raysum.serve("runs/pht", port=8000, replicas=2, decode={"num_beams": 8})
    """
    from ray import serve as ray_serve

    from raysum.serve.api import curl_example
    from raysum.serve.guard import LOCAL

    models = {name: os.fspath(one) for name, one in run.items()} if isinstance(run, Mapping) else os.fspath(run)
    config = section_of(ServeConfig, {**settings, "run": models})
    with serving(config) as url:
        stopped = threading.Event()
        before = {name: signal.signal(name, lambda *_: stopped.set()) for name in (signal.SIGINT, signal.SIGTERM)}
        names = config.run if isinstance(config.run, str) else ", ".join(config.run)
        say(f"serving {names} at {url}, also in a browser")
        say(f"  documentation: {url}/docs\n  try: {curl_example(url, bool(config.keys))}")
        if config.host not in LOCAL and not config.keys:
            say(f"warning: anyone who can reach {config.host} can use the server; 127.0.0.1 is for this machine only")
        if config.host not in LOCAL and not config.tls_key:
            say("warning: texts and keys are sent unencrypted; add --tls-certificate, or a gateway with TLS")
        say("Ctrl-C stops it")
        with muted("ray.serve"):  # it logs each restart of the front
            front = ray_serve.get_app_handle(_NAME)  # once: each handle has a thread of its own
            while not stopped.wait(_LOOK):
                problems = list[str]()
                with suppress(Exception):  # the front restarts
                    problems = front.problems.remote().result(timeout_s=_SOON)
                for problem in problems:
                    say(problem)
        say("stopping")
    for name, handler in before.items():  # last, so that a second Ctrl-C does not interrupt the shutdown
        signal.signal(name, handler)


@contextmanager
def serving(config: ServeConfig) -> Iterator[str]:
    """Run the server during the block and yield its URL. Raises as :func:`serve` does."""
    from raysum.serve.access import with_access
    from raysum.serve.ports import tls_options

    with listening(config.host, config.port) as listener:  # check the address before the slow start of Ray
        port = listener.getsockname()[1]
    config = with_access(config)
    if config.trace:
        tracing_libraries()
        os.environ.setdefault("OTEL_SERVICE_NAME", "raysum")  # OpenTelemetry reads it in each process
    served = all_served(config)
    tls = tls_options(config)
    os.environ.setdefault("RAY_SERVE_HTTP_PROXY_CALLBACK_IMPORT_PATH", "raysum.serve.guard.at_proxy")  # Ray reads it
    if config.batches and is_held(Path(config.batches, LOCK)):
        raise UserError(f"another service uses the batches in {config.batches}; choose another --batches")
    with ray_session(config.address, config.most_replicas, "serve"):
        import ray
        from ray import serve as ray_serve

        from raysum.serve.ports import require_token
        from raysum.serve.replicas import application

        if ray_serve.status().proxies:
            raise UserError("this Ray cluster already runs Ray Serve; shut that down first, or omit the address")
        if config.gpus and config.address is None and not ray.cluster_resources().get("GPU"):
            raise UserError(f"this machine has no GPU for gpus={config.gpus:g}: leave --gpus out, or set it to 0")
        require_token(config.host)
        deployments = application(config, served)
        logs = {"log_level": "ERROR", "enable_access_log": False}
        try:
            with muted("ray.serve"):  # errors are also raised
                timeouts = {"request_timeout_s": _LONGEST, "keep_alive_timeout_s": _IDLE}
                _run(deployments, {"host": config.host, "port": port, **timeouts, **tls}, logs, config.trace)
            url = http_url(config.host, port, is_secure=bool(tls))
            _wait_until_ready(url)
            yield url
            with muted("ray.serve"):
                ray_serve.delete(_NAME)  # before the proxy stops, so that running requests are answered
        finally:
            with muted("ray.serve"):
                ray_serve.shutdown()


def _run(deployments: Any, options: dict[str, Any], logs: dict[str, Any], trace: float) -> None:
    """Deploy with the HTTP ``options`` and wait for the replicas. A share ``trace`` of the requests is traced.

    Raises the UserError of a replica that cannot load the run, and UserError if Ray Serve does not start in time, or
    if another program has taken the port meanwhile.
    """
    from ray import serve as ray_serve

    try:
        tracing = {"enabled": trace > 0, "exporter_import_path": _EXPORTER, "sampling_ratio": trace}
        ray_serve.start(proxy_location="HeadOnly", http_options=options, logging_config=logs, tracing_config=tracing)
        ray_serve.run(deployments, name=_NAME, route_prefix="/", logging_config=logs)
    except TimeoutError as error:
        raise UserError(
            f"the server did not start in time ({error}); try again when the machine is less busy"
        ) from None
    except RuntimeError:
        applications = ray_serve.status().applications
        if _NAME not in applications:  # the proxy did not start
            with listening(options["host"], options["port"]):
                raise
        parts = applications[_NAME].deployments.values()
        reason = "\n".join(part.message for part in parts if part.message)
        _, _, mistake = reason.partition("raysum.errors.UserError: ")
        raise (UserError(mistake.strip()) if mistake else RuntimeError(reason)) from None


def _wait_until_ready(url: str) -> None:
    """Wait until the server answers: the proxy learns the routes shortly after the replicas start."""
    deadline = time.monotonic() + _READY
    while time.monotonic() < deadline:
        with suppress(httpx.TransportError):
            # The certificate has another name than the address of this machine.
            if httpx.get(f"{url}/healthz", timeout=5, verify=False).status_code == 200:
                return
        time.sleep(0.05)
    raise RuntimeError(f"the server at {url} did not answer within {_READY} s")
