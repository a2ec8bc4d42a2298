"""Trainings on two hosts: network namespaces of this machine with mounts and names of their own, joined by a cable."""

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from helpers.project import ROOT
from helpers.small_datasets import write_dataset
from helpers.small_runs import TRAINING

ADDRESSES = {"hosta": "10.83.0.1", "hostb": "10.83.0.2"}
PORT = 6397
SETTINGS = os.environ | {
    "HOME": "/mnt",
    "RAYSUM_CACHE": "/mnt/cache",
    "RAY_AUTH_MODE": "disabled",
    "PYTHONPATH": str(ROOT),
    "AWS_ENDPOINT_URL": f"http://{ADDRESSES['hosta']}:{PORT + 1}",
    "AWS_ACCESS_KEY_ID": "AKIATEST",
    "AWS_SECRET_ACCESS_KEY": "secret",
    "AWS_DEFAULT_REGION": "us-east-1",
}
MAKE_BUCKET = "import s3fs; s3fs.S3FileSystem().mkdir('runs')"
LIST = "import json, s3fs; print(json.dumps(s3fs.S3FileSystem().find('runs/run/checkpoints')))"


class Host:
    """A namespace in which ``/etc/hosts`` maps the host's own name to 127.0.1.1, and ``/mnt`` is its own disk."""

    def __init__(self, name: str, folder: Path):
        self.name, self.own = name, folder / name
        self.own.mkdir()
        (folder / "hosts").write_text("127.0.0.1 localhost\n127.0.1.1 hosta hostb\n")
        script = (
            f"mount --make-rprivate / && mount --bind {self.own} /mnt && mount --bind {folder}/hosts /etc/hosts && "
            f"hostname {name} && ip link set lo up && echo up && exec sleep 900"
        )
        command = ["unshare", "-n", "-m", "-u", "sh", "-c", script]
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        if self.process.stdout.readline() != "up\n":
            pytest.skip(f"namespaces are not allowed here: {self.process.stderr.read()[:200]}")

    def command(self, *arguments: str) -> list[str]:
        return ["nsenter", "-t", str(self.process.pid), "-n", "-m", "-u", "--wd=/", *arguments]

    def run(self, *arguments: str, seconds: int = 300) -> subprocess.CompletedProcess[str]:
        """``python ARGUMENTS`` on this host."""
        command = self.command(sys.executable, *arguments)
        return subprocess.run(command, env=SETTINGS, capture_output=True, text=True, timeout=seconds)

    def processes(self) -> list[psutil.Process]:
        inside = os.stat(f"/proc/{self.process.pid}/ns/net").st_ino
        found = []
        for process in psutil.process_iter():
            with contextlib.suppress(OSError):
                if os.stat(f"/proc/{process.pid}/ns/net").st_ino == inside:
                    found.append(process)
        return found

    def end(self) -> None:
        for process in self.processes():
            with contextlib.suppress(psutil.NoSuchProcess):
                process.send_signal(signal.SIGKILL)
        self.process.wait()


@pytest.fixture(scope="module")
def hosts(tmp_path_factory) -> Iterator[tuple[Host, Host]]:
    """Two hosts with a Ray cluster of two CPUs each."""
    if os.geteuid() or not all(map(shutil.which, ("unshare", "nsenter", "ip"))):
        pytest.skip("namespaces need root, unshare, nsenter and ip")
    folder, made = tmp_path_factory.mktemp("hosts"), list[Host]()
    try:
        made += [Host(name, folder) for name in ADDRESSES]
        first, second = made
        ways = [["ip", "link", "add", "va", "type", "veth", "peer", "name", "vb"]]
        ways += [["ip", "link", "set", "vb", "netns", str(second.process.pid)]]
        for way in ways:
            subprocess.run(first.command(*way), check=True)
        head, other = f"--head --port={PORT} --include-dashboard=false", f"--address={ADDRESSES['hosta']}:{PORT}"
        for host, link, where in ((first, "va", head), (second, "vb", other)):
            own = ADDRESSES[host.name]
            subprocess.run(host.command("ip", "addr", "add", f"{own}/24", "dev", link), check=True)
            subprocess.run(host.command("ip", "link", "set", link, "up"), check=True)
            options = f"--node-ip-address={own} --num-cpus=2 --object-store-memory=200000000 --disable-usage-stats"
            started = host.run("-m", "ray.scripts.scripts", "start", *where.split(), *options.split())
            assert started.returncode == 0, started.stderr[-2000:]
        yield first, second
    finally:
        for host in made:
            host.end()


