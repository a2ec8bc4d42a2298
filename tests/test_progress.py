"""Progress: one line of each work where stderr is a file, and bytes of known number where sources are read."""

import gzip
import re
import subprocess
import sys

import pytest

from raysum.prepare.job import prepare
from raysum.prepare.sources.find import find_sources
from raysum.runtime.progress import bar, say

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


@pytest.mark.parametrize("packed", [False, True])
def test_prepare_knows_how_much_it_will_read(packed, tmp_path, capsys):
    (source,) = find_sources(["samples/train.jsonl"])
    path = tmp_path / ("train.jsonl.gz" if packed else "train.jsonl")
    content = source.path.read_bytes()
    path.write_bytes(gzip.compress(content) if packed else content)
    (known,) = find_sources([path])
    assert packed or known.size == len(content) == sum(record.size for record in known.records())
    result = prepare(path, tmp_path / "data", pieces=1000)
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
