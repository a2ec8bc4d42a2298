"""`prepare` killed at random moments and run again: the dataset is the one of a run that was left alone."""

import json
import random
import subprocess
import time
from pathlib import Path

import pytest
from processes import Command

from raysum.data.vocabulary import Vocabulary


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
