"""Who waits for whom in a replica: ordinary requests for their like alone."""

import asyncio
import time
from pathlib import Path
from typing import Any

import pytest

import raysum
from helpers.small_runs import TEXTS, write_run
from raysum.serve.config import ModelConfig
from raysum.serve.replicas import Model
from raysum.serve.served import Served

COSTLY = {"num_beams": 16, "max_length": 1000, "min_length": 1000, "no_repeat_ngram_size": 0}
PLACES = 4  # of the run's batches


@pytest.fixture
def model(tmp_path: Path) -> Any:
    return Model(Served.of(ModelConfig(run=str(write_run(tmp_path)), follow=0)))


def cluster(number: int = 0) -> dict[str, Any]:
    return {"id": str(number), "title": "Florence", "documents": TEXTS[number % 3 :]}


async def under_way(model: Any, count: int) -> list[asyncio.Task]:
    """So many costly requests, the first of which is being decoded."""
    tasks = [asyncio.create_task(model.summarize(cluster(number), COSTLY)) for number in range(count)]
    await asyncio.sleep(0.3)
    assert not any(task.done() for task in tasks)
    return tasks


def test_an_ordinary_request_passes_a_costly_one_which_is_answered_in_the_end(model: Any):
    async def ask() -> None:
        (costly,) = await under_way(model, 1)
        for number in range(5):
            assert "summary" in await model.summarize(cluster(number), {})
            assert not costly.done()
        assert "summary" in await costly

    asyncio.run(ask())


def test_costly_requests_leave_places_to_ordinary_ones(model: Any):
    async def ask() -> None:
        costly = await under_way(model, PLACES)
        refused = await model.summarize(cluster(), COSTLY)
        assert refused == {"error": "too many costly requests are waiting; try again later", "status": 503}
        assert "summary" in await model.summarize(cluster(), {})
        for task in costly:
            task.cancel()
        await asyncio.gather(*costly, return_exceptions=True)
        assert "summary" in await model.summarize(cluster(), {"num_beams": 6})  # their places are free again

    asyncio.run(ask())


def test_large_requests_leave_places_to_ordinary_ones_and_to_costly_ones(model: Any):
    large = {"id": "large", "title": "Florence", "documents": ["\n".join(TEXTS) * 1000]}

    async def ask() -> None:
        tasks = [asyncio.create_task(model.summarize(large, {})) for _ in range(PLACES)]
        await asyncio.sleep(0)
        assert (await model.summarize(large, {}))["status"] == 503
        assert "summary" in await model.summarize(cluster(), {})
        assert "summary" in await model.summarize(cluster(), {"num_beams": 6})
        assert all("summary" in answer for answer in await asyncio.gather(*tasks))

    asyncio.run(ask())


def test_who_waits_together_with_other_settings_and_clients_that_leave_is_answered_right(model: Any):
    options: list[dict[str, Any]] = [{}, {"num_beams": 3}, {"num_beams": 2, "max_length": 25}]

    async def ask() -> list[Any]:
        tasks = [asyncio.create_task(model.summarize(cluster(n), options[n % 3])) for n in range(24)]
        await asyncio.sleep(0.02)
        for task in tasks[::5]:
            task.cancel()
        return await asyncio.gather(*tasks, return_exceptions=True)

    answers = asyncio.run(ask())
    summarizer = raysum.load(model._follower.current.model.summarizer.name)
    for number, answer in enumerate(answers):
        if number % 5:
            row = summarizer.prepare(cluster(number))
            (expected,) = summarizer.summarize_rows([row], summarizer.choose(options[number % 3]))
            assert (answer["id"], answer["summary"]) == (str(number), expected.summary)


def test_a_stream_shows_the_growing_summary_with_its_sentences_and_ends_with_the_same_result(
    model: Any, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr("raysum.serve.scheduler._PREFIX_PAUSE", 0.0)  # this search may take less time
    settings = {"num_beams": 1, "max_length": 60, "min_length": 60, "no_repeat_ngram_size": 0}
    model._follower.current.model.summarizer.settings = model._follower.current.model.summarizer.choose(
        {"max_length": 60}
    )  # so that the request is ordinary

    async def ask() -> tuple[list[Any], dict[str, Any]]:
        return [event async for event in model.stream(cluster(), settings)], await model.summarize(cluster(), settings)

    events, result = asyncio.run(ask())
    names = [event["event"] for event in events]
    kinds = list(dict.fromkeys(names))
    assert kinds == ["queued", "reading", "prefix", "sentence", "result"]
    assert result["model"] == {"run": "tiny", "step": 3} and events[-1]["data"] == result
    read = events[1]["data"]
    spans = {(place["document"], place["start"], place["end"]) for place in read["places"]}
    assert read["paragraphs"] == len(read["places"]) == len(result["attention"]) == len(TEXTS)
    assert spans == {(number, 0, len(text)) for number, text in enumerate(cluster()["documents"])}
    prefixes = [event["data"]["text"] for event in events if event["event"] == "prefix"]
    assert all(result["summary"].startswith(prefix) for prefix in prefixes)
    assert prefixes == sorted(prefixes, key=len)
    assert [event["data"] for event in events if event["event"] == "sentence"] == result["sentences"]


def test_the_search_of_a_closed_stream_ends(model: Any):
    async def ask() -> float:
        stream = model.stream(cluster(), COSTLY)
        assert (await anext(stream))["event"] == "queued"
        assert (await anext(stream))["event"] == "reading"
        await anext(stream)
        await stream.aclose()
        began = time.monotonic()
        await model.summarize(cluster(), {"num_beams": 6})  # of the same lane
        return time.monotonic() - began

    assert asyncio.run(ask()) < 3, "1,000 steps of 16 beams take longer"
