"""The page of `raysum serve`: its policy and controls, and the page in a real browser with a real run."""

import asyncio
import base64
import hashlib
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from helpers.browsing import Page
from helpers.driving import DRIVER, Browser, browsing
from helpers.factbook_data import write_factbook, write_run
from helpers.pdf import LONG, pdf
from helpers.servers import Server, serving
from raysum.serve.api import build_api
from raysum.serve.client import Client
from raysum.serve.config import Limits, ModelConfig
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
    api = build_api({"pht": None}, health, Limits(), True, keys)  # type: ignore[dict-item] - no summary is asked for
    add_page(api, health, {"pht": controls}, Limits(max_documents=50))

    async def get() -> httpx.Response:
        async with httpx.AsyncClient(transport=httpx.ASGITransport(api), base_url="http://localhost") as http:
            return await http.get("/")

    return asyncio.run(get())


def fields(response: httpx.Response) -> dict[str, dict[str, str]]:
    """The attributes of the settings, by name."""
    return {own["name"]: own for _, own in Page(response.text).tags if "name" in own and own["name"] != "viewport"}


def test_the_policy_allows_the_pages_own_script_and_style_alone(run: Path):
    response = page(controls_of(ModelConfig(run=str(run))))
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
    assert "&lt;b&gt;pht." in response.text and 'data-max-documents="50"' in response.text


def test_controls_are_those_of_the_served_system_within_its_limits(run: Path):
    config = ModelConfig(run=str(run), decode={"num_beams": 4, "n_best": 2, "min_length": 9, "max_length": 20})
    trained = fields(page(controls_of(config)))
    assert trained.keys() == {"num_beams", "max_length", "beta", "grounded"}
    kept = {name: [own.get(key) for key in ("value", "min", "max", "step")] for name, own in trained.items()}
    assert kept["num_beams"] == ["4", "2", "16", "1"] and kept["max_length"] == ["20", "9", "1000", "1"]
    assert kept["beta"] == ["0", "0", "1000000", "any"]
    in_groups = controls_of(ModelConfig(run=str(run), decode={"num_beams": 6, "num_beam_groups": 3, "n_best": 4}))[0]
    assert (in_groups.least, in_groups.step) == (6, 3)
    for system in ("lexrank", "lead"):
        assert fields(page(controls_of(ModelConfig(run=system)))).keys() == {"words", "sentences"}
    assert 'name="words" value="40"' in page(controls_of(ModelConfig(run="lexrank", decode={"words": 40}))).text


def test_grounding_can_be_off_only_if_the_server_has_it_off(run: Path):
    def choices(**decode: str) -> list[str]:
        return re.findall('<option value="(.*?)"', page(controls_of(ModelConfig(run=str(run), decode=decode))).text)

    assert choices() == ["", "numbers", "names", "all"]
    assert choices(grounded="names") == ["numbers", "names", "all"]


def test_a_run_without_a_predictor_has_no_beta(run: Path, tmp_path: Path):
    bare = write_run(tmp_path / "bare", write_factbook(tmp_path / "data", {"train": 2})).path
    assert "beta" not in {control.name for control in controls_of(ModelConfig(run=str(bare)))}


def test_the_page_needs_no_key_and_is_well_formed_with_a_label_for_every_field(tmp_path: Path):
    file = str(tmp_path / "keys.json")
    add_key(file, "web", KeyLimits())
    response = page(controls_of(ModelConfig(run="lexrank")), file)
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


in_a_browser = [pytest.mark.slow, pytest.mark.timeout(300)]
in_a_browser.append(pytest.mark.skipif(not DRIVER, reason="needs chromium and chromium-driver (Debian packages)"))
DOCUMENTS = [
    {
        "source": "<img src=x onerror=alert(1)>",
        "text": "Comets 😀😀 frighten sailors of Delmal.\n\nNu Manger saw one in 1956.",
    },
    {"text": "تقع مدينة فلورنسا على نهر أرنو 😀 في شمال إيطاليا.\nاكتمل بناء الكاتدرائية عام 1436."},
    {"source": "c.txt", "text": "The comet of Nu Manger was brighter than Runmor.\nIt returned in 1956 to Delmal."},
]


