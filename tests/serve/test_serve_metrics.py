"""Metrics of a service, and its routes about itself."""

import asyncio
import json
import os
import signal
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import httpx
import pytest
from prometheus_client.parser import text_string_to_metric_families

from helpers.servers import Server, serving
from helpers.small_runs import TEXTS, write_run
from raysum.errors import UserError
from raysum.runs.folder import Run
from raysum.serve import metrics
from raysum.serve.access import with_access
from raysum.serve.api import build_api
from raysum.serve.config import Limits, ServeConfig
from raysum.serve.events import Event, failed, queued
from raysum.serve.guard import Overloaded
from raysum.serve.keys import KeyLimits, add_key, revoke_key
from raysum.serve.schema import Health
from raysum.serve.state import add_state_routes

Samples = dict[tuple[str, str], float]  # by the name and the labels


def samples(text: str) -> Samples:
    families = text_string_to_metric_families(text)
    found = [sample for family in families for sample in family.samples]
    return {
        (sample.name, ",".join(f"{k}={v}" for k, v in sorted(sample.labels.items()))): sample.value for sample in found
    }


class Busy:
    """A service whose replica reports two waiting requests. Titles select failures."""

    def __init__(self) -> None:
        self.release, self.is_ready = asyncio.Event(), True

    async def summarize(self, cluster: dict[str, Any], settings: dict[str, Any]) -> dict[str, Any]:
        if cluster["title"] == "busy":
            raise Overloaded("too many requests are waiting")
        if cluster["title"] == "broken":
            raise ZeroDivisionError("a fault of ours")
        if cluster["title"] == "slow":
            await self.release.wait()
        usage = {"source_tokens": 50, "summary_tokens": 7}
        return {"summary": "a", "usage": usage, "replica": {"id": "x", "waiting": 2}}

    async def stream(self, cluster: dict[str, Any], settings: dict[str, Any]) -> AsyncIterator[Event]:
        yield queued(0)
        if cluster["title"] == "broken":
            yield failed("a fault", 500)
        else:
            yield {"event": "result", "data": await self.summarize(cluster, settings)}

    async def are_ready(self) -> bool:
        return self.is_ready

    async def describe(self) -> dict[str, Any]:
        return {"run": "pht", "step": 8, "loaded": 1e9, "load_seconds": 1.5, "beta": 0.4, "validation": {"rouge2": 9.5}}


class Service:
    """A web application around ``Busy``."""

    def __init__(self, keys: str | None = None, log: str | None = None):
        self.busy = Busy()
        health = Health(status="ok", run="pht", step=7)
        api = build_api({"pht": self.busy}, health, Limits(), False, keys, log)
        add_state_routes(api, {"pht": self.busy}, self.busy.are_ready)
        transport = httpx.ASGITransport(api, raise_app_exceptions=False)
        self.http = httpx.AsyncClient(transport=transport, base_url="http://server")

    async def ask(self, title: str = "Florence", path: str = "/v1/summarize", **request: Any) -> httpx.Response:
        return await self.http.post(path, json={"title": title, "documents": ["one"]}, **request)

    async def samples(self, **request: Any) -> Samples:
        answer = await self.http.get("/metrics", **request)
        assert answer.headers["content-type"].startswith("text/plain; version=")
        return samples(answer.text)


def test_requests_tokens_and_seconds_are_counted_by_route_and_status():
    async def check() -> None:
        service = Service()
        for title in ("Florence", "Florence", "busy", "broken"):
            await service.ask(title)
        for title in ("Florence", "broken"):
            await service.ask(title, "/v1/summarize/stream")
        await service.http.get("/nowhere/1")
        await service.http.get("/nowhere/2")
        found = await service.samples()
        requests = {labels: value for (name, labels), value in found.items() if name == "raysum_requests_total"}
        assert requests == {
            "key=,route=/v1/summarize,status=200": 2,
            "key=,route=/v1/summarize,status=503": 1,
            "key=,route=/v1/summarize,status=500": 1,
            "key=,route=/v1/summarize/stream,status=200": 2,
            "key=,route=other,status=404": 2,
        }
        assert found["raysum_source_tokens_total", "key="] == 150
        assert found["raysum_summary_tokens_total", "key="] == 21
        assert found["raysum_request_seconds_count", "route=/v1/summarize"] == 4
        assert found["raysum_request_seconds_bucket", "le=0.05,route=/v1/summarize"] <= 4
        assert found["process_resident_memory_bytes", ""] > 1 << 20

    asyncio.run(check())


