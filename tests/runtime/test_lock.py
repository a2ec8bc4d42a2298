"""One writer of a folder, one owner of a temporary one: second processes, dead holders, and what is left behind."""

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from helpers.project import ROOT
from helpers.small_datasets import write_dataset
from raysum.errors import UserError
from raysum.runtime.lock import _MARK, LOCK, PrivateFolder, folder_lock, remove_leftovers
from raysum.runtime.storage import check_vacant, new_folder

HOLD = """
import sys
from pathlib import Path
from raysum.runtime.lock import PrivateFolder, folder_lock
if sys.argv[1] == "lock":
    lock = folder_lock(Path(sys.argv[2]), Path(sys.argv[2]) / ".lock")
    lock.__enter__()
    print(flush=True)
else:
    folder = PrivateFolder(sys.argv[2])
    print(folder.path, flush=True)
sys.stdin.read()
"""


@pytest.fixture
def hold():
    """Start processes that hold a lock, or a private folder, whose path they print."""
    processes = []

    def started(what: str, path: Path) -> tuple[subprocess.Popen, Path]:
        command = [sys.executable, "-c", HOLD, what, str(path)]
        processes.append(subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True))
        return processes[-1], Path(processes[-1].stdout.readline().strip())

    yield started
    for process in processes:
        ended(process)


def ended(process: subprocess.Popen) -> None:
    process.kill()
    process.wait()


def test_a_second_process_is_refused_and_told_of_the_first(hold, tmp_path):
    out = tmp_path / "out"
    holder, _ = hold("lock", out)
    with (
        pytest.raises(UserError, match=f"out is being written by process {holder.pid} on .* since 20"),
        folder_lock(out, out / LOCK),
    ):
        pytest.fail("two hold one folder")
    assert json.loads((out / LOCK).read_text())["process"] == holder.pid
    check_vacant(out)  # a lock is nothing that one would write over


def test_the_lock_of_a_dead_process_is_taken_over_and_leaves_nothing(hold, tmp_path):
    out = tmp_path / "out"
    ended(hold("lock", out)[0])
    assert (out / LOCK).exists()
    with folder_lock(out, out / LOCK):
        assert json.loads((out / LOCK).read_text())["process"] == os.getpid()
        (out / "file").touch()
    assert [item.name for item in out.iterdir()] == ["file"]


def test_folders_that_were_made_for_a_lock_alone_go_with_it(tmp_path):
    out = tmp_path / "runs" / "one"
    with pytest.raises(UserError, match="mistake"), folder_lock(out, out / LOCK):
        raise UserError("mistake")
    assert not list(tmp_path.iterdir())


def test_a_folder_in_the_making_is_one_process_own(tmp_path):
    out = tmp_path / "data"
    with new_folder(out) as first:
        (first / "shard").touch()
        with pytest.raises(UserError, match=f"data is being written by process {os.getpid()}"), new_folder(out):
            pytest.fail("two make one folder")
        assert (first / "shard").exists(), "the second must not remove what the first has written"
    assert {item.name for item in tmp_path.iterdir()} == {"data"} and [*out.iterdir()] == [out / "shard"]


def test_of_two_trainings_into_one_folder_one_is_refused(tmp_path):
    write_dataset(tmp_path / "data", {"train": 100})
    sizes = ["width=16", "heads=2", "copy_heads=2", "pooling_heads=2", "ffn=16"]
    command = [sys.executable, "-m", "raysum", "train", "quickstart", "data=data", "out=run", "train.workers=0"]
    command += ["train.steps=400", *(f"model.{size}" for size in sizes)]
    options = {"cwd": tmp_path, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    options["env"] = os.environ | {"PYTHONPATH": str(ROOT)}
    first, end = subprocess.Popen(command, **options), time.monotonic() + 120
    try:
        while not (tmp_path / "run" / "config.yaml").exists():
            assert first.poll() is None and time.monotonic() < end
            time.sleep(0.05)
        second = subprocess.run(command, **options)
        assert second.returncode == 2, second.stderr
        assert f"run is being written by process {first.pid} on " in second.stderr
        assert first.poll() is None, first.communicate()
    finally:
        ended(first)


def test_only_this_user_opens_a_private_folder_and_its_name_cannot_be_known_before(tmp_path):
    umask = os.umask(0)
    try:
        folders = [PrivateFolder(str(tmp_path)) for _ in range(2)]
    finally:
        os.umask(umask)
    assert [Path(folder.path).stat().st_mode & 0o7777 for folder in folders] == [0o700, 0o700]
    assert folders[0].path != folders[1].path
    for folder in folders:
        folder.close()
    assert not list(tmp_path.iterdir())


def test_a_later_process_removes_the_folder_of_a_killed_one_and_no_other(hold, tmp_path):
    killed, leftover = hold("folder", tmp_path)
    _, alive = hold("folder", tmp_path)
    (leftover / "logs").mkdir()
    (leftover / "logs" / "link").symlink_to(tmp_path / "precious")
    (tmp_path / "precious").mkdir()
    (tmp_path / "precious" / "file").write_text("text")
    (tmp_path / "raysum-nobody").mkdir(mode=0o700)  # without a mark, such as another version's
    kept = PrivateFolder(str(tmp_path))
    kept.close(keep=True)
    ended(killed)
    mine = PrivateFolder(str(tmp_path))
    left = {"precious", "raysum-nobody"} | {Path(path).name for path in (alive, kept.path, mine.path)}
    assert {path.name for path in tmp_path.iterdir()} == left
    assert (tmp_path / "precious" / "file").read_text() == "text"


def test_no_link_is_followed(tmp_path):
    elsewhere, shared = tmp_path / "elsewhere", tmp_path / "shared"
    for folder in (elsewhere, shared / "raysum-linked", shared / "raysum-open"):
        folder.mkdir(mode=0o700, parents=True)
    (elsewhere / _MARK).write_text("")  # as if an owner had been killed
    (shared / "raysum-link").symlink_to(elsewhere)
    (shared / "raysum-linked" / _MARK).symlink_to(elsewhere / _MARK)
    (shared / "raysum-open").chmod(0o777)  # others may have put the file there
    (shared / "raysum-open" / _MARK).write_text("")
    remove_leftovers(str(shared))
    assert (elsewhere / _MARK).exists()
    assert {path.name for path in shared.iterdir()} == {"raysum-link", "raysum-linked", "raysum-open"}


def test_a_private_folder_of_another_user_stays(hold, tmp_path, monkeypatch):
    process, folder = hold("folder", tmp_path)
    ended(process)
    monkeypatch.setattr(os, "geteuid", lambda: os.getuid() + 1)
    remove_leftovers(str(tmp_path))
    assert folder.exists()
    monkeypatch.undo()
    remove_leftovers(str(tmp_path))
    assert not folder.exists()