def browser_tests(test: Any) -> Any:
    for mark in in_a_browser:
        test = mark(test)
    return test


@pytest.fixture(scope="module")
def keys(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, str]:
    """A file of keys, and the key in it."""
    file = str(tmp_path_factory.mktemp("keys") / "keys.json")
    return file, add_key(file, "web", KeyLimits())


@pytest.fixture(scope="module")
def server(run: Path, keys: tuple[str, str]) -> Iterator[Server]:
    with serving(run, "--keys", keys[0], "--max-cost=500000") as server:
        server.wait_until_ready()
        yield server


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with browsing() as browser:
        yield browser


def fill_in(browser: Browser) -> None:
    browser.write("#title", "Delmal")
    for number, document in enumerate(DOCUMENTS, 1):
        if number > 1:
            browser.click("#add")
        # A browser's driver cannot type emoji.
        script = "const field = document.querySelector(arguments[0]); field.value = arguments[1];"
        script += "field.dispatchEvent(new Event('input', {bubbles: true}))"
        browser.run(script, f".document:nth-child({number}) .name", document.get("source", ""))
        browser.run(script, f".document:nth-child({number}) .text", document["text"])


def start(browser: Browser, server: Server, key: str, fragment: str = "", **window: Any) -> None:
    """Open the page as after a login, and fill it in."""
    browser.open(f"{server.client.address}/{fragment}", **window)
    browser.run("sessionStorage.setItem('raysum-key', arguments[0])", key)
    fill_in(browser)


def finish(browser: Browser) -> None:
    browser.wait("!document.querySelector('#copies').hidden || document.querySelector('#error p')")
    assert browser.text("#error") == ""


@browser_tests
def test_documents_become_a_summary_with_marked_sources_after_a_key(
    browser: Browser, server: Server, keys: tuple[str, str]
):
    browser.open(f"{server.client.address}/")
    browser.run("sessionStorage.clear()")
    fill_in(browser)
    browser.write("#title", "")
    browser.press("Control", "Enter")
    browser.wait("document.activeElement.id === 'key'")
    assert "needs a key" in browser.text("#error")
    browser.write("#key", "wrong")
    browser.press("Enter")
    browser.wait("document.querySelector('#error').innerText.includes('this key is not valid')")
    browser.run("document.querySelector('#key').value = ''")
    browser.write("#key", keys[1])
    browser.press("Enter")
    finish(browser)
    assert browser.run("return Object.keys(localStorage).length + document.cookie.length") == 0
    asked = Client(server.client.address, key=keys[1]).summarize("Delmal", DOCUMENTS)
    cited = [one for sentence in asked["sentences"] for one in sentence["citations"]]
    assert cited and browser.run("return document.querySelectorAll('.claim').length") == len(asked["sentences"])
    shown = browser.run(
        "return [...document.querySelectorAll('#summary .s')].map((e) => e.dataset.notes.split(' ').length)"
    )
    assert shown == [len(sentence["citations"]) or 1 for sentence in asked["sentences"]]
    marked = set(browser.run("return [...document.querySelectorAll('mark')].map((e) => e.textContent)"))
    assert marked <= {one["quote"] for one in cited}, "no passage overlaps another here, and emoji shift none"
    assert {one["quote"] for one in cited} == marked
    assert browser.text("#remarks").startswith("Written by the run run, step 1; support ")
    doubted = browser.run("return [...document.querySelectorAll('#summary .u')].map((e) => e.textContent)")
    assert doubted == [span["text"] for span in asked["unsupported"]]
    shares = browser.run("return [...document.querySelectorAll('.para:not(.unread) .share')].map((e) => e.textContent)")
    both = zip(asked["attention"], asked["predicted"], strict=True)
    expected = [f"{100 * a:.0f}\u00a0% of the attention, {100 * hat:.0f}\u00a0% predicted" for a, hat in both]
    assert sorted(shares) == sorted(expected)
    assert browser.run("return [...document.querySelectorAll('.bar')].every((e) => e.ariaHidden === 'true')")
    assert browser.run("return document.querySelectorAll('img').length") == 0
    assert (
        browser.run("return getComputedStyle(document.querySelectorAll('#sources h3 ~ .para p')[2]).direction") == "rtl"
    )
    noted = [message for message in browser.console() if "401" not in message]
    assert not noted, "the policy forbids nothing that the page does"


