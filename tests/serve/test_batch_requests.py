"""Batches of a service: each request is answered once, also after kills, and one key cannot see those of another."""

import asyncio
import json
import os
import shutil
import signal
import time
from collections import Counter
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import httpx
import pytest

from helpers.servers import serving
from helpers.small_runs import TEXTS, write_run
from helpers.small_services import LEXRANK
from raysum.serve import batch_routes, guard
from raysum.serve.api import build_api
from raysum.serve.batch_routes import Batches
from raysum.serve.config import Limits
from raysum.serve.events import Service
from raysum.serve.guard import Overloaded, refused
from raysum.serve.keys import KeyLimits, add_key, revoke_key
from raysum.serve.schema import Health

LIMITS = Limits(max_body=20_000, max_batch=100_000, max_documents=20)
HEALTH = Health(status="ok", system="lexrank")


class Lexrank(Service):
    """LexRank, as it is between the replicas and the routes."""

    async def summarize(self, cluster: dict[str, Any], settings: dict[str, Any]) -> dict[str, Any]:
        answer = await LEXRANK.summarize(cluster, settings)
        if "error" in answer:
            raise refused(answer)
        return answer


class Echo(Service):
    """A model that answers the title, refuses for now at first, and counts what it was asked."""

    def __init__(self, refusals: int = 0, pause: float = 0.0):
        self.asked, self.refusals, self.pause = Counter[str](), refusals, pause
        self.now = self.most = 0

    async def summarize(self, cluster: dict[str, Any], settings: dict[str, Any]) -> dict[str, Any]:
        self.now += 1
        self.most = max(self.most, self.now)
        try:
            await asyncio.sleep(self.pause)
            if self.refusals:
                self.refusals -= 1
                error = Overloaded("no place")
                error.headers = {"Retry-After": "0"}
                raise error
            self.asked[cluster["title"]] += 1
            return {"summary": cluster["title"], "settings": settings}
        finally:
            self.now -= 1


def lines(*requests: tuple[str, Any]) -> bytes:
    return "".join(json.dumps({"custom_id": id, "body": body}) + "\n" for id, body in requests).encode()


def cluster(title: str, **values: Any) -> dict[str, Any]:
    return {"title": title, "documents": TEXTS, **values}


def run(
    folder: Path, model: Service, use: Callable[[httpx.AsyncClient], Awaitable[Any]], keys: str | None = None
) -> Any:
    """Return what ``use`` returns with a service of ``model`` as long as it lasts."""

    async def serve() -> Any:
        api = build_api({"lexrank": model}, HEALTH, LIMITS, False, keys, None, Batches(str(folder), 4))
        transport = httpx.ASGITransport(api, raise_app_exceptions=False)
        async with (
            api.router.lifespan_context(api),
            httpx.AsyncClient(transport=transport, base_url="http://server", timeout=60) as http,
        ):
            return await use(http)

    return asyncio.run(serve())


async def send(http: httpx.AsyncClient, content: bytes, key: str = "") -> httpx.Response:
    return await http.post("/v1/batches", content=content, headers={"Authorization": f"Bearer {key}"} if key else {})


async def ended(http: httpx.AsyncClient, id: str, key: str = "") -> dict[str, Any]:
    headers = {"Authorization": f"Bearer {key}"} if key else {}
    for _ in range(600):
        batch = (await http.get(f"/v1/batches/{id}", headers=headers)).json()
        if batch["status"] != "in_progress":
            return batch
        await asyncio.sleep(0.02)
    raise AssertionError(batch)


async def results(http: httpx.AsyncClient, id: str) -> dict[str, Any]:
    found = [json.loads(line) for line in (await http.get(f"/v1/batches/{id}/results")).text.splitlines()]
    by_id = {one["custom_id"]: one for one in found}
    assert len(by_id) == len(found)
    return by_id


