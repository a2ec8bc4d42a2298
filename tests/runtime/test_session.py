"""A Ray of our own: who can reach it, what is left of it, what is said where it does not start, and interrupts."""

import json
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from contextlib import suppress
from pathlib import Path

import psutil
import pytest
import ray

import raysum
from helpers.processes import LOOPBACK
from helpers.small_datasets import write_dataset
from helpers.teaching_server import teaching
from raysum.config.loading import load_config
from raysum.errors import UserError
from raysum.runtime.processes import interruptible
from raysum.runtime.session import delayed_signals, make_ready, temporary_folder
from raysum.train.fit import fit

on_linux = pytest.mark.skipif(sys.platform != "linux", reason="Ray takes TMPDIR on Linux")


@pytest.mark.slow
@on_linux
def test_a_training_is_heard_by_this_machine_only_and_leaves_nothing(tmp_path, with_dashboard):
    data, home = write_dataset(tmp_path / "data", {"train": 40, "valid": 6}), tmp_path / "home"
    home.mkdir()
    small = ["model.width=16", "model.heads=2", "model.pooling_heads=2", "model.encoder=L", "model.decoder=P"]
    small += ["train.workers=2", "train.micro_batches=2", "train.steps=40", "train.save_every=40"]
    temporary = Path(os.environ.get("TMPDIR", "/tmp"))
    command = [sys.executable, "-m", "raysum", "train", "pht", f"data={data}", f"out={tmp_path / 'run'}", *small]
    training = psutil.Popen(command, env=os.environ | {"HOME": str(home)})
    found: dict[str, set[str]] = {}
    folders, modes = set(), set()
    while training.poll() is None:
        for process in [training, *training.children(recursive=True)]:
            with suppress(psutil.Error):
                for one in process.net_connections("inet"):
                    if one.status == psutil.CONN_LISTEN:
                        found.setdefault(process.name(), set()).add(one.laddr.ip)
                folders |= set(re.findall(rf"({temporary}/raysum-\w+)/ray/session_", " ".join(process.cmdline())))
        with suppress(FileNotFoundError):  # removed meanwhile
            modes |= {Path(folder).stat().st_mode & 0o777 for folder in folders}
        time.sleep(0.5)  # the look itself takes much of a core
    assert training.returncode == 0
    assert {"raylet", "gcs_server", "ray::RayTrainWorker", "ray::DashboardAgent"} <= {name[:20] for name in found}
    assert set.union(*found.values()) <= LOOPBACK, found
    assert modes == {0o700} and len(folders) == 1 and not Path(*folders).exists(), folders
    assert (home / ".ray" / "auth_token").stat().st_mode & 0o777 == 0o600


SESSION = """
import sys
from raysum.runtime import session
from raysum.runtime.compat import dashboard, session_folder

first, session.free_port = session.free_port, lambda port: int(sys.argv[1]) if port == 8265 else first(port)
try:
    with session.ray_session(cpus=1):
        print(dashboard(), session_folder())
        raise RuntimeError("a fault")
except RuntimeError:
    pass
"""


def printed(program: str, *arguments: str) -> str:
    """What a program prints that ends well."""
    command = [sys.executable, "-c", program, *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=240)
    assert done.returncode == 0 and done.stderr == "", done.stderr
    return done.stdout


@pytest.mark.slow
def test_a_port_that_another_took_meanwhile_is_left_to_it_and_a_fault_leaves_logs(with_dashboard):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        where, folder = printed(SESSION, str(port)).split()
    assert re.fullmatch(r"http://127.0.0.1:\d+", where) and not where.endswith(f":{port}")
    assert (Path(folder) / "logs").is_dir()


SLOW = """
import sys, psutil
from ray._private import services
from raysum.errors import UserError
from raysum.runtime.session import ray_session

def never(*given):  # as when the machine is so busy that the node is not known after 30 seconds
    raise RuntimeError("not yet")

import time
services.get_node, clock = never, time.monotonic
time.monotonic = lambda: clock() * 10
try:
    with ray_session(cpus=1):
        pass
except UserError as error:
    print(error)
print(len(psutil.Process().children(recursive=True)))
"""


@pytest.mark.slow
def test_a_ray_that_does_not_start_in_time_is_one_message_and_is_stopped():
    said, left = printed(SLOW).splitlines()
    assert said.startswith("Ray did not start on this machine (The current node timed out during startup")
    assert "logs are in" in said and left == "0"
    assert "train.workers" not in said  # a setting of training alone


