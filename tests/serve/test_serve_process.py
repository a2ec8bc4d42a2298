"""`raysum serve` as a user runs it: a process with a real run, killed replicas, signals, and nothing left behind."""

import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

import httpx
import psutil
import pytest

import raysum
from helpers.processes import LOOPBACK, free_port
from helpers.servers import Server, serving
from helpers.small_runs import TEXTS, write_run
from raysum.errors import UserError
from raysum.runs.folder import Run
from raysum.serve.client import Client

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_run(tmp_path_factory.mktemp("serve"))


@pytest.fixture(scope="module")
def server(run: Path) -> Iterator[Server]:
    with serving(run, "--replicas=2") as server:
        server.wait_until_ready()
        yield server


def test_it_answers_what_the_summarizer_answers_also_when_requests_come_together(server: Server, run: Path):
    summarizer = raysum.load(str(run))
    asked = [(f"Florence {number}", TEXTS[number % 3 :], {"num_beams": 2 + number % 2}) for number in range(10)]
    with ThreadPoolExecutor(10) as threads:
        answers = list(threads.map(lambda a: server.client.summarize(a[0], a[1], id="x", **a[2]), asked))
    for (title, documents, options), answer in zip(asked, answers, strict=True):
        row = summarizer.prepare({"id": "x", "title": title, "documents": documents})
        expected = summarizer.summarize_rows([row], summarizer.choose(options))[0].to_dict()
        assert answer["summary"] == expected["summary"]
        assert answer["attention"] == pytest.approx(expected["attention"], abs=1e-4)
        told, ours = (
            [[{**c, "weight": 0} for c in sentence["citations"]] for sentence in one["sentences"]]
            for one in (answer, expected)
        )
        assert told == ours and any(told) and all(c["quote"] for cited in told for c in cited)
        assert all(answer[name] == expected[name] for name in ("support", "unsupported", "warnings"))


def test_health_docs_and_mistakes(server: Server):
    assert server.client.health() == {"status": "ok", "run": "tiny", "step": 3}
    assert "/v1/summarize" in httpx.get(f"{server.client.address}/docs").text
    with pytest.raises(UserError, match="400: cluster 'Florence' cannot be summarized"):
        server.client.summarize("Florence", ["", " "])
    large = httpx.post(f"{server.client.address}/v1/summarize", content=b"x" * (9 << 20))
    assert large.status_code == 413


@pytest.mark.long
@pytest.mark.skipif(not Path("/proc/net/if_inet6").exists(), reason="no IPv6 here")
def test_it_answers_on_the_loopback_of_ipv6(run: Path):
    with serving(run, "--host=::1") as server:
        server.wait_until_ready()
        with Client(f"http://[::1]:{server.port}", timeout=60) as client:
            assert client.health()["status"] == "ok" and client.summarize("Florence", TEXTS)["summary"]
        code, _, err = server.stop(signal.SIGINT)
        assert code == 0 and "Traceback" not in err


@pytest.mark.parametrize(
    "place, words",
    [
        ({"host": "nonsense.invalid"}, r"cannot listen on nonsense.invalid port 8000 \(.*\); choose another"),
        ({"host": "192.0.2.1"}, "cannot listen on 192.0.2.1 port 8000 .*; choose another"),
        ({"host": "::2:2"}, "cannot listen on ::2:2 port 8000 .*; choose another"),
        ({"port": -1}, "port: .* greater than or equal to 0"),
        ({"port": 70000}, "port: .* less than or equal to 65535"),
    ],
)
def test_an_address_that_cannot_be_bound_is_named(run: Path, place: dict, words: str):
    with pytest.raises(UserError, match=words):
        raysum.serve(run, **place, allow_anyone=True)


@pytest.mark.parametrize("host", ["127.0.0.1", "::1"])
def test_a_port_that_is_taken_is_named(run: Path, host: str):
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.create_server((host, 0), family=family) as other:
        port = other.getsockname()[1]
        with pytest.raises(UserError, match=rf"cannot listen on {host} port {port} \(Address already in use"):
            raysum.serve(run, host=host, port=port)


@pytest.mark.long
def test_replicas_that_wait_do_not_spin(server: Server):
    for replica in server.processes("ServeReplica:raysum:model"):
        assert server.environment(replica)["OMP_WAIT_POLICY"] == "PASSIVE"
        assert server.environment(replica)["GOMP_SPINCOUNT"] == "3000"


