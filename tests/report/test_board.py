"""A search's page and the board of a folder: what they tell of what runs, of what failed, and to whom; slow: live."""

import json
import shutil
import signal
import socket
import subprocess
import threading
import time
from pathlib import Path

import pytest
import yaml
from fastapi.testclient import TestClient

from helpers.browsing import BROWSER, Page, browse, look
from helpers.factbook_data import write_factbook, write_run
from helpers.processes import Command, free_port
from raysum.errors import UserError
from raysum.pages.parts import duration
from raysum.report.board import board, build_board_api
from raysum.report.gather import RunRecord
from raysum.report.overview import Pages, find_entries, stamp
from raysum.runs.folder import Run
from raysum.runtime.lock import LOCK, folder_lock, is_held
from raysum.runtime.storage import append_line
from raysum.tune.page import live_page, search_page
from raysum.tune.record import RECORD, RecordWriter, read_search
from raysum.tune.search import tune

HOSTILE = '<script>alert("1")</script>&<b onclick=x>'
HOUR = 3600.0


def write_search(folder: Path, *lines: dict, ended: bool = False, **space) -> Path:
    """A search of dropout rates as it leaves its folder, its record the ``lines``."""
    folder.mkdir(parents=True)
    values = {"grid": [0.0, 0.1, 0.2, HOSTILE]}
    told = {"about": "rates", "kind": "train", "preset": "pht", "metric": "valid_loss"}
    told |= {"search": {"model.dropout": values}, **space}
    content = {"name": "rates", "space": told, "config": {"train": {"steps": 40}}}
    (folder / "search.yaml").write_text(yaml.safe_dump(content, sort_keys=False))
    for line in lines:
        append_line(folder / RECORD, line)
    if ended:
        (folder / "best.json").write_text(json.dumps({"run": "trials/a"}))
    return folder


def began(at: float, name: str, value: object) -> dict:
    return {"time": at, "trial": name, "config": {"model.dropout": value}}


def reported(at: float, name: str, step: int, loss: float) -> dict:
    found = {"valid_loss": loss, "step": step, "parameters": 1000, "train_seconds": 3.0}
    return {"time": at, "trial": name, "metrics": found, "seconds": 4.0}


@pytest.fixture
def search(tmp_path) -> Path:
    """Of four trials one has ended after a minute, one runs, one failed; the last has not begun."""
    return write_search(
        tmp_path / "runs" / "<i>rates",
        {"time": 1000.0, "begun": 4},
        began(1000.0, "a", 0.0),
        began(1000.0, "b", 0.1),
        reported(1030.0, "a", 20, 3.0),
        reported(1040.0, "b", 20, 3.5),
        reported(1060.0, "a", 40, 2.5),
        {"time": 1060.0, "trial": "a", "state": "ended"},
        began(1061.0, "c", HOSTILE),
        {"time": 1062.0, "trial": "c", "state": "failed", "error": f"ValueError: {HOSTILE}"},
    )


def test_the_page_tells_of_trials_in_every_state(search):
    found = Page(search_page(read_search(search, running=True)))
    rows = {cells[0]: cells for cells in found.cells["search"]}
    head = ["trial", "valid loss", "step", "parameters", "training s", "state", "time"]
    assert rows["trial"] == ["trial", "reason"] and found.cells["search"][0] == head
    assert rows["dropout=0"] == ["dropout=0", "2.5000", "40", "1,000", "3", "ended", "4.0 s"]
    assert rows["dropout=0.1"] == ["dropout=0.1", "3.5000", "20", "1,000", "3", "running", "4.0 s"]
    (failed,) = (cells for cells in found.cells["search"] if cells[-1].startswith("ValueError"))
    assert failed[1] == f"ValueError: {HOSTILE}"
    assert "1 of 4trials have ended" in found.texts[""] and "1failed" in found.texts[""]
    assert "1 of them have not started yet" in found.texts["search"]
    assert len(found.marks) == 6 and min(found.marks) > 0
    for title in ("Best so far", "Validation", "Settings and results of the trials"):
        assert title in found.texts["search"]
    assert [tag for tag, own in found.tags if tag == "script" and "onclick" not in own] == ["script", "script"]
    body = next(own for tag, own in found.tags if tag == "body")
    assert body["data-every"] == "5" and ("meta", {"http-equiv": "refresh", "content": "5"}) in found.tags


