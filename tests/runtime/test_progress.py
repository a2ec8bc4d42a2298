"""Progress: one line of each work where stderr is a file, bytes of sources, and the stages of a long command."""

import gzip
import re
import subprocess
import sys
import time
from queue import SimpleQueue

import pytest
import ray

from raysum.config.sections import TrainConfig
from raysum.prepare.job import prepare
from raysum.quickstart import _expected
from raysum.runs.folder import Run
from raysum.runtime.progress import Stages, bar, say, span
from raysum.runtime.storage import append_line, read_lines
from raysum.sources.find import find_sources
from raysum.train.lines import PostedLines, WrittenLines, post_lines
from raysum.train.progress_bar import show_progress

SCRIPT = """
from raysum.runtime.progress import bar, say
with bar(total=3, label="work", unit="step") as shown:
    for number in range(3):
        shown.update(1)
        say(f"said {number}")
for _ in bar([1, 2], label="items"):
    pass
"""


def test_a_file_gets_one_line_of_each_bar_after_what_was_said_meanwhile():
    done = subprocess.run([sys.executable, "-c", SCRIPT], capture_output=True, text=True, check=True)
    lines = [line.strip() for line in done.stderr.splitlines() if line.strip()]
    assert lines[:3] == ["said 0", "said 1", "said 2"]
    assert [line.partition("|")[0] for line in lines[3:]] == ["work: 100%", "items: 100%"]