def test_more_than_can_wait_is_refused_at_once_and_comes_back(server: Server):
    def ask(number: int) -> httpx.Response:
        options = {"num_beams": 16, "max_length": 60, "min_length": 60}
        body = {"title": f"Florence {number}", "documents": TEXTS, "options": options}
        return httpx.post(f"{server.client.address}/v1/summarize", json=body, timeout=120)

    with ThreadPoolExecutor(60) as threads:
        answers = list(threads.map(ask, range(60)))
    refused = [answer for answer in answers if answer.status_code == 503]
    assert {answer.status_code for answer in answers} == {200, 503}
    assert all(int(answer.headers["Retry-After"]) > 0 and "waiting" in answer.json()["error"] for answer in refused)
    assert server.client.summarize("Florence", TEXTS)["summary"]


LONG = {"num_beams": 16, "max_length": 1000, "min_length": 1000, "no_repeat_ngram_size": 0}


def ask_for_long(server: Server, timeout: float) -> int | None:
    """The status of the answer, if there is one."""
    body = {"title": "Florence", "documents": TEXTS, "options": LONG}
    with suppress(httpx.TransportError):
        return httpx.post(f"{server.client.address}/v1/summarize", json=body, timeout=timeout).status_code
    return None


def test_a_stream_begins_long_before_its_end_and_gives_the_same_summary(server: Server):
    options = {"num_beams": 1, "max_length": 1000, "min_length": 1000, "no_repeat_ngram_size": 0}
    began, times, result = time.monotonic(), dict[str, float](), {}
    for event, values in server.client.stream("Florence", TEXTS, **options):
        times.setdefault(event, time.monotonic() - began)
        result = values
    assert result == server.client.summarize("Florence", TEXTS, **options)
    assert times["queued"] < times["prefix"] < times["result"] / 2
    with pytest.raises(UserError, match="400: cluster 'Florence' cannot be summarized"):
        list(server.client.stream("Florence", [" "]))


def test_work_for_clients_that_have_left_ends(server: Server):
    replicas = server.processes("ServeReplica:raysum:model")

    def cpu_seconds() -> float:
        return sum(sum(psutil.Process(pid).cpu_times()[:2]) for pid in replicas)

    began = cpu_seconds()
    with ThreadPoolExecutor(12) as threads:
        list(threads.map(lambda _: ask_for_long(server, timeout=3), range(12)))
    assert cpu_seconds() - began > 0.5, "the work had not begun"
    time.sleep(2)
    left = cpu_seconds()
    time.sleep(3)
    assert cpu_seconds() - left < 0.5
    assert server.client.summarize("Florence", TEXTS)["summary"]


def test_no_request_is_lost_when_a_replica_is_killed(server: Server):
    replicas = server.processes("ServeReplica:raysum:model")
    assert len(replicas) == 2

    def ask(number: int) -> str:
        if number == 8:
            os.kill(replicas[0], signal.SIGKILL)
        return server.client.summarize("Florence", TEXTS, num_beams=2 + number % 3)["summary"]

    with ThreadPoolExecutor(4) as threads:
        assert all(threads.map(ask, range(40)))


