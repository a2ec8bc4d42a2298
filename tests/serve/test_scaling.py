"""Replicas that come and go with the load, and spans of requests."""

import os
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import pytest

from helpers.servers import Server, serving
from helpers.small_runs import TEXTS, write_run
from raysum.config.loading import section_of
from raysum.errors import UserError
from raysum.serve.config import ServeConfig


def test_more_replicas_are_at_least_the_first_ones():
    with pytest.raises(UserError, match="max_replicas 1 is less than replicas 2"):
        section_of(ServeConfig, {"run": "lead", "replicas": 2, "max_replicas": 1})
    assert section_of(ServeConfig, {"run": "lead", "replicas": 2}).most_replicas == 2
    assert section_of(ServeConfig, {"run": "lead", "max_replicas": 3}).most_replicas == 3


def replicas(server: Server) -> int:
    return len(server.processes("ServeReplica:raysum:model"))


@pytest.mark.long
@pytest.mark.slow
@pytest.mark.timeout(300)
def test_replicas_follow_the_load_without_an_error(tmp_path: Path):
    options = ("--max-replicas=3", "--scale-up=1", "--scale-down=3", "min_length=400", "max_length=400")
    with serving(write_run(tmp_path), *options) as server:
        server.wait_until_ready()
        assert replicas(server) == 1
        is_over, errors, answered = threading.Event(), list[Exception](), [0]

        def ask() -> None:
            client = server.another_client(retries=8)  # 503 asks for patience, other statuses fail
            while not is_over.is_set():
                try:
                    client.summarize("Florence", TEXTS)
                    answered[0] += 1
                except Exception as error:
                    errors.append(error)
                    return

        with ThreadPoolExecutor(16) as pool:
            asking = [pool.submit(ask) for _ in range(16)]
            deadline = time.monotonic() + 120
            while replicas(server) < 3 and time.monotonic() < deadline:
                time.sleep(0.2)
            grown = replicas(server)
            is_over.set()
            [one.result() for one in asking]
        assert grown == 3 and not errors and answered[0]
        deadline = time.monotonic() + 90
        while replicas(server) > 1 and time.monotonic() < deadline:
            server.client.summarize("Florence", TEXTS)
            time.sleep(0.5)
        assert replicas(server) == 1


@pytest.mark.long
@pytest.mark.slow
@pytest.mark.timeout(200)
def test_spans_of_requests_reach_a_collector_without_texts(monkeypatch: pytest.MonkeyPatch):
    received: list[bytes] = []

    class Collector(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            received.append(self.rfile.read(int(self.headers["Content-Length"])))
            self.send_response(200)
            self.end_headers()

        def log_message(self, *_: Any) -> None:
            pass

    with HTTPServer(("127.0.0.1", 0), Collector) as collector:
        threading.Thread(target=collector.serve_forever, daemon=True).start()
        monkeypatch.setitem(os.environ, "OTEL_EXPORTER_OTLP_ENDPOINT", f"http://127.0.0.1:{collector.server_port}")
        monkeypatch.setitem(os.environ, "OTEL_BSP_SCHEDULE_DELAY", "200")
        with serving("lexrank", "--trace=1") as server:
            server.wait_until_ready()
            server.client.summarize("Florence", ["The dome of Zanzibarland is old. It is red."])
            deadline = time.monotonic() + 30
            while b"/v1/summarize" not in b"".join(received) and time.monotonic() < deadline:
                time.sleep(0.1)
        collector.shutdown()
    spans = b"".join(received)
    assert b"/v1/summarize" in spans and b"Zanzibarland" not in spans
