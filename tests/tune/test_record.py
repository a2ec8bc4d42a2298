"""The record of a search and its page: trials in every state, times without pauses, damage; slow: in a browser."""

import json
import threading
import time

import pytest

from helpers.browsing import BROWSER, Page, look
from helpers.factbook_data import write_factbook, write_run
from helpers.searches import HOSTILE, began, over, reported, running_search, write_search, write_tune_results
from raysum.errors import UserError
from raysum.runtime.storage import append_line
from raysum.tune.page import live_page, search_page
from raysum.tune.record import RECORD, RecordWriter, read_search
from raysum.tune.search import tune

DAY = 24 * 3600.0


@pytest.fixture
def search(tmp_path):
    return running_search(tmp_path / "<i>rates")


def test_the_page_shows_trials_in_every_state(search):
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


def test_a_search_with_the_name_of_its_space_has_one_name(tmp_path):
    path = write_search(tmp_path / "rates", began(1.0, "a", 0.0))
    assert read_search(path).name == "rates"


def test_the_page_of_a_stopped_search_is_not_renewed_and_asks_for_nothing(search):
    text = search_page(read_search(search, running=False))
    found = Page(text)
    rows = {cells[0]: cells for cells in found.cells["search"]}
    assert rows["dropout=0.1"][-2] == "stopped" and "repeat its `raysum tune` command" in found.texts["search"]
    assert not any(word in text for word in ("data-every", "refresh", "http://", "https://"))
    assert [own for tag, own in found.tags if {"src", "href"} & own.keys()] == [{"rel": "icon", "href": "data:,"}]


@pytest.mark.parametrize("lines", [[], [began(1.0, "a", 0.0)], [began(1.0, "a", 0.0), reported(2.0, "a", 20, 3.0)]])
def test_the_page_of_a_search_that_has_just_begun(tmp_path, lines):
    search = write_search(tmp_path / "search", {"time": 0.0, "begun": 4}, *lines)
    page = Page(search_page(read_search(search, running=True)))
    assert "0 of 4trials have ended" in page.texts[""] and all(page.marks)


def test_minutes_leave_out_the_time_between_two_sessions(tmp_path, monkeypatch):
    again = 1000.0 + DAY
    lines = [{"time": 1000.0, "begun": 4}, began(1000.0, "a", 0.0), began(1000.0, "b", 0.1)]
    lines += [reported(1120.0, "a", 40, 2.0), over(1120.0, "a"), {"time": again, "begun": 4}]
    lines += [began(again, "b", 0.1), reported(again + 30, "b", 20, 3.0)]
    monkeypatch.setattr(time, "time", lambda: again + 60)
    search = read_search(write_search(tmp_path / "search", *lines), running=True)
    assert (search.began, search.minutes, search.whole) == (2.0, 3.0, 40.0)
    assert {trial.name: trial.state for trial in search.trials} == {"a": "ended", "b": "running"}
    assert search.left is None  # nothing has ended in this session
    append_line(search.path / RECORD, reported(again + 60, "b", 40, 2.5))
    append_line(search.path / RECORD, over(again + 60, "b"))
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
    values = {"model.width": {"grid": [8]}, "model.dropout": {"grid": [0.1, 0.2, 0.3]}}
    line = {"time": 9.0, "trial": "width=8,dropout=0.1", "state": "failed", "error": "new"}
    folder = write_search(
        tmp_path / "search", {**line, "config": {"model.width": 8, "model.dropout": 0.1}}, search=values
    )
    for suffix, dropout in (("_a4d7", 0.1), ("", 0.2)):
        config = {"model.width": 8, "model.dropout": dropout}
        write_tune_results(folder, f"width=8,dropout={dropout}{suffix}", config, error="old")
    config = {"model.width": 8, "model.dropout": 0.3}
    results = [{"valid_loss": 3.0 / step, "step": step, "time_total_s": 30.0 * step} for step in (1, 2)]
    write_tune_results(folder, "width=8,dropout=0.3", config, *results)
    best, *failed = read_search(folder).trials
    assert (best.name, best.state, best.seconds, len(best.reports)) == ("width=8,dropout=0.3", "ended", 60.0, 2)
    assert [(one.name, one.error) for one in failed] == [
        ("width=8,dropout=0.1", "new"),
        ("width=8,dropout=0.2", "old"),
    ]


def test_a_damaged_record_is_named(tmp_path):
    folder = write_search(tmp_path / "search", {"time": "late", "trial": "a"})
    with pytest.raises(UserError, match=f"{RECORD} is damaged at time"):
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


@pytest.mark.long
@pytest.mark.slow
def test_a_search_writes_its_page_while_it_runs_and_at_its_end(tmp_path, ray_session):
    data = write_factbook(tmp_path / "data", {"train": 40, "valid": 10})
    run = write_run(tmp_path / "pht", data, predictor=True)
    space = tmp_path / "some.yaml"
    values = "decode.beta: {grid: [0.0, 0.8]}\n  decode.ranker: {grid: [null, /nowhere]}"
    space.write_text(f"about: x\nkind: decode\nexamples: 6\nsearch:\n  {values}\n")
    file, seen, stopped = tmp_path / "search" / "index.html", list[str](), threading.Event()

    def watch() -> None:
        while not stopped.wait(0.05):
            if file.exists():
                seen.append(file.read_text())

    watcher = threading.Thread(target=watch)
    watcher.start()
    try:
        result = tune(str(space), data=str(data.path), run=str(run.path), out=str(file.parent))
    finally:
        stopped.set()
        watcher.join()
    assert seen and all(text.endswith("</html>\n") for text in seen)  # whole at any time
    assert "data-every" in seen[0] and "of 4</b>" in seen[0]
    last, searched = file.read_text(), read_search(file.parent)
    assert "data-every" not in last and "<b>ended</b>" in last and "no run folder /nowhere" in last
    scores = ({one.name: one.metrics.get("rouge2") for one in trials} for trials in (searched.trials, result.trials))
    assert next(scores) == next(scores)
    RecordWriter().add(file.parent, begun=4)  # it goes on, and ends at once: nothing is lost
    for found in (searched, read_search(file.parent)):
        assert [one.state for one in found.trials] == ["ended", "ended", "failed", "failed"]


AGAIN = """<script>
const folded = document.querySelector("details");
if (history.state) {
  delete document.body.dataset.every;  // else it is never done
  addEventListener("load", () => { document.title = JSON.stringify({open: folded.open, y: Math.round(scrollY)}); });
} else { folded.open = true; scrollTo(0, 300); document.title = "{}"; }
</script>"""


@pytest.mark.slow
@pytest.mark.skipif(BROWSER is None, reason="needs chromium-headless-shell (a Debian package)")
def test_a_page_that_is_loaded_again_keeps_its_place(tmp_path):
    lines = [{"time": 0.0, "begun": 80}]
    for number in range(80):  # so many that some are folded
        lines += [began(0.0, f"{number}", number / 100), reported(9.0, f"{number}", 40, 3.0 + number)]
    text = search_page(read_search(write_search(tmp_path / "search", *lines), running=True))
    text = text.replace("<script>", f"{AGAIN}<script>", 1).replace('every="5"', 'every="0.2"')
    (tmp_path / "page.html").write_text(text)
    found, _, said = look(tmp_path / "page.html", 1280, 1, "--virtual-time-budget=1500")
    assert "CONSOLE" not in said and found == {"open": True, "y": 300}
