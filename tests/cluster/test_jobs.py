"""`ray job submit` on a local head with token authentication, as docs/clusters.md says."""

import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import httpx
import psutil
import pytest

from helpers.processes import free_port
from helpers.project import ROOT
from helpers.small_datasets import write_dataset
from raysum.runs.folder import Run

JOB_ENV = ROOT / "cluster" / "job-env.yaml"
RAY = str(Path(sys.executable).parent / "ray")

pytestmark = pytest.mark.timeout(700)


@dataclass
class Head:
    """A Ray head of this test's own, and what a shell needs to reach it."""

    address: str
    environment: dict[str, str]

    def ray(self, *arguments: str, **changes: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [RAY, *arguments], env=self.environment | changes, capture_output=True, text=True, timeout=600
        )


@pytest.fixture(scope="module")
def head() -> Iterator[Head]:
    home = Path(tempfile.mkdtemp(prefix="rs", dir="/tmp"))  # short: Ray's socket paths must fit 107 characters
    dashboard = free_port()
    environment = {name: value for name, value in os.environ.items() if not name.startswith("RAY_")}
    environment |= {"HOME": str(home), "PYTHONPATH": str(ROOT)}  # the token is made there, not in the tester's home
    environment |= {"PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}", "RAY_AUTH_MODE": "token"}
    address = f"http://127.0.0.1:{dashboard}"
    head = Head(address, environment | {"RAY_API_SERVER_ADDRESS": address, "RAY_USAGE_STATS_ENABLED": "0"})
    token = head.ray("get-auth-token", "--generate").stdout.strip()
    (home / ".ray" / "auth_token").chmod(0o600)
    ports = {"port": free_port(), "dashboard-port": dashboard, "dashboard-agent-listen-port": free_port()}
    ports["ray-client-server-port"] = free_port()
    command = [RAY, "start", "--head", "--block", "--num-cpus=4", "--object-store-memory=300000000"]
    command += [f"--temp-dir={home}/t", *(f"--{name}={port}" for name, port in ports.items())]
    with (home / "head.log").open("w") as log:
        process = subprocess.Popen(command, env=head.environment, stdout=log, stderr=log)
    try:
        while not answers(head.address, token):
            assert process.poll() is None, (home / "head.log").read_text()
            time.sleep(0.3)
        yield head
        assert process.poll() is None, (home / "head.log").read_text()
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait(120)
        commands = ((process, process.info["cmdline"] or []) for process in psutil.process_iter(["cmdline"]))
        left = [process for process, words in commands if f"{home}/t" in " ".join(words)]
        for one in left:
            one.kill()
        shutil.rmtree(home, ignore_errors=True)
    assert not left, "the head left processes behind"


def answers(address: str, token: str) -> bool:
    try:
        return httpx.get(f"{address}/api/jobs/", headers={"Authorization": f"Bearer {token}"}).status_code == 200
    except httpx.TransportError:
        return False


@pytest.mark.slow
def test_a_job_without_the_token_is_refused(head: Head):
    refused = head.ray(
        "job", "submit", "--submission-id", "stranger", "--", "python", "-c", "pass", RAY_AUTH_MODE="disabled"
    )
    assert refused.returncode != 0
    assert "401" in refused.stderr or "auth" in refused.stderr.lower()
    assert "stranger" not in head.ray("job", "list").stdout


@pytest.mark.slow
def test_a_submitted_training_runs_on_the_head_and_ends(head: Head, tmp_path: Path):
    write_dataset(tmp_path / "data", {"train": 60, "valid": 8})
    model = ["encoder=L", "decoder=P", "width=16", "ffn=32", "heads=2", "pooling_heads=2"]
    steps = ["workers=2", "steps=4", "batch_tokens=100", "save_every=2", "validate_every=4"]
    training = ["python", "-m", "raysum", "train", "pht", f"data={tmp_path}/data", f"out={tmp_path}/run"]
    training += [f"model.{setting}" for setting in model] + [f"train.{setting}" for setting in steps]
    done = head.ray("job", "submit", "--runtime-env", str(JOB_ENV), "--submission-id", "pht-1", "--", *training)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "Job 'pht-1' succeeded" in head.ray("job", "status", "pht-1").stdout
    run = Run.open(tmp_path / "run")
    assert run.best().step == 4
    assert run.best().state["workers"] == 2
