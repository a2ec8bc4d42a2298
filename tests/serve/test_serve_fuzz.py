"""What strangers send: every request is answered, as JSON, and none by a fault of ours."""

import asyncio
import json
import random
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import httpx
import pytest

from helpers.small_runs import TEXTS, write_run
from raysum.serve.config import ServeConfig
from raysum.serve.replicas import Front, Replica
from raysum.serve.schema import Health
from raysum.serve.served import all_served

HEAD = {"Content-Type": "application/json"}
ODD_TEXTS = ["", " ", "\n", "\x00", "\ufeff", "\u2028", "</S>", "<Q>", "a" * 3000, ". " * 900, ",\n" * 400, "漢字" * 99,
             "\U0001f600", "e\u0301" * 300, "zzz " * 500, "\u202e", "\x1b[31m", "%s{}", *TEXTS]  # fmt: skip
ODD_NUMBERS = [0, 1, -1, 2**31, 2**63, 2**64, 10**30, -(10**30), 0.1, 1e308, 1e-320, 16, 17, 1000, 1001]
KEYS = ["title", "documents", "id", "options", "source", "text", "num_beams", "max_length", "min_length", "n_best",
        "length_penalty", "no_repeat_ngram_size", "summary", "paragraphs", "beta", "title_prompt", "citations",
        "structural_coverage", "gnmt_coverage", "no_repeat_last", "beam_size", "citing_layers",
        "bad_words_ids", "repetition_penalty", "encoder_no_repeat_ngram_size",
        "early_stopping", "forced_bos_token_id", "forced_eos_token_id", "", "str", "__class__",
        "k" * 500]  # fmt: skip
CONTENT_TYPES = ["text/plain", "application/x-www-form-urlencoded", "multipart/form-data; boundary=x", "", "a",
                 "é/json", "application/json; charset=utf-16", "application/a+json", "application/xml"]  # fmt: skip


def anything(rng: random.Random, depth: int = 0) -> Any:
    match rng.randrange(7 if depth < 4 else 5):
        case 0:
            return rng.choice(ODD_TEXTS)
        case 1:
            return rng.choice(ODD_NUMBERS)
        case 2:
            return rng.choice([None, True, False])
        case 3 | 4:
            return rng.choice(TEXTS)
        case 5:
            return [anything(rng, depth + 1) for _ in range(rng.choice([0, 1, 3, 60]))]
        case _:
            return {rng.choice(KEYS): anything(rng, depth + 1) for _ in range(rng.choice([0, 1, 3, 15]))}


def valid(rng: random.Random) -> dict[str, Any]:
    texts = [rng.choice(TEXTS + ODD_TEXTS) for _ in range(rng.randrange(1, 6))]
    documents = [text if rng.random() < 0.5 else {"source": "a.txt", "text": text} for text in texts]
    options = {"num_beams": rng.randrange(1, 5), "max_length": rng.randrange(20, 35)}
    return {"title": rng.choice(["Florence", "Rome", *ODD_TEXTS[:9]]), "documents": documents, "options": options}


def mutated(rng: random.Random) -> Any:
    """A valid request, one part of which is something else."""
    request = valid(rng)
    part = rng.choice([request, request["options"], *(d for d in request["documents"] if isinstance(d, dict))])
    key = rng.choice([*part, *KEYS])
    if rng.random() < 0.2:
        part.pop(key, None)
    else:
        part[key] = anything(rng)
    return request


def body(rng: random.Random) -> bytes:
    kind = rng.randrange(10)
    if kind < 2:
        return json.dumps(anything(rng)).encode()
    whole = json.dumps(valid(rng) if kind < 4 else mutated(rng), ensure_ascii=rng.random() < 0.5).encode()
    if kind < 7:
        return whole
    place = rng.randrange(len(whole))
    pieces = [b"\xff\xfe", b"\xed\xa0\x80", b'\\ud800', b"\x00", b"[" * 3000, b'{"a":' * 900, b"9" * 5000, b"-1e999",
              b"NaN", b"Infinity", b'"', b"\\u0000", b"", rng.randbytes(9)]  # fmt: skip
    return whole[:place] + rng.choice(pieces) + whole[place + rng.randrange(3) :]


def requests(count: int) -> Iterator[dict[str, Any]]:
    rng = random.Random(0)
    for _ in range(count):
        kind = rng.choice(CONTENT_TYPES) if rng.random() < 0.1 else HEAD["Content-Type"]
        yield {"content": body(rng), "headers": {"Content-Type": kind.encode()}}


def server(config: ServeConfig) -> httpx.AsyncClient:
    """Both deployments as they are, but for Ray between them."""
    replica = Replica(all_served(config), None)
    handle: Any = SimpleNamespace(summarize=SimpleNamespace(remote=replica.summarize))
    api = Front(handle, Health(status="ok", run="tiny", step=3), config, {"tiny": []}, 4).__serve_build_asgi_app__()
    return httpx.AsyncClient(
        transport=httpx.ASGITransport(api, raise_app_exceptions=False), base_url="http://localhost", timeout=60
    )


def test_what_a_request_may_cost_is_bounded_and_named(tmp_path: Path):
    config = ServeConfig(run=str(write_run(tmp_path)), max_cost=16)

    async def ask(**options: int) -> httpx.Response:
        async with server(config) as http:
            body = {"title": "Florence", "documents": TEXTS, "options": options}
            return await http.post("/v1/summarize", json=body)

    refused = asyncio.run(ask(num_beams=16, max_length=1000))
    assert refused.status_code == 422
    told = refused.json()["error"]
    assert told.startswith("num_beams 16 x max_length 1000 x ") and "the 16 that a request may ask for" in told
    assert "--max-cost" in told
    assert asyncio.run(ask(num_beams=5, max_length=30)).status_code == 200  # as the run's own settings
    assert asyncio.run(ask(num_beams=5, max_length=31)).status_code == 422


@pytest.mark.parametrize("count", [300, pytest.param(3000, marks=pytest.mark.long)])
def test_every_request_is_answered_and_no_fault_is_ours(tmp_path: Path, count: int):
    limits = {"max_cost": 5000, "max_documents": 50, "max_paragraphs": 300, "max_characters": 20_000}
    config = ServeConfig(run=str(write_run(tmp_path)), **limits)
    statuses: Counter[int] = Counter()

    async def fuzz() -> None:
        waiting = asyncio.Semaphore(4)  # costly and large ones have so many places each
        async with server(config) as http:

            async def ask(request: dict[str, Any]) -> None:
                async with waiting:
                    answer = await asyncio.wait_for(http.post("/v1/summarize", **request), 60)
                statuses[answer.status_code] += 1
                assert answer.status_code in (200, 400, 413, 422), (answer.text, request)
                assert "summary" in answer.json() if answer.status_code == 200 else set(answer.json()) == {"error"}
                assert answer.status_code == 200 or 0 < len(answer.text) < 3000

            await asyncio.gather(*map(ask, requests(count)))

    began = time.monotonic()
    asyncio.run(fuzz())
    assert time.monotonic() - began < count  # a second each: nothing hangs
    assert all(statuses[status] > count / 100 for status in (200, 400, 422)), statuses
