"""The OpenAPI object: every route has examples, which fit its schemas, and keys where they are needed."""

import asyncio
import json
import tempfile
from typing import Any

import httpx
import jsonschema
import pytest

from raysum.serve.api import build_api
from raysum.serve.batch_routes import Batches
from raysum.serve.config import Limits, ModelConfig
from raysum.serve.events import Service
from raysum.serve.extracts import Extracts
from raysum.serve.openapi import _answers
from raysum.serve.schema import Health, SummarizeRequest
from raysum.serve.served import Served
from raysum.serve.state import Described, add_state_routes


class Nothing(Service, Described):
    """A model that is never called."""

    async def are_ready(self) -> bool:
        raise NotImplementedError


def spec(keys: str | None = None) -> dict[str, Any]:
    service, health = Nothing(), Health(status="ok", run="pht", step=7)
    with tempfile.TemporaryDirectory() as folder:
        api = build_api({"pht": service}, health, Limits(), False, keys, None, Batches(folder, 1))
    add_state_routes(api, {"pht": service}, service.are_ready)
    api.openapi()
    return api.openapi()


def operations(spec: dict[str, Any]) -> list[tuple[str, dict[str, Any]]]:
    return [(path, operation) for path, methods in spec["paths"].items() for operation in methods.values()]


def test_every_example_fits_the_schema_of_its_request_or_answer():
    whole = spec()
    checked = 0
    for path, operation in operations(whole):
        parts = [operation["requestBody"]] if "requestBody" in operation else []
        for part in (*parts, *operation["responses"].values()):
            for kind, content in part.get("content", {}).items():
                assert "example" in content or "examples" in content, (path, kind)
                if kind == "application/json" and "example" in content:
                    schema = {**content["schema"], "components": whole["components"]}
                    jsonschema.validate(content["example"], schema)
                    checked += 1
    assert checked > 25
    refused = whole["paths"]["/v1/responses"]["post"]["responses"]["422"]["content"]["application/json"]["example"]
    assert refused["error"]["type"] == "invalid_request_error"
    assert {path.removeprefix("get ") for path in _answers()} <= {path for path, _ in operations(whole)}


def test_examples_are_accepted_by_the_service_that_shows_them():
    api = build_api({"fast": Extracts(Served.of(ModelConfig(run="lexrank")))}, Health(status="ok"), Limits(), False)

    async def statuses() -> dict[str, int]:
        async with httpx.AsyncClient(transport=httpx.ASGITransport(api), base_url="http://server") as http:
            bodies = {
                path: post["post"]["requestBody"]["content"]["application/json"]["example"]
                for path, post in api.openapi()["paths"].items()
                if "post" in post
            }
            return {path: (await http.post(path, json=body)).status_code for path, body in bodies.items()}

    found = asyncio.run(statuses())
    assert len(found) == 5 and {*found.values()} == {200}, found


def test_examples_are_requests_and_answers_of_this_service():
    whole = spec()
    request = whole["paths"]["/v1/summarize"]["post"]["requestBody"]["content"]["application/json"]["example"]
    SummarizeRequest.model_validate(request)
    answer = _answers()["/v1/summarize"]["application/json"]
    texts = [text["text"] if isinstance(text, dict) else text for text in request["documents"]]
    for sentence in answer["sentences"]:
        assert answer["summary"][sentence["start"] : sentence["end"]] == sentence["text"]
        for citation in sentence["citations"]:
            assert texts[citation["document"]][citation["start"] : citation["end"]] == citation["quote"]
    stream = _answers()["/v1/summarize/stream"]["text/event-stream"]
    assert json.loads(stream.strip().rpartition("data: ")[2]) == answer


@pytest.mark.parametrize("keys", [None, "keys.json"])
def test_routes_name_the_keys_that_they_need(keys: str | None):
    whole = spec(keys)
    secured = {path for path, operation in operations(whole) if "security" in operation}
    paths = {path for path, _ in operations(whole)}
    assert secured == (paths - {"/healthz", "/readyz"} if keys else set())
    assert ("securitySchemes" in whole["components"]) == bool(keys)
    assert "HTTPValidationError" not in json.dumps(whole)
