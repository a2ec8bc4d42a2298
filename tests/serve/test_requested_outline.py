"""Parts of an outline in requests."""

import asyncio

import httpx

import raysum
from raysum.serve.api import build_api
from raysum.serve.config import Limits, ModelConfig
from raysum.serve.extracts import Extracts
from raysum.serve.schema import Health
from raysum.serve.served import Served

FIRE = "A fire destroyed the market hall of Porto. Firefighters fought the flames for seven hours."
DOCUMENTS = [FIRE, "The flames were fought by firefighters for nine hours."]


def post(**body):
    api = build_api(
        {"lead": Extracts(Served.of(ModelConfig(run="lead")))}, Health(status="ok", system="lead"), Limits(), False
    )

    async def ask():
        async with httpx.AsyncClient(transport=httpx.ASGITransport(api), base_url="http://server") as client:
            return await client.post("/v1/summarize", json={"title": "", "documents": DOCUMENTS} | body)

    return asyncio.run(ask())


def test_an_answer_has_the_parts_that_the_request_asks_for():
    plain, answer = post().json(), post(outline=["headline", "disagreements"]).json()
    cluster = {"title": "", "documents": DOCUMENTS}
    local = raysum.outline(
        raysum.load("lead").summarize("", DOCUMENTS), cluster, ["headline", "disagreements"]
    ).to_dict()
    assert [claim["value"] for claim in answer["disagreements"][0]["claims"]] == ["seven hours", "nine hours"]
    assert answer == plain | {key: local[key] for key in ("headline", "disagreements")}
    assert "headline" not in plain


def test_an_unknown_part_is_refused():
    refused = post(outline=["topics"])
    assert refused.status_code == 422 and "outline" in refused.json()["error"] and "themes" in refused.json()["error"]