def test_the_bar_of_a_training_goes_back_with_its_metrics(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr("raysum.train.progress_bar._POLL", 0.01)
    run = Run(tmp_path / "run")
    run.checkpoint_path(4).joinpath("engine").mkdir(parents=True)

    def write(*steps: int) -> None:
        for step in steps:
            append_line(run.metrics, {"step": step, "loss": step, "tokens_per_s": 1.0})
        time.sleep(0.2)

    write(2)
    run.add_event("start", step=2)  # of an earlier command
    with show_progress("training run", WrittenLines(run), 2, TrainConfig(steps=10)):
        run.add_event("start", step=2)
        write(4, 6, 8)
        run.rewind(4)  # as a worker does that goes on from the checkpoint of step 4
        time.sleep(0.1)
        run.add_event("start", step=4)
        write(5, 7)
    printed = capsys.readouterr().err
    assert "training run: workers started again; training resumes from step 4" in printed
    assert re.search(r"70%.* 7/10 .*loss=7.000", printed), printed
    assert [line["step"] for line in read_lines(run.metrics)] == [2, 4, 5, 7]


def test_the_bar_of_a_training_shows_lines_of_another_process_of_ray(tmp_path, ray_session, capsys):
    run, watched = Run(tmp_path), list[dict]()

    @ray.remote
    def work(lines: list[dict]) -> None:
        waiting = SimpleQueue[dict]()
        for line in lines:
            waiting.put({"loss": line["step"], "tokens_per_s": 1.0, **line})
        post_lines("a-token", waiting)
        post_lines("a-token", waiting)  # nothing is left

    def seen(count: int) -> None:
        deadline = time.monotonic() + 20
        while len(watched) < count and time.monotonic() < deadline:
            time.sleep(0.05)

    with show_progress("training run", PostedLines(run, "a-token"), 2, TrainConfig(steps=10), watched.append):
        ray.get(work.remote([{"event": "start", "step": 2}, {"step": 4}, {"step": 6}]))
        seen(2)
        shown = [line["step"] for line in watched]
        slow = {"event": "slow", "step": 6, "message": "host b is slow"}
        ray.get(work.remote([slow, {"event": "start", "step": 4}, {"step": 5}, {"step": 6}]))
        seen(4)
        for step in (1, 4, 5, 6, 7):  # what the store has at the end; the last line was not posted
            append_line(run.metrics, {"step": step, "loss": step, "tokens_per_s": 1.0})
    printed = capsys.readouterr().err
    assert shown == [4, 6] and [line["step"] for line in watched] == [4, 6, 5, 6, 7]
    assert "workers started again; training resumes from step 4" in printed and "host b is slow" in printed
    assert re.search(r"70%.* 7/10 .*loss=7.000", printed), printed


@pytest.mark.parametrize("packed", [False, True])
def test_prepare_knows_how_much_it_will_read(packed, tmp_path, capsys):
    (source,) = find_sources(["samples/train.jsonl"])
    path = tmp_path / ("train.jsonl.gz" if packed else "train.jsonl")
    content = source.path.read_bytes()
    path.write_bytes(gzip.compress(content) if packed else content)
    (known,) = find_sources([path])
    assert packed or known.size == len(content) == sum(record.size for record in known.records())
    result = prepare(path, tmp_path / "data", vocab_size=1000)
    shown = result._repr_mimebundle_()
    assert shown == {"text/plain": result.render() + "\n"} and "rows: 44" in shown["text/plain"]
    told, printed = f"{known.size / 1000:.1f}k", capsys.readouterr().err
    for label in ("vocabulary", "prepare"):
        assert re.search(rf"{label}: 100%\|#+\| {told}/{told} \[", printed), printed


def test_a_notebook_gets_its_bars_as_output_that_is_no_error(monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "ipykernel", sys)
    with bar(total=1, label="work") as shown:
        shown.update(1)
        say("said")
    printed = capsys.readouterr()
    assert "said\n" in printed.out and "work: 100%" in printed.out and printed.err == ""


def test_what_is_left_follows_from_what_was_expected_and_what_it_took():
    stages = Stages({"one": 10, "two": 20, "three": 70})
    assert stages.remaining("one", 0) == 100 and stages.remaining("one", 4) == 96
    assert stages.remaining("one", 30) == pytest.approx(3 * 90)  # three times as slow, so far
    stages.seconds["one"] = 20
    assert stages.remaining("two", 0) == pytest.approx(90 * 40 / 30)
    assert stages.remaining("two", 10) == pytest.approx(90 * 40 / 30 - 10)
    stages.seconds["two"] = 10
    assert stages.remaining("three", 0) == pytest.approx(70) and stages.remaining("three", 100) == 0


def test_what_has_a_fixed_time_takes_it_on_a_slow_machine_too():
    stages = Stages({"prepare": 40, "train": 36, "score": 6}, fixed={"train": 30})
    assert stages.remaining("prepare", 0) == 82
    assert stages.remaining("prepare", 80) == pytest.approx(2 * 6 + 30 + 2 * 6)  # twice as slow
    stages.seconds["prepare"] = 80
    assert stages.remaining("train", 30) == pytest.approx(80 / 46 * 12)
    stages.seconds["train"] = 36
    assert stages.remaining("score", 0) == pytest.approx(6 * 86 / 52)


def test_a_stage_is_announced_and_is_not_silent(capsys):
    stages = Stages({"one": 100, "two": 50}, beat=0.05)
    with stages.stage("one", "the first"):
        time.sleep(0.12)
    said = capsys.readouterr().err
    assert "[1/2] the first (about 2.5 min left)" in said
    assert len(re.findall(r"\[1/2\] running for 0 s, about 2.5 min left in total", said)) == 2
    with pytest.raises(ValueError), stages.stage("two", "the second"):
        raise ValueError
    assert "[2/2] the second (about 8 s left)" in capsys.readouterr().err
    assert 0.12 <= stages.seconds["one"] < 5 and "two" not in stages.seconds


def test_spans_for_people():
    spans = {
        0.4: "0 s",
        89: "89 s",
        90: "1.5 min",
        200: "3.3 min",
        700: "12 min",
        3590: "1 h 0 min",
        4900: "1 h 22 min",
    }
    assert {seconds: span(seconds) for seconds in spans} == spans


def test_a_short_quickstart_is_expected_to_be_short():
    whole, short = _expected(None, 16000, 300), _expected(4, 128, 32)
    assert sum(whole.values()) == pytest.approx(207) and 30 < sum(short.values()) < 80
    assert 10 < short["train"] < 20 and short["corpus"] == 1 and short["search"] == whole["search"]
