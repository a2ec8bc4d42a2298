"""Keys of a service: their file, the commands, the limits, and a server that reads the file again when it changes."""

import asyncio
import json
import logging
import os
import stat
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from helpers.servers import Server, serving
from raysum.config.loading import section_of
from raysum.errors import UserError
from raysum.serve import access
from raysum.serve.access import OPEN, Allowance, Callers, with_access
from raysum.serve.api import build_api
from raysum.serve.app import serving as serving_in_this_process
from raysum.serve.build import app
from raysum.serve.client import Client
from raysum.serve.config import Limits, ServeConfig
from raysum.serve.events import Event, failed, queued
from raysum.serve.guard import Overloaded
from raysum.serve.keys import KeyFile, KeyLimits, add_key, revoke_key
from raysum.serve.schema import Health

TEXTS = ["Florence is a city. It has a gate.", "The gate of Florence is old."]
BODY = {"title": "Florence", "documents": ["x" * 400]}  # estimated as 100 tokens


class Counting:
    """A service that counts 1,000 tokens in clusters titled long."""

    async def summarize(self, cluster: dict[str, Any], settings: dict[str, Any]) -> dict[str, Any]:
        if cluster["title"] == "busy":
            raise Overloaded("too many requests are waiting")
        if cluster["title"] == "long":
            return {"summary": "a", "usage": {"source_tokens": 1000, "summary_tokens": 1}}
        return {"summary": "a"}

    async def stream(self, cluster: dict[str, Any], settings: dict[str, Any]) -> AsyncIterator[Event]:
        yield queued(0)
        if cluster["title"] == "broken":
            yield failed("a fault", 500)
        else:
            yield {"event": "result", "data": await self.summarize(cluster, settings)}


@pytest.fixture
def file(tmp_path: Path) -> str:
    return str(tmp_path / "keys.json")


class Service:
    """A web application that reads the keys of ``file``, without a server around it."""

    def __init__(self, file: str):
        self._api = build_api({"pht": Counting()}, Health(status="ok", run="pht", step=7), Limits(), False, file)

    def ask(self, key: str | None = None, title: str = "Florence", **request: Any) -> httpx.Response:
        headers = {} if key is None else {"Authorization": f"Bearer {key}"}
        request = {"method": "POST", "url": "/v1/summarize", "json": BODY | {"title": title}} | request

        async def send() -> httpx.Response:
            transport = httpx.ASGITransport(self._api, raise_app_exceptions=False)
            async with httpx.AsyncClient(transport=transport, base_url="http://server") as http:
                return await http.request(**{"headers": headers, **request})

        return asyncio.run(send())


def test_only_who_has_a_key_is_answered(file: str):
    key, other = add_key(file, "web", KeyLimits()), add_key(file, "bot", KeyLimits())
    service = Service(file)
    for valid in (key, other):
        assert service.ask(valid).status_code == 200
        assert service.ask(headers={"x-api-key": valid}).status_code == 200
        assert service.ask(headers={"Authorization": f"bearer {valid}"}).status_code == 200
    wrong = [None, "", key[:-1], key + "a", key.upper(), f"{key} {other}", "é", KeyFile.read(Path(file)).keys[0].sha256]
    for headers in (
        *({"Authorization": f"Bearer {one}".encode()} for one in wrong if one is not None),
        *({"x-api-key": one.encode()} for one in wrong if one is not None),
        *({}, {"Authorization": key}, {"Authorization": f"Basic {key}"}, {"Authorization": "Bearer"}),
    ):
        refused = service.ask(headers=headers)
        assert refused.status_code == 401, headers
        assert refused.headers["WWW-Authenticate"] == "Bearer" and key not in refused.text


def test_only_health_and_documentation_need_no_key(file: str):
    add_key(file, "web", KeyLimits())
    service = Service(file)
    for route in service._api.routes:
        method, *_ = getattr(route, "methods", ["GET"])
        status = service.ask(method=method, url=getattr(route, "path", ""), json=None).status_code
        assert (status == 401) == (getattr(route, "path", "") not in OPEN), route
    for path in ("/healthz/", "/healthz/../v1/summarize", "/nowhere", "/HEALTHZ", "/%2fhealthz"):
        assert service.ask(url=path).status_code == 401, path