def test_a_page_of_what_has_ended_is_not_renewed_and_asks_for_nothing(search):
    text = search_page(read_search(search, running=False))
    found = Page(text)
    rows = {cells[0]: cells for cells in found.cells["search"]}
    assert rows["dropout=0.1"][-2] == "stopped" and "repeat its `raysum tune` command" in found.texts["search"]
    assert "data-every" not in text and "refresh" not in text and "http://" not in text and "https://" not in text
    assert [own for tag, own in found.tags if {"src", "href"} & own.keys()] == [{"rel": "icon", "href": "data:,"}]


def test_minutes_leave_out_the_time_between_two_sessions(tmp_path, monkeypatch):
    again = 1000.0 + 24 * HOUR
    lines = [
        {"time": 1000.0, "begun": 4},
        began(1000.0, "a", 0.0),
        began(1000.0, "b", 0.1),
        reported(1120.0, "a", 40, 2.0),
        {"time": 1120.0, "trial": "a", "state": "ended"},
        {"time": again, "begun": 4},
        began(again, "b", 0.1),
        reported(again + 30, "b", 20, 3.0),
    ]
    monkeypatch.setattr(time, "time", lambda: again + 60)
    search = read_search(write_search(tmp_path / "search", *lines), running=True)
    assert (search.began, search.minutes, search.whole) == (2.0, 3.0, 40.0)
    assert {trial.name: trial.state for trial in search.trials} == {"a": "ended", "b": "running"}
    assert search.left is None  # nothing has ended in this session
    append_line(search.path / RECORD, reported(again + 60, "b", 40, 2.5))
    append_line(search.path / RECORD, {"time": again + 60, "trial": "b", "state": "ended"})
    assert read_search(search.path, running=True).left == pytest.approx(2.0)  # one trial a minute, two to come


def test_a_trial_that_begins_again_forgets_what_lies_behind_its_new_beginning(tmp_path):
    lines = [
        {"time": 0.0, "begun": 1},
        began(0.0, "a", 0.0),
        reported(10.0, "a", 10, 4.0),
        reported(20.0, "a", 20, 3.0),
    ]
    lines += [{"time": 30.0, "begun": 1}, began(30.0, "a", 0.0), reported(40.0, "a", 10, 3.9)]
    (trial,) = read_search(write_search(tmp_path / "search", *lines), running=True).trials
    assert [(one.amount, one.metrics["valid_loss"]) for one in trial.reports] == [(10.0, 3.9)]
    (stopped,) = read_search(tmp_path / "search", running=False).trials
    assert (trial.state, stopped.state) == ("running", "stopped")


def test_what_tune_wrote_counts_where_the_record_has_nothing(tmp_path):
    values = {"model.width": {"grid": [8]}, "model.dropout": {"grid": [0.1, 0.2]}}
    line = {"time": 9.0, "trial": "width=8,dropout=0.1", "state": "failed", "error": "new"}
    config = {"model.width": 8, "model.dropout": 0.1}
    folder = write_search(tmp_path / "search", {**line, "config": config}, search=values)
    for name, dropout in (("dropout=0.1_a4d7", 0.1), ("dropout=0.2", 0.2)):
        trial = folder / "tune" / f"width=8,{name}"
        trial.mkdir(parents=True)
        (trial / "params.json").write_text(
            json.dumps({"model.dropout": dropout, "model.width": 8})
        )  # sorted, as by Tune
        (trial / "result.json").touch()
        (trial / "error.txt").write_text("Traceback\nold")
    trials = read_search(folder).trials
    assert [(one.name, one.error) for one in trials] == [("width=8,dropout=0.1", "new"), ("width=8,dropout=0.2", "old")]


