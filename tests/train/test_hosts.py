"""Trainings on two hosts: network namespaces of this machine with mounts and names of their own, joined by a cable."""

import contextlib
import json
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest

from helpers.project import ROOT
from helpers.small_datasets import write_dataset
from helpers.small_runs import TRAINING

ADDRESSES = {"hosta": "10.83.0.1", "hostb": "10.83.0.2", "hostc": "10.83.0.3"}
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
    # Ray declares a host that does not answer dead after 15 s; by default after a minute.
    "RAY_health_check_period_ms": "1000",
    "RAY_health_check_timeout_ms": "3000",
}
MAKE_BUCKET = "import s3fs; s3fs.S3FileSystem().mkdir('runs')"
EVENTS = "import sys, s3fs; print(s3fs.S3FileSystem().cat(f'runs/{sys.argv[1]}/events.jsonl').decode())"
LIST = "import json, s3fs; print(json.dumps(s3fs.S3FileSystem().find('runs/run/checkpoints')))"


class Host:
    """A namespace in which ``/etc/hosts`` maps the host's own name to 127.0.1.1, and ``/mnt`` is its own disk."""

    def __init__(self, name: str, folder: Path):
        self.name, self.own = name, folder / name
        self.settings = dict[str, str]()  # further environment variables of what starts on this host
        self.own.mkdir()
        (folder / "hosts").write_text(f"127.0.0.1 localhost\n127.0.1.1 {' '.join(ADDRESSES)}\n")
        script = (
            f"mount --make-rprivate / && mount --bind {self.own} /mnt && mount --bind {folder}/hosts /etc/hosts && "
            f"hostname {name} && ip link set lo up && echo up && exec sleep 14400"
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
        return subprocess.run(command, env=SETTINGS | self.settings, capture_output=True, text=True, timeout=seconds)

    def processes(self) -> list[psutil.Process]:
        inside = os.stat(f"/proc/{self.process.pid}/ns/net").st_ino
        found = []
        for process in psutil.process_iter():
            with contextlib.suppress(OSError):
                if os.stat(f"/proc/{process.pid}/ns/net").st_ino == inside:
                    found.append(process)
        return found

    def kill(self) -> None:
        """Kill all processes of this host, but keep its network."""
        for process in self.processes():
            with contextlib.suppress(psutil.NoSuchProcess):
                if process.pid != self.process.pid:
                    process.send_signal(signal.SIGKILL)

    def end(self) -> None:
        for process in self.processes():
            with contextlib.suppress(psutil.NoSuchProcess):
                process.send_signal(signal.SIGKILL)
        self.process.wait()


def start_ray(host: Host) -> None:
    """Start the head on the first host, or join it."""
    head, other = f"--head --port={PORT} --include-dashboard=false", f"--address={ADDRESSES['hosta']}:{PORT}"
    options = f"{head if host.name == 'hosta' else other} --node-ip-address={ADDRESSES[host.name]}"
    options += " --num-cpus=2 --object-store-memory=200000000 --disable-usage-stats"
    started = host.run("-m", "ray.scripts.scripts", "start", *options.split())
    assert started.returncode == 0, started.stderr[-2000:]


def connect(first: Host, other: Host) -> None:
    """Lay a cable from the switch in the first host to another one."""
    cable = f"link add to-{other.name} type veth peer name net netns {other.process.pid}"
    address = f"addr add {ADDRESSES[other.name]}/24 dev net"
    for way in (cable, f"link set to-{other.name} master switch", f"link set to-{other.name} up"):
        subprocess.run(first.command("ip", *way.split()), check=True)
    for way in (address, "link set net up"):
        subprocess.run(other.command("ip", *way.split()), check=True)


@pytest.fixture(scope="module")
def add_host(tmp_path_factory) -> Iterator[Callable[[], Host]]:
    """Add the next host; each has two CPUs in the Ray cluster of the first."""
    if os.geteuid() or not all(map(shutil.which, ("unshare", "nsenter", "ip"))):
        pytest.skip("namespaces need root, unshare, nsenter and ip")
    folder, made = tmp_path_factory.mktemp("hosts"), list[Host]()

    def add() -> Host:
        made.append(new := Host([*ADDRESSES][len(made)], folder))
        if new is made[0]:
            address = f"addr add {ADDRESSES[new.name]}/24 dev switch"
            for way in ("link add switch type bridge", address, "link set switch up"):
                subprocess.run(new.command("ip", *way.split()), check=True)
        else:
            connect(made[0], new)
        start_ray(new)
        return new

    try:
        yield add
    finally:
        for host in made:
            host.end()


@pytest.fixture(scope="module")
def hosts(add_host) -> tuple[Host, Host]:
    return add_host(), add_host()


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


@pytest.mark.long
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


@pytest.fixture(scope="module")
def store(hosts) -> subprocess.Popen:
    """An object store on the first host, with the bucket ``runs``."""
    pytest.importorskip("moto.server")
    first, _ = hosts
    server = ["-m", "moto.server", "-H", ADDRESSES["hosta"], "-p", str(PORT + 1)]
    with open(first.own / "server.log", "w") as log:
        process = subprocess.Popen(first.command(sys.executable, *server), env=SETTINGS, stdout=log, stderr=log)
    deadline = time.monotonic() + 120
    while first.run("-c", MAKE_BUCKET).returncode:
        assert time.monotonic() < deadline, (first.own / "server.log").read_text()
        time.sleep(1)
    return process


@pytest.mark.long
@pytest.mark.slow
def test_a_run_on_a_store_has_the_shards_of_all_hosts_and_resumes(hosts, store, data):
    first, second = hosts
    done = train(first, data, "s3://runs/run", 2)
    assert done.returncode == 0, done.stderr[-2000:]
    names = json.loads(first.run("-c", LIST).stdout)
    assert len([name for name in names if name.endswith("optim_states.pt")]) == 2
    assert any(name.endswith("step-00000002/checksums.json") for name in names)
    assert not [*second.own.rglob(".partial-*")]
    kept = [file for host in hosts for file in host.own.rglob("step-00000002/engine/*optim_states.pt")]
    assert len(kept) == 1, "each host uploads its shards, and sends none to the first worker"
    for host in hosts:  # as from other machines
        shutil.rmtree(host.own / "cache")
    done = train(first, data, "s3://runs/run", 4)
    assert done.returncode == 0 and "resumes from step 2" in done.stderr, done.stderr[-2000:]
    assert any("step-00000004" in name for name in json.loads(first.run("-c", LIST).stdout))


STEPS = 80
LONG = [f"train.steps={STEPS}", "train.save_every=10", "optim.lr=0.001"]  # rounding errors grow with the rate
READ = """
import json, sys
from raysum.runs.folder import Run
run = Run.open(sys.argv[1])
for checkpoint in run.checkpoints():
    checkpoint.check(*(["engine"] * checkpoint.resumable), "state.json", "weights.safetensors")
print(json.dumps([run.metrics.read_text(), [event.hosts for event in run.events() if event.event == "start"]]))
"""


@pytest.fixture(scope="module")
def whole(hosts, data, tmp_path_factory) -> list[dict]:
    """The metrics of an uninterrupted training in one process."""
    out = tmp_path_factory.mktemp("whole") / "run"
    done = hosts[0].run("-m", "raysum", *arguments(data, str(out)), "train.workers=0")
    assert done.returncode == 0, done.stderr[-2000:]
    return read_metrics(out)


def read_metrics(run: Path) -> list[dict]:
    return [*map(json.loads, (run / "metrics.jsonl").read_text().splitlines())]


def arguments(data: Path, out: str) -> list[str]:
    return ["train", str(data.with_name("small.yaml")), f"data={data}", f"out={out}", *LONG]


def start(host: Host, name: str, *arguments: str) -> subprocess.Popen:
    """Start ``raysum ARGUMENTS`` on a host, with its output in ``NAME.log``."""
    with open(host.own / f"{name}.log", "w") as log:
        command = host.command(sys.executable, "-m", "raysum", *arguments)
        return subprocess.Popen(command, env=SETTINGS, stdout=log, stderr=log)


def wait_for_step(hosts: tuple[Host, ...], run: str, step: int, process: subprocess.Popen) -> None:
    while newest_step(hosts, run) < step:
        assert process.poll() is None, (hosts[0].own / f"{run}.log").read_text()
        time.sleep(0.1)


def wait_for_hosts(first: Host, run: str, count: int, process: subprocess.Popen) -> None:
    """Wait until the run has written a checkpoint on so many hosts."""
    while True:
        assert process.poll() is None, (first.own / f"{run}.log").read_text()
        events = [json.loads(line) for line in first.run("-c", EVENTS, run).stdout.split("\n") if line]
        *_, used = [{*event["hosts"]} for event in events if event["event"] == "start"]
        if len(used) == count and events[-1]["event"] == "checkpoint":
            return
        time.sleep(0.5)


def newest_step(hosts: tuple[Host, ...], run: str) -> int:
    """The last step with a metrics line on the host that has the first worker."""
    files = (file for host in hosts for file in host.own.rglob(f"{run}/metrics.jsonl"))
    return max((int(step) for file in files for step in re.findall(r'"step": (\d+)', file.read_text())), default=0)


def check(host: Host, run: str, whole: list[dict]) -> list[list[str]]:
    """All checkpoints of a run are complete, and its losses are those of ``whole``. Return the hosts of each start."""
    read = host.run("-c", READ, f"s3://runs/{run}")
    assert read.returncode == 0, read.stderr[-2000:]
    lines, started = json.loads(read.stdout.splitlines()[-1])
    losses = {line["step"]: line["loss"] for line in map(json.loads, lines.splitlines()) if "loss" in line}
    assert losses == pytest.approx({line["step"]: line["loss"] for line in whole if "loss" in line}, rel=1e-5)
    return started


def said(host: Host, run: str) -> str:
    """The messages of a command."""
    return (host.own / f"{run}.log").read_text()


@pytest.mark.long
@pytest.mark.slow
@pytest.mark.timeout(4 * 3600)
def test_a_training_ends_without_a_host_that_is_cut_off(hosts, store, data, whole):
    """RAYSUM_CUTS times (1), with ZeRO-3 in each second one: the cable is cut after a random step, and the host joins
    again for the next training."""
    first, second = hosts
    moments = random.Random(int(os.environ.get("RAYSUM_SEED", 1)))
    for number in range(int(os.environ.get("RAYSUM_CUTS", 1))):
        run, step, began = f"cut-{number}-{os.getpid()}", moments.randrange(1, STEPS - 10), time.monotonic()
        stage = f"deepspeed.zero_optimization.stage={2 + number % 2}"
        sizes = ("train.workers=2..4", "train.cpus_per_worker=0.75", stage)
        process = start(first, run, *arguments(data, f"s3://runs/{run}"), *sizes)
        wait_for_step(hosts, run, step, process)
        subprocess.run(second.command("ip", "link", "set", "net", "down"), check=True)
        cut = time.monotonic()
        assert process.wait(500) == 0, said(first, run)
        ended = time.monotonic()
        assert "training continues with 2 workers with 0.75 CPUs each (before: 4)" in said(first, run)
        # The event of the first start is lost with its host, if no checkpoint of that host was uploaded.
        assert [*map(sorted, check(first, run, whole))][-1] == ["hosta", "hosta"]
        print(
            f"cut {number} after step {step}: {cut - began:.0f} s before and {ended - cut:.0f} s after it", flush=True
        )
        second.kill()
        subprocess.run(second.command("ip", "link", "set", "net", "up"), check=True)
        start_ray(second)


@pytest.mark.long
@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_a_store_that_does_not_answer_for_a_minute_delays_a_training_only(hosts, store, data, whole):
    first, _ = hosts
    process = start(first, "paused", *arguments(data, "s3://runs/paused"))
    wait_for_step(hosts, "paused", 15, process)
    (server,) = [each for each in first.processes() if "moto.server" in each.cmdline()]
    server.suspend()
    time.sleep(60)
    server.resume()
    assert process.wait(600) == 0, (first.own / "paused.log").read_text()
    assert len(check(first, "paused", whole)) == 1


@pytest.mark.long
@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_a_slow_host_is_reported_by_name(hosts, data, tmp_path):
    """Its worker does not run in most of the time."""
    first, second = hosts
    out = tmp_path / "run"
    process = start(first, "slow", *arguments(data, str(out)), "train.steps=100000")
    while "slow" not in (events := (out / "events.jsonl").read_text() if (out / "events.jsonl").exists() else ""):
        assert process.poll() is None, (first.own / "slow.log").read_text()
        for worker in [each for each in second.processes() if "RayTrainWorker" in " ".join(each.cmdline())]:
            worker.suspend()
            time.sleep(0.4)
            worker.resume()
        time.sleep(0.1)
    shown = first.run("-m", "raysum", "status", str(out))
    assert re.search("slow host +worker . on hostb computes", shown.stdout), (shown.stdout, events)
    process.terminate()
    assert process.wait(120) == 128 + signal.SIGTERM
    assert "on hostb computes" in (first.own / "slow.log").read_text()


@pytest.mark.long
@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_after_a_restart_of_the_head_the_same_command_continues(hosts, store, data, whole):
    first, second = hosts
    command = arguments(data, "s3://runs/headless")
    process = start(first, "headless", *command)
    wait_for_step(hosts, "headless", 25, process)
    for each in first.processes():
        if each.name() in ("gcs_server", "raylet"):
            each.kill()
    code, message = process.wait(300), said(first, "headless")
    assert code == 2 and "Traceback" not in message and message.count("raysum: ") == 1, (code, message)
    second.kill()
    for each in first.processes():
        if each.pid not in (first.process.pid, store.pid) and "moto.server" not in each.cmdline():
            each.kill()
    for host in hosts:
        start_ray(host)
    process = start(first, "headless", *command)
    assert process.wait(600) == 0, (first.own / "headless.log").read_text()
    message = said(first, "headless")
    assert re.search("resumes from step [2-8]0", message) and "started again" not in message
    check(first, "headless", whole)


# Three workers share six micro-batches; with 1.5 CPUs for a worker, each host holds one.
BY_THREE = ("train.micro_batches=6", "train.cpus_per_worker=1.5", "train.save_every=5", "optim.lr=0.0003")


@pytest.fixture(scope="module")
def alone(hosts, data, tmp_path_factory) -> list[dict]:
    """The metrics of an uninterrupted training in one process with six micro-batches."""
    out = tmp_path_factory.mktemp("alone") / "run"
    done = hosts[0].run("-m", "raysum", *arguments(data, str(out)), *BY_THREE, "train.steps=120", "train.workers=0")
    assert done.returncode == 0, done.stderr[-2000:]
    return read_metrics(out)


@pytest.mark.long
@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_a_training_continues_on_two_one_three_and_two_hosts(hosts, add_host, store, data, alone):
    """It runs on one host after the second is killed, on three after that and a new one join, then one is killed."""
    first, second = hosts
    command = (*arguments(data, "s3://runs/elastic"), *BY_THREE, "train.steps=120", "train.workers=1..3")
    process = start(first, "elastic", *command)
    wait_for_step(hosts, "elastic", 12, process)
    second.kill()
    wait_for_hosts(first, "elastic", 1, process)
    start_ray(second)
    third = add_host()
    wait_for_hosts(first, "elastic", 3, process)
    third.kill()
    assert process.wait(600) == 0, (first.own / "elastic.log").read_text()
    assert [len({*used}) for used in check(first, "elastic", alone)] in ([2, 1, 3, 2], [2, 1, 2, 3, 2])
    start_ray(third)


@pytest.mark.long
@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_a_run_resumes_on_two_one_three_and_two_hosts(hosts, store, data, alone):
    """After the test before, which leaves three hosts."""
    for number, workers in enumerate((2, 1, 3, 2), 1):
        sizes = (*BY_THREE, f"train.steps={number * 30}", f"train.workers={workers}")
        done = hosts[0].run("-m", "raysum", *arguments(data, "s3://runs/resumed"), *sizes)
        assert done.returncode == 0, done.stderr[-2000:]
    assert [len({*used}) for used in check(hosts[0], "resumed", alone)] == [2, 1, 3, 2]


@pytest.mark.long
@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_a_clock_that_is_a_minute_ahead_on_one_host_changes_nothing(hosts, store, data, whole, tmp_path):
    if not shutil.which("gcc"):
        pytest.skip("the library that moves a clock needs gcc")
    first, second = hosts
    library, source = tmp_path / "clock.so", ROOT / "tests" / "helpers" / "clock_ahead.c"
    subprocess.run(["gcc", "-shared", "-fPIC", "-o", str(library), str(source), "-ldl"], check=True)
    second.kill()
    second.settings["LD_PRELOAD"] = str(library)
    try:
        assert float(second.run("-c", "import time; print(time.time())").stdout) - time.time() > 50
        start_ray(second)
        process = start(first, "ahead", *arguments(data, "s3://runs/ahead"), "train.placement=spread")
        wait_for_step(hosts, "ahead", 15, process)
        for host in hosts:
            check_status(host, "s3://runs/ahead")
        assert process.wait(600) == 0, said(first, "ahead")
        assert [*map(sorted, check(first, "ahead", whole))] == [["hosta", "hostb"]]
        for host in hosts:
            check_status(host, "s3://runs/ahead")
    finally:
        second.settings.clear()
        second.kill()
        start_ray(second)


def check_status(host: Host, run: str) -> None:
    """`raysum status` shows times that are not negative, and that a minute between clocks explains."""
    shown = host.run("-m", "raysum", "status", run, "--json")
    assert shown.returncode == 0, shown.stderr[-2000:]
    status = json.loads(shown.stdout)
    times = [status[name] for name in ("checkpoint_age", "seconds_left") if status.get(name) is not None]
    assert times and all(0 <= each < 900 for each in times) and status["failure"] is None, status