def test_answers_do_not_show_the_state_of_a_replica():
    async def check() -> None:
        service = Service()
        assert "replica" not in (await service.ask()).json()
        assert "replica" not in (await service.ask(path="/v1/summarize/stream")).text

    asyncio.run(check())


def test_waiting_and_running_requests_are_shown_while_they_last(monkeypatch: pytest.MonkeyPatch):
    async def check() -> None:
        service = Service()

        async def shown() -> tuple[float, float]:
            found = await service.samples()
            return found["raysum_requests_waiting", ""], found["raysum_requests_running", ""]

        slow = [asyncio.create_task(service.ask("slow")) for _ in range(4)]
        while await shown() != (0, 4):  # until the test's time limit
            await asyncio.sleep(0.05)
        await service.ask()
        assert await shown() == (2, 2)
        with monkeypatch.context() as patch:
            patch.setattr(metrics, "_LATEST", -1.0)
            assert await shown() == (0, 4), "the report of the replica is old"
        await service.ask()
        slow[0].cancel()
        await asyncio.gather(slow[0], return_exceptions=True)
        assert await shown() == (2, 1)
        found = await service.samples()
        assert found["raysum_requests_total", "key=,route=/v1/summarize,status=499"] == 1
        service.busy.release.set()
        await asyncio.gather(*slow[1:])
        assert await shown() == (0, 0)

    asyncio.run(check())


def test_metrics_name_keys_also_revoked_ones_and_need_one(tmp_path: Path):
    file = str(tmp_path / "keys.json")
    web, bot = add_key(file, "web", KeyLimits()), add_key(file, "bot", KeyLimits(requests_per_minute=1))

    async def check() -> None:
        service = Service(file)
        for key in (web, bot, bot, "wrong"):
            await service.ask(headers={"x-api-key": key})
        await service.http.get("/healthz")
        revoke_key(file, "bot")
        revoked = await service.ask(headers={"x-api-key": bot})
        assert revoked.json() == {"error": "this key is revoked"}
        assert (await service.http.get("/metrics")).status_code == 401
        found = await service.samples(headers={"x-api-key": web})
        requests = {labels: value for (name, labels), value in found.items() if name == "raysum_requests_total"}
        assert requests == {
            "key=web,route=/v1/summarize,status=200": 1,
            "key=bot,route=/v1/summarize,status=200": 1,
            "key=bot,route=other,status=429": 1,
            "key=bot,route=other,status=401": 1,
            "key=,route=other,status=401": 2,
            "key=,route=/healthz,status=200": 1,
        }
        assert found["raysum_source_tokens_total", "key=bot"] == 50
        assert web not in str(found) and bot not in str(found)

    asyncio.run(check())


def test_the_log_names_keys_and_has_neither_texts_nor_keys(tmp_path: Path):
    file, log = str(tmp_path / "keys.json"), tmp_path / "requests.jsonl"
    web = add_key(file, "web", KeyLimits())

    async def check() -> None:
        service = Service(file, str(log))
        await service.ask("secret title", headers={"x-api-key": web})
        log.rename(tmp_path / "moved.jsonl")
        await service.ask("broken", headers={"x-api-key": web})
        await service.ask("secret title", headers={"x-api-key": "wrong-key"})

    asyncio.run(check())
    first, rest = (tmp_path / "moved.jsonl").read_text(), log.read_text()
    lines = [json.loads(line) for line in (first + rest).splitlines()]
    shown = [(line["route"], line["status"], line["key"]) for line in lines]
    assert shown == [("/v1/summarize", 200, "web"), ("/v1/summarize", 500, "web"), ("other", 401, "")]
    assert {*lines[0]} == {"time", "route", "status", "key", "seconds"}
    assert not any(secret in first + rest for secret in (web, "wrong-key", "secret", "one"))
    with pytest.raises(UserError, match="cannot write the log of requests .*; choose another --log"):
        with_access(ServeConfig(run="lead", log="/proc/none/requests.jsonl"))


