"""Checkpoints of several processes: written while training continues, complete, and exactly those of their step."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from helpers.gradient_cases import write_datasets, write_start
from helpers.project import ROOT
from helpers.small_trainings import same
from raysum.runtime.checksums import ChecksumFile, checksum, write_tensors
from raysum.train.snapshot import Fragment, Snapshot

SCRIPT = ROOT / "tests" / "helpers" / "checkpoint_rank.py"
CASES = [("PHT", stage, low, True) for stage in (0, 1, 2, 3) for low in (False, True)]  # whether in bf16, in memory
CASES += [("adapters", 2, False, True), ("adapters", 3, True, True), ("PHT", 3, False, False)]


def test_tensors_are_written_as_by_the_library_with_their_checksum(tmp_path):
    tensors: dict[str, Any] = {"b": torch.randn(3, 5), "ä.weight": torch.randn(7).bfloat16(), "none": torch.empty(0)}
    tensors |= {"scalar": torch.tensor(2.5), "ids": torch.arange(3), "flags": torch.tensor([True, False])}
    found = write_tensors(tensors, tmp_path / "ours")
    assert found == checksum(tmp_path / "ours")
    assert same(load_file(tmp_path / "ours"), tensors)
    single = {name: tensor for name, tensor in tensors.items() if tensor.dtype == torch.float32}
    save_file(single, tmp_path / "theirs")
    assert write_tensors(single, tmp_path / "ours") == checksum(tmp_path / "theirs")


def test_a_file_that_cannot_grow_is_the_disks_error_whatever_torch_does(tmp_path):
    file: Any = ChecksumFile(Path("/dev/full") if os.path.exists("/dev/full") else pytest.skip("no /dev/full here"))
    torch.save({"a": torch.randn(1 << 20)}, file)
    with pytest.raises(OSError, match="No space left"):
        file.close()


def test_a_snapshot_is_independent_shares_what_is_shared_and_reuses_its_memory(monkeypatch):
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "1")
    flat, snapshot = torch.arange(10.0), Snapshot()
    state = {"whole": flat, "again": flat, "part": flat[2:4], "list": [{"step": 3}], "size": torch.Size([2])}
    copies, parts = snapshot.take({Path("a"): state}, [Fragment("x", 0, flat[5:8])])
    copied = copies[Path("a")]
    state["list"][0]["step"] = 4
    flat.zero_()
    assert copied["whole"].tolist() == [*range(10)] and copied["part"].tolist() == [2, 3]
    assert copied["again"] is copied["whole"] and copied["list"] == [{"step": 3}] and copied["size"] == state["size"]
    assert parts[0].tensor.tolist() == [5, 6, 7] and parts[0].tensor.data_ptr() == copied["whole"][5:].data_ptr()
    assert copied["part"].untyped_storage().nbytes() == 8, "a file of it is as small as its part"
    flat.fill_(1)
    copies, _ = snapshot.take({Path("a"): state}, [])
    assert copies[Path("a")]["whole"].data_ptr() == copied["whole"].data_ptr() and copied["whole"][9] == 1
    monkeypatch.setattr("raysum.train.snapshot.available_memory", lambda: 10)
    assert Snapshot().take({Path("a"): state}, []) is None


@pytest.fixture(scope="module")
def found(tmp_path_factory) -> dict:
    """The results of two processes."""
    folder = tmp_path_factory.mktemp("checkpoints")
    write_datasets(folder)
    write_start(folder)
    (folder / "cases.json").write_text(json.dumps(CASES))
    environment = os.environ | {"PYTHONPATH": os.pathsep.join([str(ROOT), str(ROOT / "tests")])}
    command = [sys.executable, str(SCRIPT), str(folder)]
    processes = [subprocess.Popen([*command, str(rank), "2"], env=environment) for rank in range(2)]
    try:
        assert [process.wait(500) for process in processes] == [0, 0]
    finally:
        for process in processes:
            process.kill()
    return torch.load(folder / "found.pt")


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("case", CASES)
def test_a_checkpoint_is_that_of_its_step_although_training_continued(found, case):
    result = found[case]
    assert same(load_file(f"{result['path']}/weights.safetensors"), result["weights"])
    assert result["losses"] == result["again"], "resumed from it, training repeats its steps bit by bit"


@pytest.mark.slow
def test_if_one_rank_cannot_write_all_raise_its_error_at_the_next_save(found):
    first, second, *published = found["failed"]
    assert first == "RuntimeError: worker 1 cannot save a checkpoint: [Errno 28] No space left on device"
    assert second == "OSError: [Errno 28] No space left on device" and not published