def test_a_busy_port_is_one_message_and_exit_2(server: Server, run: Path):
    command = [sys.executable, "-m", "raysum", "serve", str(run), f"--port={server.port}"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert done.returncode == 2
    assert done.stdout == ""
    assert str(server.port) in done.stderr and len(done.stderr.splitlines()) == 1


def test_only_this_machine_can_connect(server: Server):
    heard = server.command.listening()
    assert set().union(*heard.values()) <= LOOPBACK, heard
    assert {"ray::ServeReplica:", "ray::ProxyActor"} <= {name[:18] for name in heard}, heard


def test_without_tokens_only_this_machine_is_served(run: Path):
    command = [
        sys.executable,
        "-m",
        "raysum",
        "serve",
        "lead",
        "--host=0.0.0.0",
        "--allow-anyone",
        f"--port={free_port()}",
    ]
    environment = {**os.environ, "RAY_AUTH_MODE": "disabled"}
    done = subprocess.run(command, capture_output=True, text=True, timeout=240, env=environment)
    assert done.returncode == 2 and done.stdout == ""
    assert "RAY_AUTH_MODE=token" in done.stderr and len(done.stderr.splitlines()) == 1


@pytest.mark.long
def test_a_port_that_another_takes_while_ray_starts_is_one_message_and_exit_2():
    with serving("lead") as server:
        while not server.processes("raylet"):
            assert server.process.poll() is None
            time.sleep(0.05)
        with socket.create_server(("127.0.0.1", server.port)):
            code, _, told = server.ended(timeout=240)
    assert code == 2 and told.count("cannot listen on 127.0.0.1 port") == 1 and "Traceback" not in told, told
    assert told.splitlines()[-1].endswith("choose another --port or --host")


class Load:
    """Requests from some threads, one after the other, and what came of them: 200 or another answer; no connection."""

    def __init__(self, server: Server):
        self.answers: list[httpx.Response] = []
        self.broken = 0
        self._address, self._ended = f"{server.client.address}/v1/summarize", threading.Event()
        self._threads = [threading.Thread(target=self._ask, daemon=True) for _ in range(6)]

    def __enter__(self) -> "Load":
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        for thread in self._threads:
            thread.join()

    def _ask(self) -> None:
        while not self._ended.is_set():
            try:
                body = {"title": "Florence", "documents": TEXTS[:1]}
                self.answers.append(httpx.post(self._address, json=body, timeout=60))
            except httpx.TransportError:
                self.broken += 1
                time.sleep(0.05)

    def wait_for(self, status: int) -> None:
        """Until another request is answered by ``status``."""
        seen, deadline = len(self.answers), time.monotonic() + 120
        while not any(answer.status_code == status for answer in self.answers[seen:]):
            assert time.monotonic() < deadline, (self.broken, [answer.text for answer in self.answers[seen:]])
            time.sleep(0.05)

    def check(self) -> None:
        """Every answer is 200, or tells the client to retry."""
        others = [answer for answer in self.answers if answer.status_code != 200]
        assert not [(a.status_code, a.text) for a in others if a.status_code != 503 or "error" not in a.json()]
        assert all(int(answer.headers["Retry-After"]) > 0 for answer in others)


@pytest.mark.parametrize("title", ["ServeReplica:raysum:front", "ProxyActor"])
def test_while_the_front_or_the_proxy_starts_again_clients_are_told_to_come_again(server: Server, title: str):
    with Load(server) as load:
        load.wait_for(200)
        (killed,) = server.processes(title)
        os.kill(killed, signal.SIGKILL)
        while not set(server.processes(title)) - {killed}:
            time.sleep(0.1)
        load.wait_for(200)
    load.check()


def test_stopped_under_load_it_waits_for_no_long_request_and_leaves_nothing(server: Server):
    assert len(server.processes()) > 5
    with ThreadPoolExecutor(12) as threads, Load(server) as load:
        long = [threads.submit(ask_for_long, server, 60) for _ in range(12)]
        time.sleep(2)
        load.wait_for(200)
        code, out, err = server.stop(signal.SIGTERM)
        answers = [one.result() for one in long]
        assert 503 in answers and {*answers} <= {200, 503}, "it waited for the long requests"
    load.check()
    assert load.broken and load.answers
    assert (code, out) == (0, "")
    assert err.strip() == "stopping"
    assert server.processes() == []
    socket.create_server(("127.0.0.1", server.port)).close()


@pytest.mark.long
def test_stopped_while_it_starts_it_leaves_nothing(run: Path):
    with serving(run) as server:
        while not server.processes("raylet"):
            time.sleep(0.05)
        code, _, err = server.stop(signal.SIGINT)
        assert code != 0
        assert "Traceback" not in err
        assert server.processes() == []


@pytest.mark.long
def test_a_proxy_that_takes_long_to_start_is_waited_for(run: Path):
    with serving(run) as server:
        while not (proxies := server.command.living("ProxyActor")):
            time.sleep(0.02)
        proxies[0].suspend()
        time.sleep(20)
        proxies[0].resume()
        server.wait_until_ready()
        assert server.client.health()["status"] == "ok"
        code, _, err = server.stop(signal.SIGTERM)  # at once: whoever says how it is stopped can be
        assert (code, err.strip()) == (0, "stopping")


@pytest.mark.long
def test_weights_that_do_not_fit_are_one_message_and_exit_2(run: Path, tmp_path: Path):
    import shutil

    import torch
    from safetensors.torch import save_file

    shutil.copytree(run, tmp_path / "wrong")
    wrong = Run(tmp_path / "wrong")
    save_file({"other": torch.zeros(1)}, wrong.best().weights)
    with serving(wrong.path) as server:
        code, out, err = server.ended(timeout=240)
        assert code == 2, err
        assert out == ""
        assert "does not fit" in err and len(err.splitlines()) == 1
        assert server.processes() == []
