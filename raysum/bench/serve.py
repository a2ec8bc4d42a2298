"""Speed of the service: latency at rising load, its cost beside the bare summarizer, and short requests beside long."""

import random
import subprocess
import tempfile
import threading
import time
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Annotated, Any, ClassVar

import httpx
import numpy as np
import torch
from pydantic import Field

from raysum.bench.base import Bench, Number, Row, alone
from raysum.bench.machine import Machine
from raysum.bench.start import prepare_run, raysum_command
from raysum.decode.summarizer import Summarizer
from raysum.errors import UserError
from raysum.examples.factbook import corpus
from raysum.runtime.network import listening
from raysum.runtime.processes import cores

_TIMEOUT = 300  # seconds
_ALL = httpx.Limits(max_connections=None, max_keepalive_connections=None)  # those of all clients stay open
_LONG = {"num_beams": 16, "max_length": 1000, "min_length": 1000, "no_repeat_ngram_size": 0}
_PAUSE = 0.2  # seconds of a client after a refusal


class ServeBench(Bench):
    """A row for each number of replicas and clients: all clients send requests one after another.

    ``overhead`` compares with the bare summarizer, which decodes the same requests in full batches in one process. In
    the rows with ``long`` requests, so many clients send costly requests (16 beams, 1,000 tokens) beside the others.
    """

    NAME: ClassVar[str] = "serve"
    threads: ClassVar[int] = cores()
    target: str | None = Field(None, description="the run to serve; None = a small one, made for this benchmark")
    replicas: list[Number] = Field([1], min_length=1, description="processes with the model")
    clients: list[Number] = Field([1, 4, 16], min_length=1, description="clients at once")
    long: list[Annotated[int, Field(ge=0)]] = Field(
        [0, 2], min_length=1, description="clients with costly requests beside them"
    )
    requests: int = Field(96, gt=0, description="requests of all clients together")
    length: int = Field(60, gt=0, description="tokens of every summary")

    def cases(self, scratch: Path) -> Iterable[tuple[Any, ...]]:
        run = self.target or prepare_run(scratch)
        loads = [(clients, long) for long in self.long for clients in self.clients]
        return [(str(run), replicas, clients, long) for replicas in self.replicas for clients, long in loads]

    def measured(self, _: Machine, run: str, replicas: int, clients: int, long: int) -> Row:
        """Return the figures of a load."""
        clusters = [*_clusters(self.requests)]
        bare = alone(self.bare, run, clusters)
        with (
            _server(run, replicas, self.length) as url,
            httpx.Client(base_url=url, timeout=_TIMEOUT, limits=_ALL) as http,
        ):
            with ThreadPoolExecutor(clients) as pool:  # so that all replicas have decoded
                [*pool.map(lambda cluster: _ask(http, cluster), clusters[: 4 * replicas])]
            with _long_requests(url, clusters[0], long), ThreadPoolExecutor(clients) as pool:
                began = time.monotonic()
                seconds = [*pool.map(lambda cluster: _ask(http, cluster), clusters)]
                total = time.monotonic() - began
        rate = len(clusters) / total
        quantiles = {f"p{q}_ms": 1000 * float(np.quantile(seconds, q / 100)) for q in (50, 95, 99)}
        row = {"replicas": replicas, "clients": clients, "long": long, "requests_per_s": rate, **quantiles}
        return row | {"bare_per_s": bare["rate"], "overhead": 1 - rate / bare["rate"]}

    def bare(self, run: str, clusters: list[dict[str, Any]]) -> Row:
        """Return the rate of the summarizer without a server, in this process."""
        torch.set_num_threads(cores())
        summarizer = Summarizer.load(run, min_length=self.length, max_length=self.length)
        summarizer.summarize_many(clusters[:4])
        began = time.monotonic()
        summarizer.summarize_many(clusters)
        return {"rate": len(clusters) / (time.monotonic() - began)}


def _clusters(count: int) -> Iterator[dict[str, Any]]:
    """Yield clusters with one to all of the documents of generated ones, so that lengths differ."""
    numbers = random.Random(0)
    for number, raw in enumerate(corpus.generate("test", count)):
        documents = raw["documents"][: numbers.randint(1, len(raw["documents"]))]
        yield {"id": str(number), "title": raw.get("title", ""), "documents": documents}


@contextmanager
def _server(run: str, replicas: int, length: int) -> Iterator[str]:
    """Run `raysum serve` during the block and yield its URL. Raises UserError if it does not start."""
    with listening("127.0.0.1", 0) as free:
        port = free.getsockname()[1]
    options = [f"--port={port}", f"--replicas={replicas}", f"--set=min_length={length}", f"--set=max_length={length}"]
    with tempfile.TemporaryFile() as log:
        command = raysum_command("serve", run, *options)
        process = subprocess.Popen(command, stdout=log, stderr=log, stdin=subprocess.DEVNULL)
        try:
            url, deadline = f"http://127.0.0.1:{port}", time.monotonic() + _TIMEOUT
            while not _answers(url):
                if process.poll() is not None or time.monotonic() > deadline:
                    log.seek(0)
                    raise UserError(f"raysum serve {run} did not start: {log.read().decode(errors='replace')[-2000:]}")
                time.sleep(0.1)
            yield url
        finally:
            process.terminate()
            process.wait(_TIMEOUT)


def _answers(url: str) -> bool:
    with suppress(httpx.TransportError):
        return httpx.get(f"{url}/healthz", timeout=5).status_code == 200
    return False


def _ask(http: httpx.Client, cluster: dict[str, Any]) -> float:
    """Return the seconds until a request is answered; a refused one is repeated, which counts.

    A client of its own for each request would take 40 ms of CPU time, for certificates.
    """
    began = time.monotonic()
    while True:
        answer = http.post("/v1/summarize", json=cluster)
        if answer.status_code == 200:
            return time.monotonic() - began
        if answer.status_code != 503:
            raise UserError(f"the server answers {answer.status_code}: {answer.text[:500]}")
        time.sleep(_PAUSE)


@contextmanager
def _long_requests(url: str, cluster: dict[str, Any], clients: int) -> Iterator[None]:
    """Let ``clients`` send costly requests during the block; leaving it, they disconnect."""
    is_over = threading.Event()

    def ask() -> None:
        with httpx.Client(timeout=_TIMEOUT) as http:
            while not is_over.is_set():
                with http.stream("POST", f"{url}/v1/summarize/stream", json={**cluster, "options": _LONG}) as answer:
                    for _ in answer.iter_raw():
                        if is_over.is_set():
                            break

    threads = [threading.Thread(target=ask) for _ in range(clients)]
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        is_over.set()
        for thread in threads:
            thread.join()
