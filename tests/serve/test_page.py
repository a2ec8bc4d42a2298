"""The page of `raysum serve`: its policy and controls, and the page in a real browser with a real run."""

import asyncio
import base64
import hashlib
import re
from pathlib import Path

import httpx
import pytest

from helpers.browsing import Page
from helpers.factbook_data import write_factbook, write_run
from raysum.serve.api import build_api
from raysum.serve.config import Limits, ServeConfig
from raysum.serve.keys import KeyLimits, add_key
from raysum.serve.page import Control, add_page, controls_of
from raysum.serve.schema import Health


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A PHT with an attention predictor, both of random weights."""
    folder = tmp_path_factory.mktemp("page")
    return write_run(folder / "run", write_factbook(folder / "data", {"train": 2}), predictor=True).path


def page(controls: list[Control], keys: str | None = None) -> httpx.Response:
    health = Health(status="ok", run="<b>pht", step=7)
    api = build_api(None, health, Limits(), True, keys)  # type: ignore[arg-type] - no summary is asked for
    add_page(api, health, controls, Limits(max_documents=50))

    async def get() -> httpx.Response:
        async with httpx.AsyncClient(transport=httpx.ASGITransport(api), base_url="http://localhost") as http:
            return await http.get("/")

    return asyncio.run(get())


def fields(response: httpx.Response) -> dict[str, dict[str, str]]:
    """The attributes of the settings, by name."""
    return {own["name"]: own for _, own in Page(response.text).tags if "name" in own and own["name"] != "viewport"}


def test_the_policy_allows_the_pages_own_script_and_style_alone(run: Path):
    response = page(controls_of(ServeConfig(run=str(run))))
    policy = dict(part.split(" ", 1) for part in response.headers["Content-Security-Policy"].split("; "))
    for directive, tag in (("script-src", '<script type="module">'), ("style-src", "<style>")):
        ((content,),) = [re.findall(f"{tag}(.*?)</{tag[1:6]}", response.text, re.DOTALL)]
        digest = base64.b64encode(hashlib.sha256(content.encode()).digest()).decode()
        assert policy.pop(directive) == f"'sha256-{digest}'"
    assert policy.pop("connect-src") == "'self'" and policy.pop("img-src") == "data:"
    assert policy.pop("require-trusted-types-for") == "'script'"
    assert policy.keys() == {"default-src", "base-uri", "form-action", "frame-ancestors"}
    assert set(policy.values()) == {"'none'"}
    assert response.headers["X-Content-Type-Options"] == "nosniff"
    assert not re.search(
        r"https?://|//cdn|\bon\w+=|innerHTML|insertAdjacentHTML|document\.write\b|eval\(", response.text
    )
    assert "style=" not in response.text, "the policy forbids it"
    assert "&lt;b&gt;pht, step 7" in response.text and 'data-max-documents="50"' in response.text


def test_controls_are_those_of_the_served_system_within_its_limits(run: Path):
    config = ServeConfig(run=str(run), decode={"num_beams": 4, "n_best": 2, "min_length": 9, "max_length": 20})
    trained = fields(page(controls_of(config)))
    assert trained.keys() == {"num_beams", "max_length", "beta", "grounded"}
    kept = {name: [own.get(key) for key in ("value", "min", "max", "step")] for name, own in trained.items()}
    assert kept["num_beams"] == ["4", "2", "16", "1"] and kept["max_length"] == ["20", "9", "1000", "1"]
    assert kept["beta"] == ["0", "0", "1000000", "any"]
    in_groups = controls_of(ServeConfig(run=str(run), decode={"num_beams": 6, "num_beam_groups": 3, "n_best": 4}))[0]
    assert (in_groups.least, in_groups.step) == (6, 3)
    for system in ("lexrank", "lead"):
        assert fields(page(controls_of(ServeConfig(run=system)))).keys() == {"words", "sentences"}
    assert 'name="words" value="40"' in page(controls_of(ServeConfig(run="lexrank", decode={"words": 40}))).text


def test_grounding_can_be_off_only_if_the_server_has_it_off(run: Path):
    def choices(**decode: str) -> list[str]:
        return re.findall('<option value="(.*?)"', page(controls_of(ServeConfig(run=str(run), decode=decode))).text)

    assert choices() == ["", "numbers", "names", "all"]
    assert choices(grounded="names") == ["numbers", "names", "all"]


def test_a_run_without_a_predictor_has_no_beta(run: Path, tmp_path: Path):
    bare = write_run(tmp_path / "bare", write_factbook(tmp_path / "data", {"train": 2})).path
    assert "beta" not in {control.name for control in controls_of(ServeConfig(run=str(bare)))}


def test_the_page_needs_no_key_and_is_well_formed_with_a_label_for_every_field(tmp_path: Path):
    file = str(tmp_path / "keys.json")
    add_key(file, "web", KeyLimits())
    response = page(controls_of(ServeConfig(run="lexrank")), file)
    assert response.status_code == 200
    tags = Page(response.text).tags
    ids = [own["id"] for _, own in tags if "id" in own]
    assert len(ids) == len(set(ids))
    labelled = {own.get("for") for tag, own in tags if tag == "label"}
    inputs = {
        own["id"] for tag, own in tags if tag in ("input", "select") and "id" in own and own.get("type") != "file"
    }
    assert inputs <= labelled
    described = {one for _, own in tags for one in own.get("aria-describedby", "").split()}
    assert described <= set(ids)