def test_a_damaged_record_is_named(tmp_path):
    folder = write_search(tmp_path / "search", {"time": "late", "trial": "a"})
    with pytest.raises(UserError, match=f"{RECORD} is damaged"):
        read_search(folder)


def test_what_a_full_disk_did_not_take_is_written_with_the_next_line(tmp_path):
    record = RecordWriter()
    record.add(tmp_path / "later", trial="a")  # there is no such folder yet
    (tmp_path / "later").mkdir()
    record.add(tmp_path / "later", trial="b")
    assert [json.loads(line)["trial"] for line in (tmp_path / "later" / RECORD).open()] == ["a", "b"]


def test_a_page_that_cannot_be_written_is_told_once_and_stops_nothing(search, capsys):
    (search / "index.html").mkdir()
    with live_page(search):
        time.sleep(0.1)
    assert capsys.readouterr().err.count("cannot be written") == 1


def test_a_search_that_fails_leaves_a_page_that_says_it_stopped(search):
    with pytest.raises(KeyboardInterrupt), live_page(search) as file:
        while not file.exists():
            time.sleep(0.01)
        assert "data-every" in file.read_text()
        raise KeyboardInterrupt
    assert "data-every" not in file.read_text() and "<b>stopped</b>" in file.read_text()


def test_durations_are_whole():
    assert [duration(seconds) for seconds in (59.94, 59.96, 119.7, 3599.8)] == [
        "59.9 s",
        "1 min 0 s",
        "2 min 0 s",
        "1 h 0 min",
    ]


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
    damaged = shutil.copytree(run.path, runs / HOSTILE.replace("/", ""))
    (damaged / "metrics.jsonl").write_text("nonsense\n")
    return runs


@pytest.fixture
def client(folder) -> TestClient:
    return TestClient(build_board_api(folder, local=True), base_url="http://127.0.0.1:8100")


def test_the_board_lists_runs_and_searches_and_names_what_is_damaged(client, folder):
    answer = client.get("/")
    found = Page(answer.text)
    rows = {cells[0]: cells[1:] for cells in found.cells["all"]}
    damaged = HOSTILE.replace("/", "")
    assert rows.keys() == {"folder", "deep/pht", "<i>rates", damaged}
    assert rows["deep/pht"][:1] + rows["deep/pht"][3:] == ["run", "valid loss 2.2500", "valid loss 2.2500", "5.0 s"]
    assert rows["<i>rates"][:3] == ["search", "interrupted", "1 of 4 trials, 1 failed"]
    assert rows[damaged][1] == "damaged" and "line 1 is not a JSON object" in found.texts["damaged"]
    assert "default-src 'none'" in answer.headers["content-security-policy"]
    links = [own["href"] for tag, own in found.tags if tag == "a"]
    codes = {link: client.get(link).status_code for link in links}
    assert sorted(codes.values()) == [200, 200, 422]
    for link in links:
        told = Page(client.get(link).text)
        assert not [tag for tag, own in told.tags if tag in ("b", "i") and "onclick" in own]
    assert "line 1 is not a JSON object" in client.get(next(link for link in links if codes[link] == 422)).text


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


