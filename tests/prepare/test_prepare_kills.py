"""`prepare` killed at random moments and run again: the dataset is the one of a run that was left alone."""

import json
import random
import re
import subprocess
import time
from pathlib import Path

import pytest

from helpers.processes import Command
from raysum.tokenizers.sentence_piece import Vocabulary


def corpus(path: Path, clusters: int, words: int) -> Path:
    draw = random.Random(0)
    texts = [[f"{draw.choice('bcdfg')}{draw.randrange(1000)}" for _ in range(words)] for _ in range(clusters)]
    rows = ({"title": text[0], "documents": [" ".join(text)], "summary": " ".join(text[:9:2])} for text in texts)
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def folder(path: Path) -> dict[str, bytes]:
    return {file.name: file.read_bytes() for file in path.iterdir()}


@pytest.mark.long
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("words", [100, 1100], ids=["in the process", "on Ray"])  # a cluster: 1 MB, 11 MB in all
def test_ten_kills_leave_nothing_that_the_next_run_stumbles_over(tmp_path, words):
    source = corpus(tmp_path / "corpus.jsonl", 2000, words)
    vocabulary = tmp_path / "small.model"
    Vocabulary.train((line[:500] for line in source.read_text().splitlines()), 120, vocabulary)

    def start(out: str) -> Command:
        arguments = [str(source), "--out", out, "--vocab", str(vocabulary)]
        return Command("prepare", *arguments, cwd=tmp_path, stderr=subprocess.DEVNULL)

    began = time.monotonic()
    assert start("whole").process.wait() == 0
    length, draw, unfinished, waits = time.monotonic() - began, random.Random(words), 0, []
    for kill in range(10):
        command = start("data")
        command.ended_or_killed(draw.uniform(0.1, 1.0) * length, whole=kill % 2 == 1)
        waits.append(command.wait_until_none_lives())
        if (tmp_path / "data").exists():  # it was done before the kill: whole, or not there at all
            assert folder(tmp_path / "data") == folder(tmp_path / "whole")
            (tmp_path / "data").rename(tmp_path / f"done-{kill}")
        unfinished += (tmp_path / ".data.unfinished").exists()
    assert start("data").process.wait() == 0
    assert folder(tmp_path / "data") == folder(tmp_path / "whole")
    assert not (tmp_path / ".data.unfinished").exists() and unfinished
    print(
        f"{length:.1f} s unkilled; {unfinished} of 10 left an unfinished folder; gone after {max(waits):.1f} s at most"
    )


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_killed_job_keeps_its_finished_shards_and_the_same_command_goes_on(tmp_path):
    """Killed when so many shards are finished: those are not written again, and the dataset is the one of no kill."""
    for number in range(6):
        corpus(tmp_path / f"corpus-{number}.jsonl", 300, 400)  # 0.6 MB: a group of its own
    sources = sorted(map(str, tmp_path.glob("corpus-*")))
    bad = tmp_path / "corpus-2.jsonl"
    bad.write_text(bad.read_text() + "no JSON\n")

    def start(out: str, *more: str) -> Command:
        choices = ["--out", out, "--vocab-size", "120", "--valid", "0.2", *more]
        return Command("prepare", *sources, *choices, cwd=tmp_path, stderr=subprocess.PIPE, text=True)

    assert start("whole").process.wait() == 0
    unfinished, before = tmp_path / ".data.unfinished", dict[str, int]()
    for shards in (1, 5, 10):
        command = start("data")
        while len(finished := [*unfinished.glob("*.done")]) < shards:
            assert command.process.poll() is None, command.process.stderr.read()
            time.sleep(0.001)
        command.kill()
        written = {note.stem: (unfinished / f"{note.stem}.shard").stat().st_mtime_ns for note in finished}
        assert before.items() <= written.items()
        before = written
    (unfinished / f"{min(before)}.npy").write_bytes(b"torn")
    last = start("data")
    told = last.process.communicate()[1]
    assert last.process.returncode == 0 and re.search(r"vocabulary and \d+ finished shards of an earlier start", told)
    assert folder(tmp_path / "data") == folder(tmp_path / "whole")

    command = start("other")
    while not [*tmp_path.glob(".other.unfinished/*.done")]:
        time.sleep(0.001)
    command.kill()
    bad.write_text(bad.read_text()[:-8])
    again = start("other", "--min-words", "7")
    assert "other settings and sources: starting over" in again.process.communicate()[1]
    assert again.process.returncode == 0 and json.loads((tmp_path / "other/manifest.json").read_text())["rows"] == 1800
