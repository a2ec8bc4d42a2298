"""Metrics of a service in the text format of Prometheus. The front counts them, for all replicas."""

import time
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

from fastapi import FastAPI
from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.process_collector import ProcessCollector
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from raysum.serve.access import caller_name, paid
from raysum.serve.events import Event, Service
from raysum.serve.request_log import WriteLine

_SECONDS = (0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300)  # bounds of the histogram
_LATEST = 60.0  # seconds for which the number of waiting requests of a replica is used
_GONE = "499"  # nginx's status of a request whose client disconnects
_OTHER = "other"  # the route of refused requests and unknown paths, which are as many as clients invent


class Metrics:
    """The counters of one front, from 0 after each start."""

    def __init__(self) -> None:
        self.registry = registry = CollectorRegistry()
        ProcessCollector(registry=registry)
        counter = partial(Counter, registry=registry)
        self.requests = counter("raysum_requests", "Requests by route, status and key", ["route", "status", "key"])
        self.seconds = Histogram(
            "raysum_request_seconds", "Time until the end of an answer", ["route"], registry=registry, buckets=_SECONDS
        )
        self.source_tokens = counter("raysum_source_tokens", "Tokens of sources that the model read", ["key"])
        self.summary_tokens = counter("raysum_summary_tokens", "Tokens of summaries", ["key"])
        self._active, self._waiting = 0, dict[str, tuple[float, int]]()
        about = "Requests that wait for a batch, as the replicas reported with their last answers"
        Gauge("raysum_requests_waiting", about, registry=registry).set_function(self.waiting)
        about = "Other requests that the replicas have not answered"
        Gauge("raysum_requests_running", about, registry=registry).set_function(lambda: self._active - self.waiting())

    @contextmanager
    def active(self) -> Iterator[None]:
        """Count a request to the replicas during the block."""
        self._active += 1
        try:
            yield
        finally:
            self._active -= 1

    def count(self, answer: dict[str, Any]) -> None:
        """Count the tokens of an answer, and remove the state of its replica from it."""
        usage, replica = answer.get("usage") or {}, answer.pop("replica", None)
        self.source_tokens.labels(caller_name()).inc(usage.get("source_tokens", 0))
        self.summary_tokens.labels(caller_name()).inc(usage.get("summary_tokens", 0))
        if replica:
            self._waiting[replica["id"]] = time.monotonic(), replica["waiting"]

    def waiting(self) -> int:
        """Return how many requests wait for a batch; a replica without a recent answer has none."""
        since = time.monotonic() - _LATEST
        self._waiting = {replica: state for replica, state in self._waiting.items() if state[0] > since}
        return min(self._active, sum(waiting for _, waiting in self._waiting.values()))


class Accounted:
    """A service that counts its requests and their tokens, and charges the keys for them, whatever their route."""

    def __init__(self, service: Service, metrics: Metrics):
        self._service, self._metrics = service, metrics

    async def summarize(self, cluster: dict[str, Any], settings: dict[str, Any]) -> dict[str, Any]:
        with paid(cluster) as usage, self._metrics.active():
            answer = await self._service.summarize(cluster, settings)
            self._metrics.count(answer)
            usage |= answer.get("usage") or {}
            return answer

    async def stream(self, cluster: dict[str, Any], settings: dict[str, Any]) -> AsyncIterator[Event]:
        with paid(cluster) as usage, self._metrics.active():
            async for event in self._service.stream(cluster, settings):
                if event["event"] == "error":
                    usage["source_tokens"] = 0
                elif event["event"] == "result":
                    self._metrics.count(event["data"])
                    usage |= event["data"].get("usage") or {}
                yield event


class Measured:
    """ASGI middleware that counts requests and their seconds, and writes them into a log, if there is one."""

    def __init__(self, app: ASGIApp, metrics: Metrics, log: WriteLine | None):
        self.app, self._metrics, self._log = app, metrics, log

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        began, status = time.monotonic(), _GONE

        async def send_and_note(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = str(message["status"])
            await send(message)

        try:
            await self.app(scope, receive, send_and_note)
        except Exception:
            status = "500"
            raise
        finally:
            route, seconds = getattr(scope.get("route"), "path", _OTHER), time.monotonic() - began
            self._metrics.requests.labels(route, status, caller_name()).inc()
            self._metrics.seconds.labels(route).observe(seconds)
            if self._log:
                self._log(route, status, caller_name(), seconds)


def add_metrics_route(api: FastAPI, metrics: Metrics) -> None:
    @api.get("/metrics", response_class=Response, responses={200: {"content": {"text/plain": {}}}})
    async def show_metrics() -> Response:
        """Return counters of requests, seconds and tokens of all replicas in the text format of Prometheus."""
        return Response(generate_latest(metrics.registry), media_type=CONTENT_TYPE_LATEST)
