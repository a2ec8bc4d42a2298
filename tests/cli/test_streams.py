"""Standard streams that are closed, end early, or cannot encode what is written to them."""

import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from helpers.small_datasets import write_dataset

IN_A_DESTRUCTOR = """
import os, sys, time, typer
from raysum.cli import app


class Last:
    def __del__(self):
        os.kill(os.getpid(), int(sys.argv[1]))
        time.sleep(1)  # the signal comes here


program = typer.Typer()


@program.command(context_settings={"allow_extra_args": True})
def command(number: int):
    Last()
    time.sleep(60)


app.app = program
app.main()
"""
RAYSUM = f"'{sys.executable}' -m raysum"
CHINESE = "佛罗伦萨位于阿诺河畔，是托斯卡纳的首府。大教堂于1436年完工！"


def shell(command: str, folder: Path, **environment: str) -> subprocess.CompletedProcess[bytes]:
    return subprocess.run(
        ["bash", "-o", "pipefail", "-c", command], cwd=folder, env=os.environ | environment, capture_output=True
    )


@pytest.fixture
def folder(tmp_path) -> Path:
    (tmp_path / "é.txt").write_text(CHINESE, encoding="utf-8")
    return tmp_path


@pytest.mark.parametrize(
    ("arguments", "closed"), [("--help", ">&-"), ("summarize lead é.txt", "2>&-"), ("config list", ">&- 2>&- <&-")]
)
def test_a_closed_stream_takes_what_is_written(folder, arguments, closed):
    done = shell(f"{RAYSUM} {arguments} {closed}", folder)
    assert done.returncode == 0 and done.stderr == b""
    assert bool(done.stdout) == (not closed.startswith(">"))


def test_a_file_does_not_take_the_place_of_a_closed_stream(folder):
    pages = list[str]()
    for closed in ("", ">&- 2>&-"):
        assert shell(f"{RAYSUM} summarize lead é.txt --json --html page.html {closed}", folder).returncode == 0
        pages.append(re.sub("<header>.*?·", "", (folder / "page.html").read_text()))  # without the time
    assert pages[0] == pages[1]


def test_a_reader_that_has_read_enough_ends_the_command_quietly(folder):
    (folder / "long.txt").write_text("".join(f"This is the sentence number {n} of many.\n" for n in range(5000)))
    done = shell(f"{RAYSUM} summarize lead long.txt --words 9999 | head -1", folder)
    assert done.returncode in (0, 1) and done.stderr == b"" and done.stdout.count(b"\n") == 1


@pytest.mark.parametrize("arguments", ["config list", "config schema", "data show data", "--help"])
def test_so_does_one_that_has_read_nothing(folder, arguments):
    write_dataset(folder / "data", {"train": 3})
    reader, writer = os.pipe()
    os.close(reader)
    command = [sys.executable, "-m", "raysum", *arguments.split()]
    environment = os.environ | {"PYTHONUNBUFFERED": ""}  # as usual: what is short is written at the end
    done = subprocess.run(command, stdout=writer, stderr=subprocess.PIPE, cwd=folder, env=environment)
    os.close(writer)
    assert (done.returncode, done.stderr) == (1, b"")


@pytest.mark.parametrize("encoding", ["ascii", "ascii:strict"])
def test_what_a_stream_cannot_encode_is_spelled(folder, encoding):
    told = shell(f"{RAYSUM} summarize lead é.txt --json", folder, PYTHONIOENCODING=encoding)
    assert told.stdout.isascii() and json.loads(told.stdout)["summary"] == CHINESE
    shown = shell(f"{RAYSUM} summarize lead é.txt", folder, PYTHONIOENCODING=encoding)
    assert "佛罗伦萨位于阿诺河畔".encode("ascii", "backslashreplace") in shown.stdout
    missing = shell(f"{RAYSUM} summarize lead none-é.txt", folder, PYTHONIOENCODING=encoding)
    assert missing.returncode == 2 and missing.stderr.startswith(b"raysum: ") and b"none-\\xe9" in missing.stderr


@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 143), (signal.SIGINT, 130)])
def test_a_signal_is_not_lost_in_a_destructor(number, code):
    command = [sys.executable, "-c", IN_A_DESTRUCTOR, str(int(number))]
    done = subprocess.run(command, capture_output=True, text=True, timeout=50)
    assert (done.returncode, done.stderr) == (code, "raysum: stopped\n")