@browser_tests
def test_the_keyboard_selects_sentences_and_passages_and_moves_between_them(
    browser: Browser, server: Server, keys: tuple[str, str]
):
    start(browser, server, keys[1], width=400)
    browser.press("Control", "Enter")
    finish(browser)
    browser.run("document.querySelector('.claim').focus()")
    browser.press("Enter")
    lit = "[...document.querySelectorAll('mark.on')].map((e) => e.closest('.passage').dataset.notes).join(' ')"
    first = browser.run("return document.querySelector('.s').dataset.notes")
    assert browser.run("return document.querySelector('.claim').ariaPressed") == "true"
    assert set(browser.run(f"return {lit}").split()) >= set(first.split())
    assert browser.text("#selected").startswith("Sentence 1 cites [1] ")
    place = "document.querySelector('mark.on').getBoundingClientRect()"
    browser.wait(f"{place}.top >= 0 && {place}.bottom <= innerHeight")
    browser.press("Tab")
    assert browser.run("return document.activeElement.ariaLabel") == "Go to passage 1"
    browser.press("Space")
    assert browser.run("return document.activeElement.closest('.passage').dataset.notes").split()[0] == "1"
    assert browser.run("return document.activeElement.tagName") == "MARK"
    browser.press("Enter")
    assert browser.run("return document.querySelector('.s').classList.contains('on')")
    assert browser.text("#selected").startswith("Passage 1") and "sentence 1" in browser.text("#selected")
    browser.press("Escape")
    assert browser.run("return document.querySelectorAll('.on, [aria-pressed=true]').length") == 0
    unnamed = [
        node
        for node in browser.accessible()
        if node["role"]["value"] in ("button", "textbox", "spinbutton", "combobox", "link", "heading")
        and not node["name"]["value"]
    ]
    assert not unnamed
    assert not browser.console()


@browser_tests
def test_it_grows_stops_and_copies(browser: Browser, server: Server, keys: tuple[str, str]):
    start(browser, server, keys[1], "#max_length=1000&num_beams=1")
    browser.click("#submit")
    browser.wait("document.querySelector('#summary.growing').innerText.length > 20")
    assert browser.run("return document.querySelector('#submit').ariaDisabled") == "true"
    browser.click("#stop")
    browser.wait("document.querySelector('#status').innerText === 'Stopped'")
    assert browser.run("return document.querySelector('#stop').hidden")
    browser.run("const field = document.querySelector('#max_length'); field.value = 16")
    browser.click("#submit")
    finish(browser)
    browser.command("Browser.grantPermissions", permissions=["clipboardReadWrite", "clipboardSanitizedWrite"])
    copies = {}
    for what in ("text", "markdown", "json"):
        browser.click(f"[data-copy={what}]")
        browser.wait("document.querySelector('#status').innerText.endsWith('copied')")
        browser.run("document.querySelector('#status').textContent = ''")
        copies[what] = browser.clipboard()
    result = json.loads(copies["json"])
    assert copies["text"] == result["summary"]
    notes = re.findall(r"^\[\^(\d+)\]: ", copies["markdown"], re.MULTILINE)
    assert notes and notes == [str(number + 1) for number in range(len(notes))]
    assert set(re.findall(r"\[\^(\d+)\](?!:)", copies["markdown"])) == set(notes)