def test_every_request_has_the_answer_or_the_error_of_the_route_summarize(tmp_path: Path):
    bodies = {
        "plain": cluster("Florence"),
        "short": cluster("Florence", options={"words": 12}),
        "unknown": cluster("Florence", options={"wrods": 12}),
        "empty": {"documents": []},
        "blank": {"documents": [" "]},
        "other": cluster("Florence", model="big"),
        "many": {"documents": ["x."] * 21},
    }

    async def use(http: httpx.AsyncClient) -> None:
        batch = (await send(http, lines(*bodies.items()))).json()
        assert batch["request_counts"]["total"] == len(bodies) and batch["object"] == "batch"
        assert (await ended(http, batch["id"]))["request_counts"] == {"total": 7, "completed": 2, "failed": 5}
        found = await results(http, batch["id"])
        for id, body in bodies.items():
            direct = await http.post("/v1/summarize", json=body)
            if direct.status_code == 200:
                assert found[id]["response"] == direct.json() and found[id]["error"] is None
            else:
                assert found[id]["error"] == {"status": direct.status_code, "message": direct.json()["error"]}, id
        listed = (await http.get("/v1/batches")).json()["data"]
        assert [one["id"] for one in listed] == [batch["id"]]

    run(tmp_path, Lexrank(), use)


def test_a_killed_service_continues_with_what_has_no_result(tmp_path: Path):
    titles = [str(number) for number in range(40)]
    slow, fast = Echo(pause=0.02), Echo()

    async def start(http: httpx.AsyncClient) -> str:
        id = (await send(http, lines(*((title, cluster(title)) for title in titles)))).json()["id"]
        while slow.asked.total() < 12:
            await asyncio.sleep(0.005)
        return id

    id = run(tmp_path, slow, start)
    assert slow.most == 4
    kept = (tmp_path / id / "results.jsonl").read_bytes()
    assert kept.count(b"\n") < 40
    (tmp_path / id / "results.jsonl").write_bytes(kept + b'{"custom_id": "39", "err')  # as a kill leaves it
    (tmp_path / "batch_0000000000000000.new").mkdir()

    async def finish(http: httpx.AsyncClient) -> dict[str, Any]:
        assert (await ended(http, id))["request_counts"] == {"total": 40, "completed": 40, "failed": 0}
        return await results(http, id)

    found = run(tmp_path, fast, finish)
    assert found.keys() == {*titles} and all(one["response"]["summary"] == title for title, one in found.items())
    assert fast.asked.total() == 40 - kept.count(b"\n") and set(fast.asked.values()) == {1}
    assert not [*tmp_path.glob("*.new")]
    assert run(tmp_path, fast, finish) == found, "a finished batch stays"


def test_refusals_are_repeated_and_a_cancelled_batch_ends(tmp_path: Path):
    busy, slow = Echo(refusals=7), Echo(pause=0.05)

    async def use(http: httpx.AsyncClient) -> None:
        batch = (await send(http, lines(*((str(n), cluster(str(n))) for n in range(5))))).json()
        assert (await ended(http, batch["id"]))["request_counts"]["completed"] == 5

    async def cancel(http: httpx.AsyncClient) -> None:
        first, second = [
            (await send(http, lines(*((str(n), cluster(f"{name}{n}")) for n in range(20))))).json()["id"]
            for name in "ab"
        ]
        while not slow.asked.total():
            await asyncio.sleep(0.01)
        assert (await http.post(f"/v1/batches/{first}/cancel")).json()["status"] == "cancelled"
        assert (await ended(http, second))["request_counts"]["completed"] == 20
        assert len(await results(http, first)) < 20
        assert sum(count for title, count in slow.asked.items() if title.startswith("a")) < 20

    run(tmp_path / "busy", busy, use)
    run(tmp_path / "slow", slow, cancel)


@pytest.mark.parametrize(
    ("content", "status", "problem"),
    [
        (b"", 422, "the body has no requests: send a line for each"),
        (b"no\n", 422, "line 1: not JSON"),
        (lines(("a", {}), ("a", {})), 422, "line 2 has the custom_id 'a' of an earlier line"),
        (b'{"custom_id": 1, "body": {}}\n', 422, "line 1: custom_id: Input should be a valid string"),
        (b'{"custom_id": "1"}\n', 422, "line 1: body: Field required"),
        (b"[1]\n", 422, "line 1: not a JSON object; write"),
        (b"\n \n", 422, "the body has no requests: send a line for each"),
        (b"\xef\xbb\xbf" + lines(("a", {})), 422, "line 1: not JSON: remove the byte-order mark"),
        (b"[" * 5000 + b"\n", 422, "line 1: not JSON"),
        (b"\xff\n", 422, "line 1: not UTF-8"),
        (lines(("a", {"x": "y" * 30_000})), 422, "line 1 is larger than 20000 bytes, the server's --max-body"),
        (b"x" * 100_001, 413, "larger than 100000 bytes, the server's --max-batch"),
    ],
)
def test_a_body_that_is_no_batch_is_refused_and_leaves_nothing(
    tmp_path: Path, content: bytes, status: int, problem: str
):
    async def use(http: httpx.AsyncClient) -> httpx.Response:
        return await send(http, content)

    answer = run(tmp_path, Echo(), use)
    assert answer.status_code == status and problem in answer.json()["error"]
    assert not [file for file in tmp_path.iterdir() if file.name != ".lock"]