def test_the_model_is_listed_as_openai_does_and_described():
    async def check() -> None:
        service = Service()
        listed = (await service.http.get("/v1/models")).json()
        (entry,) = listed["data"]
        assert listed["object"] == "list" and entry == (await service.http.get("/v1/models/pht")).json()
        assert {**entry, "created": 0} == {"id": "pht", "object": "model", "created": 0, "owned_by": "raysum"}
        unknown = await service.http.get("/v1/models/gpt")
        assert unknown.status_code == 404 and unknown.json() == {
            "error": "there is no model 'gpt'; this service has 'pht'"
        }
        described = (await service.http.get("/v1/model")).json()
        assert described == {
            **{"run": "pht", "step": 8, "beta": 0.4, "validation": {"rouge2": 9.5}},
            **{"loaded": 1e9, "load_seconds": 1.5},
        }
        assert (await service.http.get("/readyz")).json() == {"status": "ready"}
        service.busy.is_ready = False
        waiting = await service.http.get("/readyz")
        assert waiting.status_code == 503 and int(waiting.headers["Retry-After"]) > 0

    asyncio.run(check())


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = write_run(tmp_path_factory.mktemp("metrics"))
    Run(path).add_validation(3, {"valid_loss": 2.5, "rouge2": float("nan")})
    return path


@pytest.fixture(scope="module")
def server(run: Path) -> Iterator[Server]:
    with serving(run, "--replicas=2") as server:
        server.wait_until_ready()
        yield server


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_a_running_server_describes_itself_and_counts_for_all_replicas(server: Server, run: Path):
    address = server.client.address
    assert httpx.get(f"{address}/readyz").json() == {"status": "ready"}
    card = httpx.get(f"{address}/v1/model").json()
    assert card.pop("load_seconds") > 0 and card.pop("loaded") > 1e9
    expected = {"run": "tiny", "step": 3, "mix": {"encoder": "LL", "decoder": "P"}, "beta": 0.0}
    assert card == {**expected, "validation": {"valid_loss": 2.5}}
    answers = [server.client.summarize("Florence", TEXTS) for _ in range(8)]
    events = dict(server.client.stream("Florence", TEXTS))
    usages = [answer["usage"] for answer in [*answers, events["result"]]]
    assert all(usage["source_tokens"] == events["reading"]["tokens"] for usage in usages)
    found = samples(httpx.get(f"{address}/metrics").text)
    assert found["raysum_requests_total", "key=,route=/v1/summarize,status=200"] == 8
    assert found["raysum_source_tokens_total", "key="] == sum(usage["source_tokens"] for usage in usages)
    assert found["raysum_summary_tokens_total", "key="] == sum(usage["summary_tokens"] for usage in usages)
    assert found["raysum_requests_waiting", ""] == found["raysum_requests_running", ""] == 0


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_a_server_without_replicas_is_alive_but_not_ready(server: Server):
    """The last test of this server: its replicas are killed, and start again."""
    address, deadline = server.client.address, time.monotonic() + 120

    def status() -> int:
        assert httpx.get(f"{address}/healthz").status_code == 200
        answer = httpx.get(f"{address}/readyz")
        assert time.monotonic() < deadline, answer.text
        time.sleep(0.2)
        return answer.status_code

    while status() != 503:  # again and again: a replica can start between two requests
        for replica in server.processes("ServeReplica:raysum:model"):
            with suppress(ProcessLookupError):
                os.kill(replica, signal.SIGKILL)
    while status() != 200:
        pass
    assert server.client.summarize("Florence", TEXTS)["summary"]
