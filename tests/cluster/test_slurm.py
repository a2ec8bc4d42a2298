"""The Slurm script trains, with stand-ins for the commands of Slurm, where no other Ray process is visible."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from helpers.project import ROOT
from helpers.small_datasets import write_dataset
from raysum.runs.folder import Run

SCRIPT = ROOT / "cluster" / "slurm" / "train.sbatch"
JOB = str(os.getpid())
MODEL = ["encoder=L", "decoder=P", "width=16", "ffn=32", "heads=2", "pooling_heads=2"]
TRAIN = ["workers=2", "steps=2", "batch_tokens=100", "save_every=2", "validate_every=2", "threads=1"]
# One host with an address other than loopback; `ray stop` ends all Ray processes that it sees.
HOST = "ip link add here0 type veth peer name here1 && ip addr add 10.84.0.1/24 dev here0 && ip link set here0 up"
COMMANDS = {
    "srun": 'while [[ $1 == --* ]]; do shift; done; exec "$@"',
    "scontrol": "hostname",
}


@pytest.fixture
def slurm(tmp_path: Path):
    """Run the script with arguments as a job of one node."""
    for name, body in COMMANDS.items():
        command = tmp_path / "bin" / name
        command.parent.mkdir(exist_ok=True)
        command.write_text(f"#!/bin/bash\n{body}\n")
        command.chmod(0o755)
    path = f"{tmp_path}/bin:{Path(sys.executable).parent}:{os.environ['PATH']}"
    settings = {name: value for name, value in os.environ.items() if not name.startswith(("RAY", "SLURM"))}
    settings |= {"PATH": path, "HOME": str(tmp_path), "PYTHONPATH": str(ROOT)}
    settings |= {
        "SLURM_JOB_ID": JOB,
        "SLURM_JOB_NODELIST": "here",
        "SLURM_JOB_NUM_NODES": "1",
        "SLURM_CPUS_PER_TASK": "4",
    }
    namespaces = ["unshare", "--net", "--pid", "--mount", "--uts", "--fork", "--kill-child", "--mount-proc"]

    def run(*arguments: str) -> subprocess.CompletedProcess[str]:
        prepare = f"ip link set lo up && {HOST} && exec bash {SCRIPT} " + '"$@"'
        command = [*namespaces, "bash", "-c", prepare, "bash", *arguments]
        return subprocess.run(command, env=settings, cwd=tmp_path, capture_output=True, text=True, timeout=300)

    allowed = subprocess.run([*namespaces, "bash", "-c", HOST], capture_output=True, text=True)
    if allowed.returncode:
        pytest.skip(f"namespaces are not allowed here: {allowed.stderr[:200]}")
    yield run
    shutil.rmtree(f"/tmp/ray-{JOB}", ignore_errors=True)


@pytest.mark.long
@pytest.mark.slow
def test_a_job_trains_and_a_failure_has_an_exit_code(slurm, tmp_path):
    write_dataset(tmp_path / "data", {"train": 60, "valid": 8})
    arguments = ["pht", f"data={tmp_path}/data", f"out={tmp_path}/run"]
    arguments += [f"model.{setting}" for setting in MODEL] + [f"train.{setting}" for setting in TRAIN]
    done = slurm(*arguments)
    assert done.returncode == 0, done.stdout + done.stderr
    assert Run.open(tmp_path / "run").latest().step == 2
    assert (tmp_path / ".ray" / "auth_token").stat().st_mode & 0o777 == 0o600
    assert not list(tmp_path.glob(".raysum-*"))
    failed = slurm(*arguments, "train.stepz=4")
    assert failed.returncode != 0 and "stepz" in failed.stdout + failed.stderr
    assert slurm().returncode == 2
