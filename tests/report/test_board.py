"""The board of a folder: what it shows of runs and searches, and to whom; slow: in a browser."""

import json
import shutil
import signal
import socket
import subprocess
import threading
import time
from pathlib import Path

import pytest
from fastapi.testclient import TestClient

from helpers.browsing import BROWSER, Page, browse, look_everywhere
from helpers.factbook_data import write_factbook, write_run
from helpers.processes import Command, free_port
from helpers.searches import HOSTILE, reported, running_search
from raysum.errors import UserError
from raysum.pages.parts import duration
from raysum.report.board import board, build_board_api
from raysum.report.gather import RunRecord
from raysum.report.overview import Pages, find_entries, stamp
from raysum.runs.folder import Run
from raysum.runtime.lock import LOCK, folder_lock, is_held
from raysum.runtime.storage import append_line
from raysum.tune.page import search_page
from raysum.tune.record import RECORD, read_search

DAMAGED = HOSTILE.replace("/", "")


@pytest.fixture
def search(tmp_path) -> Path:
    return running_search(tmp_path / "runs" / "<i>rates")


def test_durations_are_whole():
    texts = {59.94: "59.9 s", 59.96: "1 min 0 s", 119.7: "2 min 0 s", 3599.8: "1 h 0 min"}
    assert {seconds: duration(seconds) for seconds in texts} == texts


def test_looking_at_a_lock_neither_takes_nor_makes_it(tmp_path):
    lock = tmp_path / LOCK
    assert not is_held(lock) and not lock.exists()
    with folder_lock(tmp_path, lock):
        assert is_held(lock)
    lock.write_text("of a process that was killed")
    assert not is_held(lock)


@pytest.fixture
def folder(tmp_path, search) -> Path:
    """Runs and searches: one of them damaged, one beyond a link."""
    runs = tmp_path / "runs"
    data = write_factbook(tmp_path / "data", {"train": 2, "valid": 2})
    run = write_run(runs / "deep" / "pht", data)
    append_line(run.metrics, {"step": 1, "loss": 3.0, "seconds": 5.0})
    append_line(run.metrics, {"step": 1, "valid_loss": 2.25})
    shutil.copytree(run.path, tmp_path / "outside")
    (runs / "link").symlink_to(tmp_path / "outside")
    damaged = shutil.copytree(run.path, runs / DAMAGED)
    (damaged / "metrics.jsonl").write_text("nonsense\n")
    return runs


@pytest.fixture
def client(folder) -> TestClient:
    return TestClient(build_board_api(folder, local=True), base_url="http://127.0.0.1:8100")


def test_the_board_lists_runs_and_searches_and_names_what_is_damaged(client, folder):
    answer = client.get("/")
    found = Page(answer.text)
    rows = {cells[0]: cells[1:] for cells in found.cells["all"]}
    assert rows.keys() == {"folder", "deep/pht", "<i>rates", DAMAGED}
    assert rows["deep/pht"][:1] + rows["deep/pht"][3:] == ["run", "valid loss 2.2500", "valid loss 2.2500", "5.0 s"]
    assert rows["<i>rates"][:3] == ["search", "interrupted", "1 of 4 trials, 1 failed"]
    assert "2 runs and 1 search: 1 damaged, 2 interrupted. The last change was in " in answer.text
    assert rows[DAMAGED][1] == "damaged" and "line 1 is not a JSON object" in found.texts["damaged"]
    assert "default-src 'none'" in answer.headers["content-security-policy"]
    pages = [client.get(own["href"]) for tag, own in found.tags if tag == "a"]
    assert sorted(page.status_code for page in pages) == [200, 200, 422]
    for page in pages:
        assert not [tag for tag, own in Page(page.text).tags if tag in ("b", "i") and "onclick" in own]
        assert page.status_code == 200 or "line 1 is not a JSON object" in page.text


@pytest.mark.parametrize("headers", [{"host": "evil.example"}, {"origin": "http://evil.example"}, {"host": ""}])
def test_nobody_but_this_machine_is_answered(client, headers):
    assert client.get("/", headers=headers).status_code == 403
    assert client.get("/page/deep/pht", headers=headers).status_code == 403


@pytest.mark.parametrize(
    "path",
    ["/page/../outside", "/page/%2e%2e/outside", "/page/..%2Foutside", "/page//etc/passwd", "/page/link", "/page/"]
    + ["/page/deep", "/page/deep/pht/config.yaml", "/page/deep/pht/..", "/config.yaml", "/docs", "/openapi.json"],
)
def test_only_what_is_listed_is_shown(client, path):
    answer = client.get(path)
    assert answer.status_code == 404 and "model" not in answer.text.partition("</style>")[2]
    assert client.post("/").status_code == 405


def test_states_follow_the_lock(folder):
    def states() -> dict[str, str]:
        return {place.name: place.state for place in find_entries(folder)}

    run, search = folder / "deep" / "pht", folder / "<i>rates"
    with folder_lock(run, run / LOCK), folder_lock(search, search / LOCK):
        running = find_entries(folder)
        assert [place.name for place in running if place.running] == [place.name for place in running[:2]]
        assert {place.name for place in running[:2]} == {"deep/pht", "<i>rates"}
        assert all("<svg" in place.drawn for place in running[:2])
        pages = Pages(folder)
        assert all("data-every" in str(pages.page(place.name)) for place in running[:2])
        assert "Running now" in pages.overview()
    assert "data-every" not in str(pages.page("deep/pht"))
    steps = Run(run).config.train.steps
    assert states()["deep/pht"] == ("finished" if steps <= 1 else "interrupted")
    append_line(run / "metrics.jsonl", {"step": steps, "loss": 3.0, "seconds": 5.0})
    (search / "best.json").write_text("{}")
    assert (states()["deep/pht"], states()["<i>rates"]) == ("finished", "finished")