async def send_two(http: httpx.AsyncClient) -> list[str]:
    sent = [await send(http, lines(*((str(n), cluster(f"{name}{n}")) for n in range(3))) + b"\n") for name in "ab"]
    return [one.json()["id"] for one in sent]


@pytest.mark.parametrize("file", ["batch.json", "results.jsonl", "requests.jsonl"])
@pytest.mark.parametrize("content", [b"", b"zzz\n", b"\x00\xff\n", None])
def test_damage_of_one_batch_leaves_the_others_alone(
    tmp_path: Path, file: str, content: bytes | None, capsys: pytest.CaptureFixture[str]
):
    first, second = run(tmp_path, Echo(pause=10.0), send_two)
    path = tmp_path / first / file
    path.unlink(missing_ok=True)
    if content is not None:
        path.write_bytes(content)

    async def use(http: httpx.AsyncClient) -> tuple[dict[str, Any], Any]:
        assert (await ended(http, second))["request_counts"] == {"total": 3, "completed": 3, "failed": 0}
        await asyncio.sleep(0.2)
        return await results(http, second), (await http.get(f"/v1/batches/{first}")).json()

    found, shown = run(tmp_path, Echo(), use)
    assert len(found) == 3
    if file == "results.jsonl":
        return  # what has no result is asked again
    told = capsys.readouterr().err
    if file == "batch.json":
        assert "there is no batch" in shown["error"] and f"{first} is left out, because it is damaged" in told
    else:
        assert shown["status"] == "in_progress" and told.count(f"{first} waits: ") == 1