@browser_tests
def test_a_link_restores_the_settings_and_no_text(browser: Browser, server: Server, keys: tuple[str, str]):
    start(browser, server, keys[1])
    assert browser.run("return location.hash") == ""
    browser.run("document.querySelector('#num_beams').value = ''")
    browser.write("#num_beams", "3")
    browser.write("#grounded", "names")
    assert browser.run("return location.hash") == "#num_beams=3&grounded=names"
    start(browser, server, keys[1], "#num_beams=3&grounded=names&beta=-1&max_length=x&title=Rome")
    values = browser.run("return [...document.querySelectorAll('#settings [name]')].map((e) => [e.name, e.value])")
    assert dict(values) == {"num_beams": "3", "max_length": "16", "beta": "0", "grounded": "names"}
    browser.click("#submit")
    finish(browser)


@browser_tests
def test_errors_appear_in_place_with_their_fix(browser: Browser, server: Server, keys: tuple[str, str], tmp_path: Path):
    browser.open(f"{server.client.address}/", width=400)
    browser.run("sessionStorage.setItem('raysum-key', arguments[0])", keys[1])
    browser.click("#submit")
    browser.wait("document.activeElement.className === 'text'")
    assert browser.text("#error").startswith("Enter the text of a document")
    names = {"c.txt": b" \n", "e.md": "Ärger in Rom.".encode(), "f.txt": "Grüße".encode("utf-16")}
    for name, content in names.items():
        (tmp_path / name).write_bytes(content)
    browser.write("#files", "\n".join(str(tmp_path / name) for name in names))
    browser.wait("document.querySelector('#status').innerText === '2 files added'")
    assert browser.text("#problems") == "c.txt has no text"
    texts = browser.run("return [...document.querySelectorAll('.text')].map((e) => e.value)")
    assert texts == ["Ärger in Rom.", "Grüße"]
    browser.run(
        "const dataTransfer = new DataTransfer(); dataTransfer.items.add(new File(['Dropped.'], 'g.txt'));"
        "for (const type of ['dragover', 'drop']) document.body.dispatchEvent(new DragEvent(type, {dataTransfer, "
        "bubbles: true, cancelable: true}));"
    )
    browser.wait("[...document.querySelectorAll('.text')].at(-1).value === 'Dropped.'")
    assert browser.run("return document.querySelector('#problems').innerText + document.body.className") == ""
    offline = {"offline": True, "latency": 0, "downloadThroughput": -1, "uploadThroughput": -1}
    browser.command("Network.enable")
    browser.command("Network.emulateNetworkConditions", **offline)
    browser.click("#submit")
    browser.wait("document.querySelector('#error').innerText.startsWith('The connection to the server failed')")
    browser.command("Network.emulateNetworkConditions", **offline | {"offline": False})
    browser.run("document.querySelector('.text').value = 'The comet. '.repeat(99)")
    browser.run("document.querySelector('#num_beams').value = 16; document.querySelector('#max_length').value = 1000")
    browser.click("#submit")
    browser.wait("document.querySelector('#error').innerText.includes('max-cost')")
    assert "num_beams 16 x max_length 1000" in browser.text("#error") and "--max-cost" in browser.text("#error")
    browser.run("document.querySelector('#max_length').setAttribute('max', '')")  # as on a server with other limits
    browser.run("document.querySelector('#max_length').value = 2000")
    browser.click("#submit")
    browser.wait("document.activeElement.id === 'max_length'")
    assert browser.text("#error").startswith("options.max_length: ")
    assert browser.run("return document.querySelector('#max_length').ariaInvalid") == "true"