@pytest.fixture
def no_session(monkeypatch):
    """Let raysum start Ray itself, although another test of this process may have a session."""
    monkeypatch.setattr(ray, "is_initialized", lambda: False)


@on_linux
@pytest.mark.parametrize("verb", ["prepare", "teach"])
def test_without_ray_one_process_does_the_work(tmp_path, monkeypatch, capsys, no_session, verb):
    rows = [{"title": f"Town {n}", "documents": [f"Town {n} has a river and {n} bridges."]} for n in range(40)]
    (tmp_path / "towns.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    monkeypatch.setattr(f"raysum.{verb}.job._SMALL", 0)  # as if these were gigabytes
    with teaching() as server:
        monkeypatch.setenv("TMPDIR", "/" + "x" * 60)
        if verb == "prepare":
            made = raysum.prepare(tmp_path / "towns.jsonl", tmp_path / "data", vocab_size=60)
            assert made.dataset.rows("train") == 40
        else:
            assert raysum.teach(tmp_path / "towns.jsonl", tmp_path / "taught.jsonl", server.url, "tiny").taught == 40
    told = capsys.readouterr().err
    assert told.count("one process does the work, without Ray: TMPDIR=") == 1 and "train.workers" not in told


@on_linux
@pytest.mark.parametrize(
    ("folder", "words"), [("/none", "No such file"), ("/" + "x" * 60, "too long a path"), ("/dev/null", "Not a")]
)
def test_a_training_names_tmpdir_where_ray_cannot_use_it_and_makes_no_run(
    tmp_path, monkeypatch, no_session, folder, words
):
    data = write_dataset(tmp_path / "data", {"train": 4, "valid": 2})
    monkeypatch.setenv("TMPDIR", folder)
    with pytest.raises(UserError, match=f"TMPDIR=.*{words}"):
        fit(load_config("pht", [f"data={data}", f"out={tmp_path / 'run'}"]))
    assert not (tmp_path / "run").exists()
    make_ready("train", address="127.0.0.1:1")  # another machine has its own
    monkeypatch.delenv("TMPDIR")
    assert temporary_folder() == "/tmp"


@pytest.mark.parametrize("threads", [0, 2])
def test_an_interrupt_waits_for_the_end_and_what_starts_meanwhile_never_sees_it(threads):
    stopped, ended = threading.Event(), False
    for _ in range(threads):  # the signal may go to any of them
        threading.Thread(target=stopped.wait).start()
    masks = "import re; print(re.search('SigBlk:\\t(.*)', open('/proc/self/status').read())[1])"
    with pytest.raises(KeyboardInterrupt), delayed_signals():
        os.kill(os.getpid(), signal.SIGINT)
        blocked = int(subprocess.run([sys.executable, "-c", masks], capture_output=True, check=True).stdout, 16)
        time.sleep(0.1)
        ended = True
    stopped.set()
    assert ended and blocked >> (signal.SIGINT - 1) & 1
    with delayed_signals():  # and without one nothing happens
        pass
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_so_does_sigterm_whatever_handler_ray_puts_meanwhile(capsys):
    def terminate(*_: object) -> None:
        raise KeyboardInterrupt

    before, ended = signal.signal(signal.SIGTERM, terminate), False
    try:
        with pytest.raises(KeyboardInterrupt), delayed_signals():
            ray._private.utils.set_sigterm_handler(lambda *_: sys.exit(15))
            os.kill(os.getpid(), signal.SIGTERM)
            time.sleep(0.1)
            ended = True
        assert ended and signal.getsignal(signal.SIGTERM) is terminate
        assert capsys.readouterr().err == "stopping, as soon as Ray has started\n"
    finally:
        signal.signal(signal.SIGTERM, before)


def test_an_interrupt_ends_the_wait_for_code_that_hears_none():
    with pytest.raises(ValueError, match="its own"):
        interruptible(lambda: int("its own"))
    began, process = time.monotonic(), os.getpid()
    threading.Timer(0.2, os.kill, (process, signal.SIGINT)).start()
    with pytest.raises(KeyboardInterrupt):
        interruptible(threading.Event().wait, 30)
    assert time.monotonic() - began < 10