def test_a_batch_waits_for_a_folder_that_cannot_be_written_and_others_are_answered(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(batch_routes, "_LATER", 0.2)

    async def use(http: httpx.AsyncClient) -> None:
        first, second = await send_two(http)
        shutil.move(tmp_path / first, tmp_path / "away")
        assert (await ended(http, second))["request_counts"]["completed"] == 3
        assert (await http.post(f"/v1/batches/{first}/cancel")).status_code == 507
        assert (await http.get(f"/v1/batches/{first}/results")).status_code == 404
        shutil.move(tmp_path / "away", tmp_path / first)
        assert (await ended(http, first))["request_counts"] == {"total": 3, "completed": 3, "failed": 0}
        assert len(await results(http, first)) == 3

    run(tmp_path, Echo(pause=0.1), use)


def test_a_request_whose_model_cannot_be_loaded_fails_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(guard, "RETRY_AFTER", 0)

    class Half(Echo):
        async def summarize(self, cluster: dict[str, Any], settings: dict[str, Any]) -> dict[str, Any]:
            if cluster["title"] == "1":
                raise guard.refused({"error": "no run folder a", "status": 503, "not_loaded": True})
            return await super().summarize(cluster, settings)

    async def use(http: httpx.AsyncClient) -> dict[str, Any]:
        id = (await send(http, lines(*((str(n), cluster(str(n))) for n in range(3))))).json()["id"]
        assert (await ended(http, id))["request_counts"] == {"total": 3, "completed": 2, "failed": 1}
        return await results(http, id)

    assert run(tmp_path, Half(), use)["1"]["error"] == {"status": 503, "message": "no run folder a"}


def test_a_batch_is_seen_and_paid_by_its_own_key_alone(tmp_path: Path):
    file = str(tmp_path / "keys.json")
    own = add_key(file, "own", KeyLimits(tokens_per_minute=10**6))
    other = add_key(file, "other", KeyLimits())
    slow = Echo(pause=0.05)

    async def use(http: httpx.AsyncClient) -> None:
        assert (await send(http, lines(("a", cluster("a"))))).status_code == 401
        id = (await send(http, lines(*((str(n), cluster(str(n))) for n in range(30))), own)).json()["id"]
        head = {"Authorization": f"Bearer {other}"}
        for method, path in (("GET", ""), ("GET", "/results"), ("POST", "/cancel")):
            assert (await http.request(method, f"/v1/batches/{id}{path}", headers=head)).status_code == 404
        assert (await http.get("/v1/batches", headers=head)).json()["data"] == []
        for bad in ("..", "batch_..", "batch_" + "0" * 16):
            assert (await http.get(f"/v1/batches/{bad}", headers=head)).status_code == 404
        revoke_key(file, "own")
        own_head = {"Authorization": f"Bearer {own}"}
        assert (await http.get(f"/v1/batches/{id}", headers=own_head)).status_code == 401
        while sum(1 for _ in (tmp_path / "batches" / id / "results.jsonl").open("rb")) < 30:
            await asyncio.sleep(0.02)
        found = [json.loads(line) for line in (tmp_path / "batches" / id / "results.jsonl").open("rb")]
        assert {one["error"]["status"] for one in found if one["error"]} == {401}
        assert slow.asked.total() < 30

    run(tmp_path / "batches", slow, use, file)


def test_a_fault_of_ours_is_the_result_of_its_request_alone(tmp_path: Path):
    class Faulty(Echo):
        async def summarize(self, cluster: dict[str, Any], settings: dict[str, Any]) -> dict[str, Any]:
            if cluster["title"] == "1":
                raise ZeroDivisionError
            return await super().summarize(cluster, settings)

    async def use(http: httpx.AsyncClient) -> None:
        for _ in range(2):
            id = (await send(http, lines(*((str(n), cluster(str(n))) for n in range(4))))).json()["id"]
            assert (await ended(http, id))["request_counts"] == {"total": 4, "completed": 3, "failed": 1}
        error = (await results(http, id))["1"]["error"]
        assert error == {"status": 500, "message": "internal error (ZeroDivisionError); see the server's log"}

    run(tmp_path, Faulty(), use)


def test_a_batch_waits_while_the_keys_cannot_be_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(batch_routes, "_PAUSE", 0.05)
    file = tmp_path / "keys.json"
    key, echo = add_key(str(file), "own", KeyLimits()), Echo(pause=0.02)

    async def use(http: httpx.AsyncClient) -> None:
        id = (await send(http, lines(*((str(n), cluster(str(n))) for n in range(20))), key)).json()["id"]
        file.rename(tmp_path / "away.json")
        await asyncio.sleep(0.3)
        assert echo.asked.total() < 20
        (tmp_path / "away.json").rename(file)
        assert (await ended(http, id, key))["request_counts"] == {"total": 20, "completed": 20, "failed": 0}

    run(tmp_path / "batches", echo, use, str(file))


@pytest.mark.long
@pytest.mark.timeout(300)
def test_a_service_that_is_killed_answers_its_batch_after_a_restart(tmp_path: Path):
    model, options = write_run(tmp_path), ("--batches", str(tmp_path / "batches"))
    requests = {str(number): cluster(f"Florence {number}") for number in range(60)}
    with serving(model, *options) as server:
        server.wait_until_ready()
        id = server.client.start_batch(requests)["id"]
        while server.client.batch(id)["request_counts"]["completed"] < 20:
            time.sleep(0.05)
        began = time.monotonic()
        server.client.summarize("Florence", TEXTS)
        assert time.monotonic() - began < 5
        for pid in server.processes():
            os.kill(pid, signal.SIGKILL)
    with serving(model, *options) as server:
        server.wait_until_ready()
        while (batch := server.client.batch(id))["status"] == "in_progress":
            time.sleep(0.1)
        assert batch["request_counts"] == {"total": 60, "completed": 60, "failed": 0}
        found = [*server.client.batch_results(id)]
    assert Counter(one["custom_id"] for one in found) == dict.fromkeys(requests, 1)
    assert all(one["response"]["summary"] for one in found)