def test_a_revoked_key_is_refused_at_once_and_new_ones_are_accepted(file: str):
    key = add_key(file, "web", KeyLimits())
    service = Service(file)
    assert service.ask(key).status_code == 200
    revoke_key(file, "web")
    assert service.ask(key).status_code == 401
    assert service.ask(add_key(file, "web-2", KeyLimits())).status_code == 200


@pytest.mark.parametrize("damage", ["remove", "break", "open", "schema"])
def test_without_readable_keys_nobody_is_admitted(file: str, damage: str):
    key = add_key(file, "web", KeyLimits())
    service, path = Service(file), Path(file)
    assert service.ask(key).status_code == 200
    content = path.read_text()
    if damage == "remove":
        path.unlink()
    elif damage == "open":
        path.chmod(0o606)
    else:
        path.write_text("{" if damage == "break" else '{"keys": [{"name": "web"}]}')
    for _ in range(2):
        assert service.ask(key).status_code == 503
    assert service.ask(method="GET", url="/healthz").status_code == 200
    path.write_text(content)
    path.chmod(0o600)
    assert service.ask(key).status_code == 200


def test_beyond_the_requests_of_a_minute_a_key_waits_and_others_do_not(file: str, monkeypatch: pytest.MonkeyPatch):
    now = 100.0
    monkeypatch.setattr(access.time, "monotonic", lambda: now)
    key, other = add_key(file, "web", KeyLimits(requests_per_minute=3)), add_key(file, "bot", KeyLimits())
    service = Service(file)
    assert [service.ask(key).status_code for _ in range(4)] == [200, 200, 200, 429]
    refused = service.ask(key)
    assert refused.json() == {"error": "the key web has reached its limit of 3 requests per minute"}
    assert int(refused.headers["Retry-After"]) == 20
    assert service.ask(other).status_code == 200
    now += 19
    assert service.ask(key).status_code == 429
    now += 1
    assert [service.ask(key).status_code for _ in range(2)] == [200, 429]
    now += 3600
    assert [service.ask(key).status_code for _ in range(4)] == [200, 200, 200, 429], "no more than a minute's is saved"


def test_tokens_are_estimated_then_counted_and_refused_requests_cost_none(file: str, monkeypatch: pytest.MonkeyPatch):
    now = 100.0
    monkeypatch.setattr(access.time, "monotonic", lambda: now)
    key = add_key(file, "web", KeyLimits(tokens_per_minute=600))
    service = Service(file)
    assert service.ask(key, "busy").status_code == 503
    assert [service.ask(key).status_code for _ in range(4)] == [200] * 4  # 100 tokens each: 200 left
    assert service.ask(key, "long").status_code == 200  # it had 1,000 tokens: 800 too many
    refused = service.ask(key)
    assert refused.status_code == 429 and "600 tokens per minute" in refused.json()["error"]
    assert int(refused.headers["Retry-After"]) == 90  # for -800 to 100 tokens at 10 per second
    now += 90
    assert [service.ask(key).status_code for _ in range(2)] == [200, 429]


