"""`prepare` killed at random moments and run again: the dataset is the one of a run that was left alone."""

import json
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path
from uuid import uuid4

import psutil
import pytest

from raysum.data.vocabulary import Vocabulary

_MARK = "RAYSUM_TEST_KILLS"  # in the environment of all processes of a run: what is left of it is found by that


def corpus(path: Path, clusters: int, words: int) -> Path:
    draw = random.Random(0)
    texts = [[f"{draw.choice('bcdfg')}{draw.randrange(1000)}" for _ in range(words)] for _ in range(clusters)]
    rows = ({"title": text[0], "documents": [" ".join(text)], "summary": " ".join(text[:9:2])} for text in texts)
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def folder(path: Path) -> dict[str, bytes]:
    return {file.name: file.read_bytes() for file in path.iterdir()}


def wait_until_none_is_left(mark: str, seconds: float = 30) -> float:
    """Seconds until no process has the mark. Fails where some still has it after ``seconds``."""
    began = time.monotonic()
    while left := [process for process in psutil.process_iter() if has(process, mark)]:
        assert time.monotonic() - began < seconds, [process.cmdline()[:3] for process in left]
        time.sleep(0.2)
    return time.monotonic() - began


def has(process: psutil.Process, mark: str) -> bool:
    try:
        return process.environ().get(_MARK) == mark and process.status() != psutil.STATUS_ZOMBIE
    except psutil.Error:
        return False


@pytest.mark.long
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("words", [100, 1100], ids=["in the process", "on Ray"])  # a cluster: 1 MB, 11 MB in all
def test_ten_kills_leave_nothing_that_the_next_run_stumbles_over(tmp_path, words):
    source = corpus(tmp_path / "corpus.jsonl", 2000, words)
    vocabulary = tmp_path / "small.model"
    Vocabulary.train((line[:500] for line in source.read_text().splitlines()), 120, vocabulary)

    def start(out: str, mark: str = "") -> subprocess.Popen:
        command = [sys.executable, "-m", "raysum", "prepare", str(source), "--out", out, "--vocab", str(vocabulary)]
        variables = os.environ | {_MARK: mark}
        return subprocess.Popen(command, cwd=tmp_path, env=variables, stderr=subprocess.DEVNULL, start_new_session=True)

    began = time.monotonic()
    assert start("whole").wait() == 0
    length, draw, unfinished, waits = time.monotonic() - began, random.Random(words), 0, []
    for kill in range(10):
        mark = uuid4().hex
        process = start("data", mark)
        try:
            process.wait(draw.uniform(0.1, 1.0) * length)
        except subprocess.TimeoutExpired:
            parent = psutil.Process(process.pid)
            for victim in [parent, *(parent.children(recursive=True) if kill % 2 else [])]:  # else the driver alone
                try:
                    victim.send_signal(signal.SIGKILL)
                except psutil.NoSuchProcess:
                    continue
            process.wait()
        waits.append(wait_until_none_is_left(mark))
        if (tmp_path / "data").exists():  # it was done before the kill: whole, or not there at all
            assert folder(tmp_path / "data") == folder(tmp_path / "whole")
            (tmp_path / "data").rename(tmp_path / f"done-{kill}")
        unfinished += (tmp_path / ".data.unfinished").exists()
    assert start("data").wait() == 0
    assert folder(tmp_path / "data") == folder(tmp_path / "whole")
    assert not (tmp_path / ".data.unfinished").exists() and unfinished
    print(
        f"{length:.1f} s unkilled; {unfinished} of 10 left an unfinished folder; gone after {max(waits):.1f} s at most"
    )