def test_a_page_is_made_anew_when_its_files_change(folder):
    pages = Pages(folder)
    first = pages.page("<i>rates")
    assert pages.page("<i>rates") is first and pages.page("none") is None
    run = folder / "deep" / "pht"
    before = stamp(run)
    (run / "evaluation" / "data" / "test").mkdir(parents=True)
    (run / "evaluation" / "data" / "test" / "table.json").write_text("{}")
    assert stamp(run) != before
    append_line(folder / "<i>rates" / RECORD, reported(1070.0, "b", 30, 1.25))
    assert "1.2500" in str(pages.page("<i>rates")) and "1.2500" not in str(first)


def test_of_a_long_training_few_lines_are_held(folder, monkeypatch):
    run = Run(folder / "deep" / "pht")
    lines = [{"step": step, "loss": 5.0, "seconds": 1.0} for step in range(2, 4000)]
    lines.insert(1003, {"step": 1004, "valid_loss": 0.5})
    run.metrics.write_text("".join(json.dumps(line) + "\n" for line in lines))
    monkeypatch.setattr("raysum.report.gather._WHOLE", run.metrics.stat().st_size // 100)
    found = RunRecord(run)
    assert len(found.lines) < 60 and found.step == 3999
    assert found.validations == run.validations() == {1004: 0.5}
    run.metrics.write_text(run.metrics.read_text() + "5\n")
    with pytest.raises(UserError, match="line 4000 is not a JSON object"):
        RunRecord(run)


def test_hundreds_are_listed_and_only_what_changed_is_read_again(folder, monkeypatch):
    for number in range(300):
        shutil.copytree(folder / "<i>rates", folder / "many" / f"search-{number:03}")
    assert len(find_entries(folder)) == 303
    read = []
    monkeypatch.setattr("raysum.report.overview.read_search", lambda *given: read.append(given) or read_search(*given))
    append_line(folder / "many" / "search-007" / RECORD, reported(1070.0, "b", 30, 1.25))
    places = {place.name: place for place in find_entries(folder)}
    assert [path.name for path, _ in read] == ["search-007"] and places["many/search-007"].best == "valid loss 1.25"


def test_a_folder_that_is_missing_and_a_port_that_is_taken_are_one_message(tmp_path):
    with pytest.raises(UserError, match="no folder"):
        board(str(tmp_path / "none"))
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        with pytest.raises(UserError, match=rf"cannot listen on 127.0.0.1 port {port} \(Address already in use"):
            board(str(tmp_path), port=port)


@pytest.mark.slow
@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGTERM])
def test_the_command_serves_until_it_is_stopped(folder, how):
    import httpx

    port = free_port()
    command = Command("board", str(folder), f"port={port}", stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        assert command.process.stderr is not None
        assert command.process.stderr.readline() == f"runs and searches in {folder}: http://127.0.0.1:{port}\n"
        assert command.process.stderr.readline() == "Ctrl-C stops it\n"
        assert set().union(*command.listening().values()) == {"127.0.0.1"}
        with httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=60) as client:  # keeps its connection
            assert "deep/pht" in client.get("/").text
            command.process.send_signal(how)
            out, err = command.process.communicate(timeout=30)
        assert (command.process.returncode, out, err) == (0, "", "stopping\n")
    finally:
        command.kill()


needs_browser = pytest.mark.skipif(BROWSER is None, reason="needs chromium-headless-shell (a Debian package)")


@pytest.mark.slow
@needs_browser
def test_a_browser_shows_the_pages_without_errors_or_requests(tmp_path, search, folder):
    pages = {"search": search_page(read_search(search, running=True)), "board": Pages(folder).overview()}
    with folder_lock(folder / "deep" / "pht", folder / "deep" / "pht" / LOCK):
        pages["running"] = Pages(folder).overview()
    drawn = {name: len(look_everywhere(tmp_path / f"{name}.html", text)["sizes"]) for name, text in pages.items()}
    assert drawn == {"search": 6, "board": 0, "running": 1}


@pytest.mark.slow
@needs_browser
def test_a_page_of_the_board_follows_without_being_loaded_again(folder, tmp_path):
    import uvicorn

    api, asked = build_board_api(folder, local=True), list[str]()

    @api.middleware("http")
    async def move(request, answer):
        answered = await answer(request)
        asked.append(request.headers["sec-fetch-dest"])
        if len(asked) == 1:
            (folder / "deep").rename(folder / "moved")
        return answered

    port = free_port()
    server = uvicorn.Server(uvicorn.Config(api, port=port, log_level="error"))
    thread = threading.Thread(target=server.run)
    thread.start()
    try:
        while not server.started:
            time.sleep(0.01)
        done = browse(f"http://127.0.0.1:{port}/", tmp_path / "profile", "--virtual-time-budget=12000")
    finally:
        server.should_exit = True
        thread.join()
    assert asked[0] == "document" and {*asked[1:]} == {"empty"}  # fetched by the page
    assert "CONSOLE" not in done.stderr and "moved/pht" in done.stdout and "deep/pht" not in done.stdout