def test_streams_are_charged_as_other_requests(file: str, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(access.time, "monotonic", lambda: 100.0)
    key = add_key(file, "web", KeyLimits(tokens_per_minute=300))
    service = Service(file)

    def stream(title: str) -> httpx.Response:
        return service.ask(key, title, url="/v1/summarize/stream")

    assert [stream(title).status_code for title in ("broken", "Florence", "long", "Florence")] == [200, 200, 200, 429]
    assert service.ask(key).status_code == 429


def test_a_request_of_more_than_a_minute_needs_a_full_budget():
    budget = Allowance(60)
    assert budget.take(600) == 0.0
    assert budget.take(600) == pytest.approx(600, rel=1e-2)
    assert Allowance(None).take(1e12) == 0.0


def test_changed_limits_hold_at_once(file: str):
    key = add_key(file, "web", KeyLimits(requests_per_minute=1))
    service, path = Service(file), Path(file)
    assert [service.ask(key).status_code for _ in range(2)] == [200, 429]
    values = json.loads(path.read_text())
    values["keys"][0]["requests_per_minute"] = 2
    path.write_text(json.dumps(values))
    assert [service.ask(key).status_code for _ in range(3)] == [200, 200, 429]


def test_the_file_has_mode_600_and_no_key(file: str):
    keys = [add_key(file, f"web-{number}", KeyLimits()) for number in range(3)]
    revoke_key(file, "web-1")
    content = Path(file).read_text()
    assert stat.S_IMODE(os.stat(file).st_mode) == 0o600
    assert len({*keys}) == 3 and all(len(key) == 50 and key not in content for key in keys)
    assert [key.revoked for key in KeyFile.read(Path(file)).keys] == [False, True, False]


def test_no_key_is_lost_when_many_commands_write(file: str):
    code = "import sys; from raysum.serve.keys import *; [add_key(sys.argv[1], f'{sys.argv[2]}-{i}', KeyLimits())"
    started = [subprocess.Popen([sys.executable, "-c", f"{code} for i in range(20)]", file, name]) for name in "ab"]
    assert [process.wait(timeout=60) for process in started] == [0, 0]
    assert len(KeyFile.read(Path(file)).keys) == 40


@pytest.mark.parametrize(
    ("name", "message"),
    [("web", "has a key 'web'; choose another name"), ("a b", "name: .*pattern"), ("x" * 65, "name: .*pattern")],
)
def test_a_wrong_name_is_one_message(file: str, name: str, message: str):
    add_key(file, "web", KeyLimits())
    with pytest.raises(UserError, match=message):
        add_key(file, name, KeyLimits())
    assert len(KeyFile.read(Path(file)).keys) == 1


def test_mistakes_with_the_file_are_one_message_with_the_fix(file: str, tmp_path: Path):
    with pytest.raises(UserError, match="cannot read the keys in .*; create it with `raysum keys add NAME --file"):
        revoke_key(file, "web")
    add_key(file, "web", KeyLimits())
    with pytest.raises(UserError, match="has no key 'wbe'; did you mean 'web'"):
        revoke_key(file, "wbe")
    Path(file).chmod(0o644)
    with pytest.raises(UserError, match="other users can read or change the keys in .*; run `chmod 600"):
        KeyFile.read(Path(file))
    with pytest.raises(UserError, match="cannot write the keys in"):
        add_key("/proc/keys.json", "web", KeyLimits())
    (tmp_path / "list").write_text("[]")
    (tmp_path / "list").chmod(0o600)
    with pytest.raises(UserError, match="is not a file of keys"):
        KeyFile.read(tmp_path / "list")
    for place in (tmp_path, Path("/dev/null")):
        with pytest.raises(UserError, match=f"{place} is not a regular file; name the file of the keys"):
            KeyFile.read(place)
    with pytest.raises(UserError, match="s3://bucket/keys is on a store"):
        KeyFile.read(Path("s3://bucket/keys"))
    (tmp_path / "list").write_text('{"keys": [{"name": 5}]}')
    with pytest.raises(UserError, match=r"(?s)keys.0.name: .*/list\).*keys.0.sha256 is missing \(.*/list\)"):
        KeyFile.read(tmp_path / "list")


def test_other_machines_are_served_with_keys_or_by_confirmation_only(file: str, monkeypatch: pytest.MonkeyPatch):
    def config(**values: Any) -> ServeConfig:
        return with_access(section_of(ServeConfig, {"run": "lead", **values}))

    with pytest.raises(UserError, match="other machines reach 0.0.0.0: .* --keys FILE, or .* --allow-anyone"):
        config(host="0.0.0.0")
    with pytest.raises(UserError, match="cannot read the keys"):
        config(keys=file)
    add_key(file, "web", KeyLimits())
    monkeypatch.chdir(Path(file).parent)
    assert config(host="0.0.0.0", keys="keys.json").keys == file
    assert config(host="0.0.0.0", allow_anyone=True).keys is None
    assert config().keys is None
    with pytest.raises(UserError, match="other machines reach 0.0.0.0"):
        app({"run": "lead", "host": "0.0.0.0"})
    Path(file).chmod(0o644)
    with pytest.raises(UserError, match="chmod 600"):
        app({"run": "lead", "keys": file})


def test_the_log_has_no_key(file: str, caplog: pytest.LogCaptureFixture, capsys: pytest.CaptureFixture[str]):
    key = add_key(file, "web", KeyLimits(requests_per_minute=1))
    service = Service(file)
    with caplog.at_level(logging.DEBUG):
        for _ in range(2):
            service.ask(key)
        service.ask(f"{key}a")
        Path(file).chmod(0o666)
        for _ in range(2):
            service.ask(key)
    told = capsys.readouterr().err
    assert told.count("chmod 600") == 1 and key not in told + caplog.text


def test_a_thousand_keys_are_compared_within_two_milliseconds(file: str):
    key = add_key(file, "web", KeyLimits())
    values = json.loads(Path(file).read_text())
    values["keys"] += [values["keys"][0] | {"name": f"k{n}", "sha256": f"{n:064x}"} for n in range(1000)]
    Path(file).write_text(json.dumps(values))
    callers = Callers(file)
    assert callers.find(key.encode()) is not None
    began = time.process_time()
    for _ in range(20):
        callers.find(key.encode())
    assert (time.process_time() - began) / 20 < 0.002


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Server, str, str]]:
    """A server with keys, its file of keys, and a key."""
    file = str(tmp_path_factory.mktemp("keys") / "keys.json")
    key = add_key(file, "web", KeyLimits())
    with serving("lexrank", f"--keys={file}") as server:
        server.wait_until_ready()
        yield server, file, key


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_a_running_server_needs_a_key_and_learns_of_changes(
    guarded: tuple[Server, str, str], monkeypatch: pytest.MonkeyPatch
):
    server, file, key = guarded
    address = server.client.address
    with pytest.raises(UserError, match="answers 401: a key is missing"):
        server.client.summarize("Florence", TEXTS)
    assert server.client.health()["status"] == "ok"
    assert Client(address, key=key).summarize("Florence", TEXTS)["summary"]
    monkeypatch.setenv("RAYSUM_KEY", key)
    assert Client(address).summarize("Florence", TEXTS)["summary"]
    with pytest.raises(UserError, match="answers 401: this key is not valid"):
        Client(address, key=f"{key}x").summarize("Florence", TEXTS)
    limited = add_key(file, "limited", KeyLimits(requests_per_minute=60))
    answers = [httpx.post(f"{address}/v1/summarize", json=BODY, headers={"x-api-key": limited}) for _ in range(90)]
    assert {answer.status_code for answer in answers} == {200, 429}
    assert Client(address, key=limited).summarize("Florence", TEXTS)["summary"], "it waits as Retry-After asks"
    revoke_key(file, "web")
    with pytest.raises(UserError, match="answers 401"):
        Client(address, key=key).summarize("Florence", TEXTS)


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_the_server_tells_its_operator_why_it_refuses_all_keys(guarded: tuple[Server, str, str]):
    server, file, key = guarded
    Path(file).chmod(0o644)
    try:
        with pytest.raises(UserError, match="answers 503: the keys of this server cannot be read"):
            Client(server.client.address, key=key, retries=0).summarize("Florence", TEXTS)
        assert server.process.stderr is not None
        assert any(f"run `chmod 600 {file}`" in line for line in server.process.stderr)
    finally:
        Path(file).chmod(0o600)