@browser_tests
def test_uploaded_files_show_the_text_that_the_server_reads(
    browser: Browser, server: Server, keys: tuple[str, str], tmp_path: Path
):
    browser.open(f"{server.client.address}/", width=1200)
    browser.run("sessionStorage.setItem('raysum-key', arguments[0])", keys[1])
    first, second = LONG, "The bridge was closed to trucks in 1921, and the town of Arden bought a larger ferry."
    (tmp_path / "ferry.pdf").write_bytes(pdf([first], [second]))
    (tmp_path / "old.txt").write_bytes("Die Fähre fährt täglich über den Fluß.".encode("latin-1"))
    browser.write("#files", "\n".join(str(tmp_path / name) for name in ("ferry.pdf", "old.txt")))
    browser.wait("document.querySelector('#status').innerText === '2 files added'")
    assert (
        browser.run("return [...document.querySelectorAll('.text')].map((e) => [e.value, e.readOnly])")
        == [["", True]] * 2
    )
    browser.click("#submit")
    finish(browser)
    texts = browser.run("return [...document.querySelectorAll('.text')].map((e) => e.value)")
    assert first in texts[0] and second in texts[0] and texts[1] == "Die Fähre fährt täglich über den Fluß."
    assert first in browser.text("#sources") and "täglich" in browser.text("#sources")
    browser.run("document.querySelectorAll('.remove')[1].click()")
    (tmp_path / "broken.pdf").write_bytes(b"%PDF-1.7")
    browser.write("#files", str(tmp_path / "broken.pdf"))
    browser.wait("document.querySelector('#status').innerText === '1 file added'")
    browser.click("#submit")
    browser.wait("document.querySelector('#error p')")
    assert browser.text("#error").startswith("broken.pdf cannot be read as PDF")


@browser_tests
def test_it_fits_narrow_and_wide_windows_in_light_and_dark(browser: Browser, server: Server, keys: tuple[str, str]):
    backgrounds = set()
    for width in (1200, 400, 320):
        for dark in (False, True):
            start(browser, server, keys[1], width=width, dark=dark)
            browser.click("#submit")
            finish(browser)
            browser.click(".claim")
            assert browser.run("return document.documentElement.scrollWidth - innerWidth") <= 0
            backgrounds.add(browser.run("return getComputedStyle(document.body).backgroundColor"))
    assert len(backgrounds) == 2


@browser_tests
@pytest.mark.parametrize("width", [400, pytest.param(1200, marks=pytest.mark.long)])
def test_two_models_summarize_side_by_side(browser: Browser, run: Path, tmp_path: Path, width: int):
    with serving(f"pht={run}", "fast=lexrank") as server:
        server.wait_until_ready()
        browser.console()  # the messages of other tests
        browser.open(f"{server.client.address}/#rival=fast&num_beams=2", width=width)
        fill_in(browser)
        visible = "return [...document.querySelectorAll('#settings .field:not([hidden]) [name]')].map((e) => e.name)"
        assert browser.run(visible) == ["model", "rival", "num_beams", "max_length", "beta", "grounded"]
        browser.click("#submit")
        browser.wait("!document.querySelector('#rival').hidden || document.querySelector('#error p')")
        assert browser.text("#error") == "" and browser.text("#heading") == "Summary by pht"
        other = server.client.summarize("Delmal", DOCUMENTS, model="fast")
        assert browser.text("#rival-summary") == other["summary"]
        first = browser.text("#summary")
        browser.screenshot(tmp_path / f"models-{width}.png")
        browser.click("#swap")
        assert browser.text("#heading") == "Summary by fast" and "Summary by pht" in browser.text("#rival")
        assert browser.run("return document.querySelectorAll('.claim').length") == len(other["sentences"])
        assert browser.text("#remarks").startswith("Written by lexrank")
        browser.click("#swap")
        assert browser.text("#summary") == first and browser.text("#rival-summary") == other["summary"]
        browser.write("#model", "fast")
        assert browser.run(visible) == ["model", "rival", "words", "sentences"]
        assert browser.run("return location.hash") == "#model=fast&rival=fast"
        browser.write("#rival-model", "none")
        browser.click("#submit")
        browser.wait(
            "document.querySelector('#heading').innerText === 'Summary' && !document.querySelector('#copies').hidden"
        )
        assert browser.text("#remarks").startswith("Written by lexrank") and not browser.console()