@pytest.mark.long
@pytest.mark.slow
def test_a_search_writes_its_page_while_it_runs_and_at_its_end(tmp_path, ray_session):
    data = write_factbook(tmp_path / "data", {"train": 40, "valid": 10})
    run = write_run(tmp_path / "pht", data, predictor=True)
    space = tmp_path / "some.yaml"
    values = "decode.beta: {grid: [0.0, 0.8]}\n  decode.ranker: {grid: [null, /nowhere]}"
    space.write_text(f"about: x\nkind: decode\nexamples: 6\nsearch:\n  {values}\n")
    file, seen, over = tmp_path / "search" / "index.html", list[str](), threading.Event()

    def watch() -> None:
        while not over.wait(0.05):
            if file.exists():
                seen.append(file.read_text())

    watcher = threading.Thread(target=watch)
    watcher.start()
    try:
        result = tune(str(space), data=str(data.path), run=str(run.path), out=str(file.parent))
    finally:
        over.set()
        watcher.join()
    assert seen and all(text.endswith("</html>\n") for text in seen)  # whole at any time
    assert "data-every" in seen[0] and "of 4</b>" in seen[0]
    last, searched = file.read_text(), read_search(file.parent)
    assert "data-every" not in last and "<b>ended</b>" in last and "no run folder /nowhere" in last
    assert {one.name: one.metrics.get("rouge2") for one in searched.trials} == {
        one.name: one.metrics.get("rouge2") for one in result.trials
    }
    assert [one.state for one in searched.trials] == ["ended", "ended", "failed", "failed"]
    RecordWriter().add(file.parent, begun=4)  # it goes on, and ends at once: nothing is lost
    assert [one.state for one in read_search(file.parent).trials] == ["ended", "ended", "failed", "failed"]


LOOK = """<script>
const sizes = [...document.querySelectorAll("svg")].map((svg) => Math.max(0, ...[...svg.querySelectorAll(".mark")].map(
  (mark) => { const box = mark.getBoundingClientRect(); return Math.max(box.width, box.height); })));
const dark = getComputedStyle(document.body).backgroundColor;
document.title = JSON.stringify({sizes, wide: document.documentElement.scrollWidth - innerWidth, dark});
</script>"""
AGAIN = """<script>
const folded = document.querySelector("details");
if (history.state) {
  delete document.body.dataset.every;  // else it is never done
  addEventListener("load", () => { document.title = JSON.stringify({open: folded.open, y: Math.round(scrollY)}); });
} else { folded.open = true; scrollTo(0, 300); document.title = "{}"; }
</script>"""
needs_browser = pytest.mark.skipif(BROWSER is None, reason="needs chromium-headless-shell (a Debian package)")


@pytest.mark.slow
@needs_browser
def test_a_browser_shows_the_pages_without_errors_or_requests(tmp_path, search, folder):
    made = {"search": search_page(read_search(search, running=True)), "board": Pages(folder).overview()}
    with folder_lock(folder / "deep" / "pht", folder / "deep" / "pht" / LOCK):
        made["running"] = Pages(folder).overview()
    for name, text in made.items():
        file, backgrounds = tmp_path / f"{name}.html", set()
        file.write_text(text.replace("</body>", f"{LOOK}</body>"))
        for width, scheme in ((1280, 1), (1280, 0), (390, 1)):
            found, requests, said = look(file, width, scheme)
            assert "CONSOLE" not in said and not requests, said
            assert all(found["sizes"]) and len(found["sizes"]) == {"search": 6, "board": 0, "running": 1}[name]
            assert found["wide"] <= 0
            backgrounds.add(found["dark"])
        assert len(backgrounds) == 2


@pytest.mark.slow
@needs_browser
def test_a_page_that_is_loaded_again_keeps_its_place(tmp_path):
    lines = [{"time": 0.0, "begun": 80}]
    for number in range(80):  # so many that some are folded
        lines += [began(0.0, f"{number}", number / 100), reported(9.0, f"{number}", 40, 3.0 + number)]
    search = write_search(tmp_path / "search", *lines)
    text = search_page(read_search(search, running=True))
    (tmp_path / "page.html").write_text(
        text.replace("<script>", f"{AGAIN}<script>", 1).replace('every="5"', 'every="0.2"')
    )
    found, _, said = look(tmp_path / "page.html", 1280, 1, "--virtual-time-budget=1500")
    assert "CONSOLE" not in said and found == {"open": True, "y": 300}


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
