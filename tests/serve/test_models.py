"""Several models in one service: requests choose one, and a budget of memory unloads those that nobody uses."""

import asyncio
import itertools
import socket
import time
from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any

import httpx
import pytest

from helpers.servers import Server, serving
from helpers.small_runs import TEXTS, write_run
from raysum.config.loading import section_of
from raysum.errors import UserError
from raysum.serve.config import ServeConfig
from raysum.serve.shelf import Book, Shelf


class Loaded:
    """A model that notes what happens to it."""

    def __init__(self, name: str, log: list[str]):
        self.name, self.log = name, log
        log.append(f"+{name}")

    def close(self) -> None:
        self.log.append(f"-{self.name}")


def shelf(log: list[str], sizes: dict[str, int], budget: int | None, broken: str = "") -> Shelf[Loaded]:
    def load(name: str) -> Loaded:
        if name == broken:
            raise UserError(f"{name} is damaged")
        return Loaded(name, log)

    books = {name: Book(lambda name=name: load(name), size) for name, size in sizes.items()}
    return Shelf(books, budget)


def test_models_are_loaded_when_asked_for_and_the_least_recently_used_makes_room():
    async def use() -> list[str]:
        log: list[str] = []
        models = shelf(log, {"a": 4, "b": 4, "c": 4, "free": 0}, 8)
        assert log == ["+a", "+b", "+free"]
        for name in ("a", "c", "a", "b"):
            async with models.using(name) as model:
                assert model.name == name
        return log

    assert asyncio.run(use()) == ["+a", "+b", "+free", "-b", "+c", "-c", "+b"]


def test_a_model_in_use_stays_and_the_request_for_another_one_waits():
    async def use() -> list[str]:
        log: list[str] = []
        models = shelf(log, {"a": 4, "b": 8}, 8)

        async def ask(name: str) -> None:
            async with models.using(name):
                log.append(name)

        async with models.using("a"):
            waiting = [asyncio.create_task(ask("b")) for _ in range(3)]
            gone = asyncio.create_task(ask("b"))
            await asyncio.sleep(0.05)
            gone.cancel()
            await asyncio.sleep(0.05)
            assert log == ["+a"]
        await asyncio.gather(*waiting)
        return log

    assert asyncio.run(use()) == ["+a", "-a", "+b", "b", "b", "b"]


def test_a_client_that_leaves_while_a_model_loads_does_not_end_it_for_others():
    async def use() -> list[str]:
        log: list[str] = []
        models = shelf(log, {"a": 4, "b": 4}, 4)

        async def ask(name: str) -> str:
            async with models.using(name) as model:
                return model.name

        first, second = asyncio.create_task(ask("b")), asyncio.create_task(ask("b"))
        await asyncio.sleep(0)
        first.cancel()
        assert await second == "b" and models.names == ["b"]
        return log

    assert asyncio.run(use()) == ["+a", "-a", "+b"]


def test_a_model_that_cannot_be_loaded_fails_its_requests_alone():
    async def use() -> None:
        models = shelf([], {"a": 4, "b": 4}, 4, broken="b")
        for _ in range(2):
            with pytest.raises(UserError, match="b is damaged"):
                async with models.using("b"):
                    pass
            async with models.using("a") as model:
                assert model.name == "a"

    asyncio.run(use())


@pytest.mark.parametrize(
    ("given", "run"),
    [
        (["runs/pht"], "runs/pht"),
        (["lexrank"], "lexrank"),
        (["runs/pht/", "lexrank"], {"pht": "runs/pht/", "lexrank": "lexrank"}),
        (["a=runs/pht", "best=lexrank"], {"a": "runs/pht", "best": "lexrank"}),
        (["a=s3://b/x"], {"a": "s3://b/x"}),
    ],
)
def test_names_are_given_or_those_of_the_folders(given: list[str], run: Any):
    assert section_of(ServeConfig, {"run": given}).run == run


@pytest.mark.parametrize(
    ("run", "problem"),
    [(["runs/a", "b/a"], "two models of one name"), ({"a b": "lead"}, "needs names of letters"), ({}, "needs names")],
)
def test_wrong_names_are_one_message(run: Any, problem: str):
    with pytest.raises(UserError, match=problem):
        section_of(ServeConfig, {"run": run})


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    run = write_run(tmp_path_factory.mktemp("models"))
    settings = ("--memory=0.00001", "words=12", "max_length=20")
    with serving(f"small={run}", "lexrank", "fast=lead", *settings) as server:
        server.wait_until_ready()
        yield server


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_a_service_of_three_models_answers_by_the_one_that_is_asked_for(server: Server):
    ask, tiny = server.client.summarize, {"run": "tiny", "step": 3}
    assert ask("Florence", TEXTS)["model"] == ask("Florence", TEXTS, model="small")["model"] == tiny
    assert ask("Florence", TEXTS, model="fast")["model"] == {"system": "lead"}
    assert ask("Florence", TEXTS, model="lexrank")["model"] == {"system": "lexrank"}
    streamed = [*server.client.stream("Florence", TEXTS, model="fast")][-1]
    assert streamed[0] == "result" and streamed[1]["model"] == {"system": "lead"}
    with pytest.raises(UserError, match="404: there is no model 'big'; this service has 'small', 'lexrank', "):
        ask("Florence", TEXTS, model="big")
    health = server.client.health()
    assert health["models"] == ["small", "lexrank", "fast"] and health["run"] == "tiny"


HEAD = b"POST /v1/summarize HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\n"


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_two_hundred_slow_and_an_endless_connection_delay_no_one(server: Server):
    with ExitStack() as connections:
        for _ in range(200):
            slow = connections.enter_context(socket.create_connection(("127.0.0.1", server.port)))
            slow.sendall(HEAD + b"Content-Length: 5000\r\n\r\n{")
        began = time.monotonic()
        for _ in range(10):
            assert server.client.summarize("Florence", TEXTS, model="fast")["summary"]
        assert time.monotonic() - began < 15, "the slow ones are refused after 30 s"
    chunks = (b" " * 65_536 for _ in itertools.count())
    began = time.monotonic()
    assert httpx.post(f"{server.client.address}/v1/summarize", content=chunks, timeout=60).status_code == 413
    assert time.monotonic() - began < 30