def test_the_commands_add_list_and_revoke(file: str):
    def raysum(*arguments: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "raysum", "keys", *arguments, "--file", file]
        return subprocess.run(command, capture_output=True, text=True, timeout=60)

    added = raysum("add", "web", "--requests-per-minute", "60")
    key = added.stdout.strip()
    found = KeyFile.read(Path(file)).find(key.encode())
    assert found is not None and (found.name, found.requests_per_minute) == ("web", 60)
    assert key not in added.stderr and "only time" in added.stderr
    assert raysum("revoke", "web").returncode == 0
    (line,) = raysum("list", "--json").stdout.splitlines()
    assert json.loads(line)["revoked"] and "sha256" not in line and key not in line
    wrong = raysum("add", "bot", "--tokens-per-minute", "0")
    assert (wrong.returncode, wrong.stdout) == (2, "") and "tokens_per_minute" in wrong.stderr


def test_a_file_without_valid_keys_is_reported(file: str, capsys: pytest.CaptureFixture[str]):
    config = ServeConfig(run="lexrank", keys=file)
    add_key(file, "web", KeyLimits())
    with_access(config)
    assert "401" not in capsys.readouterr().err
    revoke_key(file, "web")
    with_access(config)
    assert f"{file} has no valid key, so every request gets 401" in capsys.readouterr().err


def test_an_address_of_no_machine_is_refused_before_keys_are_asked_for():
    with (
        pytest.raises(UserError, match="cannot listen on a b port 0"),
        serving_in_this_process(ServeConfig(run="lexrank", host="a b", port=0)),
    ):
        pass
