"""A Ray of our own: who can reach it, what is left of it, and what is said where it does not start."""

import glob
import json
import os
import re
import socket
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

import psutil
import pytest
import ray

import raysum
from helpers.small_datasets import write_dataset
from helpers.teaching_server import teaching
from raysum.config.loading import load_config
from raysum.errors import UserError
from raysum.runtime import local
from raysum.runtime.session import make_ready
from raysum.train.fit import fit

LOOPBACK = {"0100007F", "0000000000000000FFFF00000100007F", "00000000000000000000000001000000"}  # as in /proc/net/tcp*


def listening(family: list[psutil.Process]) -> dict[str, str]:
    """Addresses (hexadecimal, with the port) on which the processes listen, and what they are."""
    sockets = {}
    for process in family:
        for descriptor in glob.glob(f"/proc/{process.pid}/fd/*"):
            try:
                sockets[os.readlink(descriptor)] = process.name()
            except (OSError, psutil.Error):  # gone meanwhile
                continue
    rows = [line.split() for kind in ("tcp", "tcp6") for line in Path(f"/proc/net/{kind}").read_text().splitlines()[1:]]
    return {row[1]: sockets[f"socket:[{row[9]}]"] for row in rows if row[3] == "0A" and f"socket:[{row[9]}]" in sockets}


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_a_training_is_heard_by_this_machine_only_and_leaves_nothing(tmp_path, with_dashboard):
    data, home = write_dataset(tmp_path / "data", {"train": 40, "valid": 6}), tmp_path / "home"
    home.mkdir()
    small = ["model.width=16", "model.heads=2", "model.pooling_heads=2", "model.encoder=L", "model.decoder=P"]
    command = [sys.executable, "-m", "raysum", "train", "pht", f"data={data}", f"out={tmp_path / 'run'}", *small]
    temporary = Path(os.environ.get("TMPDIR", "/tmp"))
    process = subprocess.Popen(
        [*command, "train.workers=2", "train.micro_batches=2", "train.steps=40", "train.save_every=40"],
        env=os.environ | {"HOME": str(home)},
    )
    found: dict[str, str] = {}
    folders, modes = set(), set()
    while process.poll() is None:
        family = [psutil.Process(process.pid), *psutil.Process(process.pid).children(recursive=True)]
        found |= listening(family)
        for one in family:
            with suppress(psutil.Error):
                folders |= set(re.findall(rf"({temporary}/raysum-\w+)/ray/session_", " ".join(one.cmdline())))
        with suppress(FileNotFoundError):  # removed meanwhile
            modes |= {Path(folder).stat().st_mode & 0o777 for folder in folders}
        time.sleep(0.1)
    assert process.returncode == 0
    assert {"raylet", "gcs_server", "ray::RayTrainWorker", "ray::DashboardAgent"} <= {n[:20] for n in found.values()}, (
        found
    )
    assert not {where: who for where, who in found.items() if where.partition(":")[0] not in LOOPBACK}
    assert modes == {0o700} and len(folders) == 1 and not Path(*folders).exists(), folders
    assert (home / ".ray" / "auth_token").stat().st_mode & 0o777 == 0o600


SESSION = """
import sys
from raysum.runtime import local
from raysum.runtime.compat import dashboard, session_folder
from raysum.runtime.session import ray_session

first, local._free_port = local._free_port, lambda port: int(sys.argv[1]) if port == 8265 else first(port)
try:
    with ray_session(cpus=1):
        print(dashboard(), session_folder())
        if sys.argv[2:]:
            raise RuntimeError("a fault")
except RuntimeError:
    pass
"""


@pytest.mark.slow
def test_a_port_that_another_took_meanwhile_is_left_to_it_and_a_fault_leaves_logs(with_dashboard):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        done = subprocess.run(
            [sys.executable, "-c", SESSION, str(port), "fail"], capture_output=True, text=True, timeout=240
        )
    assert done.returncode == 0 and done.stderr == "", done.stderr
    where, folder = done.stdout.split()
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
    done = subprocess.run([sys.executable, "-c", SLOW], capture_output=True, text=True, timeout=240)
    assert done.returncode == 0 and done.stderr == "", done.stderr
    said, left = done.stdout.splitlines()
    assert said.startswith("Ray did not start on this machine (The current node timed out during startup")
    assert "logs are in" in said and left == "0"
    assert "train.workers" not in said  # a setting of training alone


@pytest.fixture
def no_session(monkeypatch):
    """Let raysum start Ray itself, although another test of this process may have a session."""
    monkeypatch.setattr(ray, "is_initialized", lambda: False)


@pytest.mark.skipif(sys.platform != "linux", reason="Ray takes TMPDIR on Linux")
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


@pytest.mark.skipif(sys.platform != "linux", reason="Ray takes TMPDIR on Linux")
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
    local.check_temporary()
