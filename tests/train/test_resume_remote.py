"""Trainings that resume from a store: each host downloads only the files that its ranks read, each file once.

A host is a cache of its own. The store is moto's server of S3, see tests/runtime/test_remote.py.
"""

import json
import os
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from helpers.gradient_cases import write_datasets
from helpers.project import ROOT
from helpers.remote_store import BUCKET, downloads, server, store  # noqa: F401 - fixtures
from raysum.errors import UserError
from raysum.runs.folder import Run
from raysum.train.checkpoints import newest_sound

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

SCRIPT = ROOT / "tests" / "helpers" / "resume_rank.py"
URL = f"s3://{BUCKET}/runs/pht"
MODEL = "engine/mp_rank_00_model_states.pt"
SHARDS = [f"engine/zero_pp_rank_{rank}_mp_rank_00_optim_states.pt" for rank in range(2)]


def train(folder: Path, stage: int, hosts: list[int], phases: list[tuple[str, int, int]]) -> list[dict[int, float]]:
    """Train on the ``hosts`` of two ranks; return the losses of each phase. See helpers/resume_rank.py."""
    write_datasets(folder)
    (folder / "phases.json").write_text(json.dumps([stage, hosts, phases]))
    for number, (_, world, _) in enumerate(phases):
        processes = [start(folder, number, rank, hosts[rank]) for rank in range(world)]
        try:
            assert [process.wait(300) for process in processes] == [0] * world
        finally:
            for process in processes:
                process.kill()
    found = [json.loads((folder / f"losses-{number}.json").read_text()) for number in range(len(phases))]
    return [{int(step): loss for step, loss in losses.items()} for losses in found]


def start(folder: Path, number: int, rank: int, host: int) -> subprocess.Popen:
    own = {"AWS_ACCESS_KEY_ID": f"HOST{host}"}  # the store sees who downloads
    environment = os.environ | own | {"PYTHONPATH": os.pathsep.join([str(ROOT), str(ROOT / "tests")])}
    return subprocess.Popen([sys.executable, str(SCRIPT), str(folder), str(number), str(rank)], env=environment)


def read(step: int) -> dict[str, Counter]:
    """How often each user has downloaded the large files of the checkpoint of ``step``."""
    found: dict[str, Counter] = {}
    for user, key in downloads:
        _, is_there, name = key.partition(f"step-{step:08d}/")
        if is_there and name not in ("state.json", "checksums.json"):
            found.setdefault(user, Counter())[name] += 1
    return found


@pytest.mark.long
@pytest.mark.parametrize("stage", [2, 3])
def test_each_host_reads_what_its_ranks_need(store, tmp_path, stage):  # noqa: F811
    downloads.clear()
    own = [{MODEL, shard} if stage == 2 else {shard, shard.replace("optim", "model")} for shard in SHARDS]
    phases = [(str(tmp_path / "here"), 2, 8), (URL, 2, 2), (URL, 2, 4), (URL, 1, 6), (URL, 2, 8)]
    whole, *others = train(tmp_path, stage, [0, 1], phases)
    for losses, exact in zip(others, (True, True, False, False), strict=True):
        expected = {step: whole[step] for step in losses}
        assert losses == (expected if exact else pytest.approx(expected, rel=1e-5))
    assert [*others[-1]] == [*range(1, 9)]
    assert read(2) == {f"HOST{rank}": Counter(own[rank]) for rank in range(2)}, "the shard of each rank"
    assert read(4) == {"HOST0": Counter(own[0] | own[1])}, "one worker needs the shards of two"
    single = {name for name in own[0] | own[1] if "rank_1_" not in name}
    assert read(6) == {f"HOST{rank}": Counter(single) for rank in range(2)}, "each host converts the shard of one"


def unavailable(url: str) -> None:
    raise UserError(f"{url} cannot be reached")


def test_ranks_of_one_host_share_downloads_and_incomplete_uploads_do_not_count(store, tmp_path, monkeypatch):  # noqa: F811
    downloads.clear()
    train(tmp_path, 2, [0, 0], [(URL, 2, 2), (URL, 2, 4)])
    assert read(2) == {"HOST0": Counter([MODEL, *SHARDS])}
    run = Run.open(URL)
    assert newest_sound(run).step == 4 and not read(4), "the driver downloads no shard"
    with monkeypatch.context() as patched:
        patched.setattr("raysum.train.checkpoints.listed", unavailable)
        with pytest.raises(UserError, match="cannot be reached"):
            newest_sound(run)
    assert [each.step for each in run.checkpoints()] == [2, 4], "a store that does not answer has no damage"
    shard = f"{BUCKET}/runs/pht/checkpoints/step-00000004/{SHARDS[1]}"
    store.pipe_file(shard, store.cat_file(shard)[:-1])
    assert newest_sound(run).step == 2 and [each.step for each in run.checkpoints()] == [2]