@pytest.fixture(scope="module")
def data(tmp_path_factory) -> Path:
    """A dataset, and the config of trainings on it, ``small.yaml`` beside it."""
    folder = tmp_path_factory.mktemp("hosts-data")
    train = {"workers": 2, "save_every": 2, "validate_every": 100, "address": f"{ADDRESSES['hosta']}:{PORT}"}
    config = TRAINING | {"train": TRAINING["train"] | train, "deepspeed": {"zero_optimization": {"stage": 2}}}
    (folder / "small.yaml").write_text(json.dumps(config))
    return write_dataset(folder / "data", {"train": 100})


def train(host: Host, data: Path, out: str, steps: int) -> subprocess.CompletedProcess[str]:
    config = str(data.with_name("small.yaml"))
    return host.run("-m", "raysum", "train", config, f"data={data}", f"out={out}", f"train.steps={steps}")


@pytest.mark.slow
def test_a_folder_that_hosts_do_not_share_is_refused_before_the_first_step(hosts, data):
    done = train(hosts[0], data, "/mnt/run", 2)
    assert done.returncode == 2 and "Traceback" not in done.stderr
    assert "hostb do not see /mnt/run" in done.stderr and "out=" in done.stderr
    assert not [*(hosts[0].own / "run" / "checkpoints").iterdir()] and not (hosts[1].own / "run").exists()


@pytest.mark.long
@pytest.mark.slow
def test_workers_are_spread_over_hosts_that_share_the_folder(hosts, data, tmp_path):
    """Their names lead to 127.0.1.1, where no other host listens."""
    done = train(hosts[0], data, str(tmp_path / "run"), 2)
    assert done.returncode == 0, done.stderr[-2000:]
    (checkpoint,) = (tmp_path / "run" / "checkpoints").iterdir()
    assert len([*(checkpoint / "engine").glob("*optim_states.pt")]) == 2


@pytest.mark.long
@pytest.mark.slow
def test_a_run_on_a_store_has_the_shards_of_all_hosts_and_resumes(hosts, data):
    pytest.importorskip("moto.server")
    first, second = hosts
    server = ["-m", "moto.server", "-H", ADDRESSES["hosta"], "-p", str(PORT + 1)]
    with open(first.own / "server.log", "w") as log:
        subprocess.Popen(first.command(sys.executable, *server), env=SETTINGS, stdout=log, stderr=log)
    deadline = time.monotonic() + 60
    while first.run("-c", MAKE_BUCKET).returncode:
        assert time.monotonic() < deadline, (first.own / "server.log").read_text()
        time.sleep(1)
    done = train(first, data, "s3://runs/run", 2)
    assert done.returncode == 0, done.stderr[-2000:]
    names = json.loads(first.run("-c", LIST).stdout)
    assert len([name for name in names if name.endswith("optim_states.pt")]) == 2
    assert any(name.endswith("step-00000002/checksums.json") for name in names)
    assert not [*second.own.rglob(".partial-*")]
    for host in hosts:  # as from other machines
        shutil.rmtree(host.own / "cache")
    done = train(first, data, "s3://runs/run", 4)
    assert done.returncode == 0 and "resumes from step 2" in done.stderr, done.stderr[-2000:]
    assert any("step-00000004" in name for name in json.loads(first.run("-c", LIST).stdout))
