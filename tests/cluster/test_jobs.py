"""`ray job submit` on a local head with token authentication, as docs/clusters.md says."""

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest
import yaml

from helpers.processes import free_port
from helpers.project import ROOT
from raysum.runs.folder import Run

JOB_ENV = ROOT / "cluster" / "job-env.yaml"
RAY = str(Path(sys.executable).parent / "ray")

pytestmark = pytest.mark.timeout(900)


@dataclass
class Head:
    """A Ray head of this test's own, and what a shell needs to reach it."""

    address: str
    environment: dict[str, str]

    def ray(self, *arguments: str, **changes: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [RAY, *arguments], env=self.environment | changes, capture_output=True, text=True, timeout=600
        )

    def submit(self, *arguments: str, wait: bool = True) -> str:
        """Submit a raysum command with the job file; return the name of the job."""
        name = f"{arguments[0]}-1"
        options = ["--runtime-env", str(JOB_ENV), "--submission-id", name, *([] if wait else ["--no-wait"])]
        done = self.ray("job", "submit", *options, "--", "python", "-m", "raysum", *arguments)
        assert done.returncode == 0, done.stdout + done.stderr
        if wait:
            assert f"Job '{name}' succeeded" in self.ray("job", "status", name).stdout
        return name

    def wait_for(self, name: str, url: str, **request: Any) -> httpx.Response:
        """The answer to a POST request as soon as the job ``name`` serves."""
        for _ in range(300):
            with contextlib.suppress(httpx.TransportError):
                reply = httpx.post(url, timeout=120, **request)
                if reply.status_code == 200:
                    return reply
            time.sleep(1)
        raise AssertionError(self.ray("job", "logs", name).stdout)


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


SPACE = {
    "about": "width of the beam",
    "kind": "decode",
    "search": {"decode.num_beams": {"grid": [1, 2]}},
    "metric": "rouge2",
    "split": "valid",
    "examples": 2,
}
MODEL = ["encoder=L", "decoder=P", "width=16", "ffn=32", "heads=2", "pooling_heads=2"]
TRAIN = ["workers=2", "steps=4", "batch_tokens=4000", "save_every=2", "validate_every=4", "threads=1"]


@pytest.fixture(scope="module")
def data(head: Head, tmp_path_factory: pytest.TempPathFactory) -> Path:
    data = tmp_path_factory.mktemp("jobs") / "data"
    head.submit("prepare", "samples", "--out", str(data), "--vocab-size", "300", "--address", "auto")
    return data


@pytest.fixture(scope="module")
def run(head: Head, data: Path) -> Path:
    run = data.parent / "run"
    settings = [f"model.{setting}" for setting in MODEL] + [f"train.{setting}" for setting in TRAIN]
    head.submit("train", "pht", f"data={data}", f"out={run}", *settings)
    return run


@pytest.mark.slow
def test_submitted_jobs_prepare_train_tune_and_serve(head: Head, data: Path, run: Path, tmp_path: Path):
    search = tmp_path / "search"
    assert Run.open(run).best().step == 4
    assert Run.open(run).best().state["workers"] == 2
    (tmp_path / "beams.yaml").write_text(yaml.safe_dump(SPACE))
    head.submit("tune", f"{tmp_path}/beams.yaml", f"run={run}", f"data={data}", f"out={search}", "decode.max_length=8")
    assert json.loads((search / "best.json").read_text())["config"]["decode.num_beams"] in (1, 2)
    port = str(free_port())
    name = head.submit("serve", str(run), "--port", port, "--address", "auto", "--set", "max_length=8", wait=False)
    reply = head.wait_for(name, f"http://127.0.0.1:{port}/v1/summarize", json={"documents": ["One. Two.", "Three."]})
    assert reply.json()["summary"]
    assert head.ray("job", "stop", name).returncode == 0
    assert f"Job '{name}' was stopped" in head.ray("job", "status", name).stdout


@pytest.mark.long
@pytest.mark.slow
def test_a_submitted_job_evaluates(head: Head, data: Path, run: Path):
    head.submit("evaluate", str(run), "--data", str(data), "--split", "test", "--limit", "2", "--set", "max_length=8")
    (table,) = run.glob("evaluation/*/test-first-2/table.json")
    assert json.loads(table.read_text())["examples"] == 2


@pytest.mark.long
@pytest.mark.slow
def test_a_run_is_served_by_the_configuration_of_kuberay(head: Head, run: Path, tmp_path: Path):
    """As its operator does with the RayService."""
    file = tmp_path / "serve.yaml"
    resource = yaml.safe_load((ROOT / "cluster" / "kuberay" / "serve.yaml").read_text())
    values, port = yaml.safe_load(resource["spec"]["serveConfigV2"]), free_port()
    values["http_options"] = {"host": "127.0.0.1", "port": port}
    (application,) = values["applications"]
    application["args"] = {"run": str(run), "decode": {"max_length": 8}}
    file.write_text(yaml.safe_dump(values))
    serve = [str(Path(RAY).with_name("serve"))]
    deployed = [*serve, "deploy", str(file), "--address", head.address]
    assert subprocess.run(deployed, env=head.environment, capture_output=True, timeout=120).returncode == 0
    url, request = f"http://127.0.0.1:{port}/v1/summarize", {"documents": ["One. Two.", "Three."]}
    try:
        for _ in range(300):
            with contextlib.suppress(httpx.TransportError):
                reply = httpx.post(url, json=request, timeout=120)
                if reply.status_code == 200:
                    break
            time.sleep(0.3)
        assert reply.status_code == 200 and reply.json()["summary"], reply.text
        application["args"]["decode"] = {"max_length": 5}
        file.write_text(yaml.safe_dump(values))
        lengths, statuses = set[int](), set[int]()
        with ThreadPoolExecutor(1) as pool:
            deploying = pool.submit(subprocess.run, deployed, env=head.environment, capture_output=True, timeout=120)
            deadline = time.monotonic() + 120
            while 5 not in lengths and time.monotonic() < deadline:
                answer = httpx.post(url, json=request, timeout=120)
                statuses.add(answer.status_code)
                lengths.add(answer.json().get("usage", {}).get("summary_tokens", 0))
        assert deploying.result().returncode == 0 and statuses == {200} and lengths == {5, 8}
    finally:
        status = subprocess.run(
            [*serve, "status", "--address", head.address], env=head.environment, text=True, capture_output=True
        )
        print(status.stdout)
        stop = [*serve, "shutdown", "--yes", "--address", head.address]
        subprocess.run(stop, env=head.environment, check=True, capture_output=True, timeout=120)
