"""Progress: one line of each work where stderr is a file, and bytes of known number where sources are read."""

import gzip
import re
import subprocess
import sys
import time

import pytest

from raysum.config.sections import TrainConfig
from raysum.prepare.job import prepare
from raysum.runs.folder import Run
from raysum.runtime.progress import bar, say
from raysum.runtime.storage import append_line, read_lines
from raysum.sources.find import find_sources
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
    with show_progress(run, 0, TrainConfig(steps=10)):
        write(4, 6, 8)
        run.rewind(4)  # as a worker does that goes on from the checkpoint of step 4
        write(5, 7)
    printed = capsys.readouterr().err
    assert "training run: a worker was lost; training resumes from step 4" in printed
    assert re.search(r"70%.* 7/10 .*loss=7.000", printed), printed
    assert [line["step"] for line in read_lines(run.metrics)] == [2, 4, 5, 7]


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
    told = f"{known.size / 1000:.1f}k"
    printed = capsys.readouterr().err
    for label in ("vocabulary", "prepare"):
        assert re.search(rf"{label}: 100%\|#+\| {told}/{told} \[", printed), printed


def test_a_notebook_gets_its_bars_as_output_that_is_no_error(monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "ipykernel", sys)
    with bar(total=1, label="work") as shown:
        shown.update(1)
        say("said")
    printed = capsys.readouterr()
    assert "said\n" in printed.out and "work: 100%" in printed.out and printed.err == ""
