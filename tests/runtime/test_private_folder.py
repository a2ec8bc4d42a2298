"""Temporary folders: who can open them, which leftovers a later process removes, and which it does not touch."""

import os
import subprocess
import sys
from pathlib import Path

from raysum.runtime.private_folder import PrivateFolder, remove_leftovers

OWNER = """
import sys
from raysum.runtime.private_folder import PrivateFolder
folder = PrivateFolder(sys.argv[1])
print(folder.path, flush=True)
sys.stdin.read()
"""


def owner(parent: Path) -> tuple[subprocess.Popen, Path]:
    process = subprocess.Popen(
        [sys.executable, "-c", OWNER, str(parent)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    return process, Path(process.stdout.readline().strip())


def test_only_this_user_opens_a_folder_and_its_name_cannot_be_known_before(tmp_path):
    umask = os.umask(0)
    try:
        folders = [PrivateFolder(str(tmp_path)) for _ in range(2)]
    finally:
        os.umask(umask)
    assert [Path(folder.path).stat().st_mode & 0o7777 for folder in folders] == [0o700, 0o700]
    assert folders[0].path != folders[1].path
    for folder in folders:
        folder.remove()
    assert not list(tmp_path.iterdir())


def test_a_later_process_removes_the_folder_of_a_killed_one_and_no_other(tmp_path):
    killed, leftover = owner(tmp_path)
    living, alive = owner(tmp_path)
    (leftover / "logs").mkdir()
    (leftover / "logs" / "link").symlink_to(tmp_path / "precious")
    (tmp_path / "precious").mkdir()
    (tmp_path / "precious" / "file").write_text("text")
    (tmp_path / "raysum-nobody").mkdir(mode=0o700)  # without an owner, such as another version's
    kept = PrivateFolder(str(tmp_path))
    kept.keep()
    killed.kill()
    killed.wait()
    mine = PrivateFolder(str(tmp_path))
    assert not leftover.exists()
    left = {"precious", "raysum-nobody"} | {Path(path).name for path in (alive, kept.path, mine.path)}
    assert {path.name for path in tmp_path.iterdir()} == left
    assert (tmp_path / "precious" / "file").read_text() == "text"
    living.communicate("")
    mine.remove()


def test_no_link_is_followed(tmp_path):
    elsewhere, shared = tmp_path / "elsewhere", tmp_path / "shared"
    elsewhere.mkdir(mode=0o700)
    (elsewhere / "owner").write_text("")  # as if an owner had been killed
    shared.mkdir()
    (shared / "raysum-link").symlink_to(elsewhere)
    (shared / "raysum-linked").mkdir(mode=0o700)
    (shared / "raysum-linked" / "owner").symlink_to(elsewhere / "owner")
    (shared / "raysum-open").mkdir()
    (shared / "raysum-open").chmod(0o777)  # others may have put the file there
    (shared / "raysum-open" / "owner").write_text("")
    remove_leftovers(str(shared))
    assert (elsewhere / "owner").exists()
    assert {path.name for path in shared.iterdir()} == {"raysum-link", "raysum-linked", "raysum-open"}


def test_a_folder_of_another_user_stays(tmp_path, monkeypatch):
    process, folder = owner(tmp_path)
    process.kill()
    process.wait()
    monkeypatch.setattr(os, "geteuid", lambda: os.getuid() + 1)
    remove_leftovers(str(tmp_path))
    assert folder.exists()
    monkeypatch.undo()
    remove_leftovers(str(tmp_path))
    assert not folder.exists()
