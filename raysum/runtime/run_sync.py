"""Synchronise the local mirror of a run with its store: download when a command opens it, upload changes.

Large files (weights, engine state) are downloaded on demand. A checkpoint on the store is valid if its checksums are
there, so they are uploaded last and deleted first.
"""

import os
import re
import shutil
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from raysum.errors import UserError
from raysum.runtime.checksums import SEAL
from raysum.runtime.lock import LOCK, is_held, waiting_lock
from raysum.runtime.progress import say
from raysum.runtime.remote import cache_folder, check_bucket, exists, fetch, kept, listed, local, remove, upload, url_of
from raysum.runtime.remote_lock import check_lease, leased
from raysum.runtime.storage import read_json, write_json

_MARKS = ("config.yaml", "search.yaml", "table.json")  # of a run, a search and an evaluation; uploaded first
_STEP = re.compile(r"(?:^|.*/)(step-\d+)(?=/)")  # prefix of the files of a checkpoint
_OWN = re.compile(
    r"(^|/)(\.|damaged-)|(^|/)(ray|tune(\.\d+)?)/"
)  # never uploaded: unfinished or damaged files, and Ray's
_LATER = re.compile(r"(^|/)(tensorboard|labels)/")  # downloaded on demand
_missed = dict[Path, int]()  # number of consecutive failed uploads by folder


def sync_down(path: str | os.PathLike[str]) -> Path:
    """Return the local path. The mirror of a URL is updated first, unless a command on this machine writes it.

    Raises UserError if the store does not answer.
    """
    folder = local(path)
    if url_of(folder) and not _is_written(folder):
        refresh(folder)
    return folder


@contextmanager
def sync_up(folder: Path) -> Iterator[None]:
    """Make the block the only writer of the run or search at ``folder``.

    A mirror is updated from its store before the block and uploaded after it. Raises UserError if the store holds
    something else, if another process writes there, or if the upload fails.
    """
    with leased(folder):
        refresh(folder)
        url = url_of(folder)
        if url and not any((folder / mark).is_file() for mark in _MARKS) and listed(url).keys() - {LOCK}:
            raise UserError(f"{url} exists already; remove it or choose another folder")
        yield
        try:
            push(folder, pruned=True)
        except UserError as error:
            advice = f"All files are in the cache, {cache_folder()}; run the same command again to upload them"
            raise UserError(f"{error}. {advice}") from None


@contextmanager
def added_to(folder: Path) -> Iterator[None]:
    """Upload what the block adds to the run at ``folder``, if it mirrors a store."""
    yield
    if url_of(folder) and not _is_written(folder):  # that command uploads these files, too
        push(folder)


def push_so_far(folder: Path, uploaded: Collection[str] = ()) -> None:
    """Upload a run during its training, except the files ``uploaded`` already, such as the shards of other workers.

    A failed upload is retried with the next one, and training continues.
    """
    missed = _missed.pop(folder, 0)
    try:
        push(folder, pruned=True, uploaded=uploaded)
    except UserError as error:
        _missed[folder] = missed + 1
        if not missed:
            say(f"Not uploaded yet: {error}. Training continues; the next upload retries")
        return
    if missed:
        say(f"Uploaded after {missed} failed attempts")


def unsealed(checkpoint: Path) -> bool:
    """Prepare the place of a new ``checkpoint`` on its store, where workers will upload their files before its seal.

    Return whether the store accepts it from this process.
    """
    try:
        if url := url_of(checkpoint):
            check_lease(checkpoint.parents[1])
            remove(url, [SEAL])
        return url is not None
    except UserError:
        return False


def push(folder: Path, pruned: bool = False, uploaded: Collection[str] = ()) -> None:
    """Upload the files of the mirror ``folder`` that changed since the last synchronisation, except those ``uploaded``.

    With ``pruned`` also delete checkpoints on the store that were deleted here, or have no seal. Raises UserError if
    the store refuses the upload, or if another process has taken the lock.
    """
    if (url := url_of(folder)) is None:
        return
    check_lease(folder)
    with waiting_lock(_record_of(folder, "lock")):
        there, here = _read_record(folder)
        found = {str(path.relative_to(folder)): _state(path) for path in folder.rglob("*") if path.is_file()}
        found = {name: state for name, state in found.items() if not _OWN.search(name)}
        changed = {name for name in found if name not in there or here.get(name, found[name]) != found[name]}
        seals = {name for name in changed if Path(name).name == SEAL}
        changed |= {name for name in found if _step(name) in map(_step, seals) and _step(name)}  # new checkpoints
        gone = {name for name in there if pruned and _step(name) and not (folder / name).parent.is_dir()}
        remove(url, sorted((gone | seals) & there.keys(), key=lambda name: Path(name).name != SEAL))
        first = changed & {*_MARKS}
        for part in (first, changed - first - seals - {*uploaded}, seals):
            upload(folder, sorted(part))
        if changed or gone:
            now = listed(url)
            whole = {_step(name) for name in now if Path(name).name == SEAL} | {""}
            if pruned:  # also uploads of workers that were killed before the seal
                remove(url, [name for name in now if _step(name) not in whole])
            there = {name: state for name, state in there.items() if name not in gone}
            new = changed | {name for name in now if _step(name) and _step(name) in map(_step, seals)}
            there |= {name: now[name][1] for name in new if name in now}
            _write_record(folder, there, here | {name: found[name] for name in changed})


def bring(folder: Path, *parts: str) -> None:
    """Download the missing ``parts`` (files or folders) of a checkpoint, if it mirrors a store."""
    if url_of(folder) and (folder / SEAL).is_file():
        for name, expected in read_json(folder / SEAL)["files"].items():
            if any(name == part or name.startswith(f"{part}/") for part in parts):
                fetch(folder / name, expected)


def refresh(folder: Path) -> None:
    """Fetch what other hosts have uploaded of the run at ``folder``, if it mirrors a store."""
    if (url := url_of(folder)) is None:
        return
    with waiting_lock(_record_of(folder, "lock")):
        before, here = _read_record(folder)
        is_known = any(exists(f"{url}/{mark}") for mark in _MARKS)  # do not list arbitrary folders
        there = {name: state for name, (_, state) in listed(url).items() if not _OWN.search(name)} if is_known else {}
        if not there:
            check_bucket(url)
        if there != before:  # else local files may be newer
            _pull(folder, before, there, here)


def _pull(folder: Path, before: dict[str, str], there: dict[str, str], here: dict[str, list[int]]) -> None:
    """Make ``folder`` like the store, whose files have the versions ``there``, and had those ``before``."""
    if not there:  # it was deleted
        shutil.rmtree(folder, ignore_errors=True)
    whole = {_step(name) for name in there if Path(name).name == SEAL} | {""}
    for name in before.keys() - there.keys():
        (folder / name).unlink(missing_ok=True)
    for path in folder.rglob("step-*"):
        if path.is_dir() and str(path.relative_to(folder)) not in whole:
            shutil.rmtree(path)
    for name in sorted(there):
        path, step = folder / name, _step(name)
        if step not in whole:
            continue
        path.parent.mkdir(parents=True, exist_ok=True)
        is_new = there[name] != before.get(name)
        if path.name in ("state.json", SEAL) if step else not _LATER.search(name):
            if is_new or not path.is_file():
                here[name] = _state(fetch(path, replace=True))
        elif is_new:
            path.unlink(missing_ok=True)
    _write_record(folder, there, here)


def _step(name: str) -> str:
    """Return the folder of the checkpoint that contains the file ``name``, or ""."""
    found = _STEP.match(name)
    return found[0] if found else ""


def _state(path: Path) -> list[int]:
    found = path.stat()
    return [found.st_size, found.st_mtime_ns]


def _is_written(folder: Path) -> bool:
    """Return whether a command on this machine writes ``folder``, a subfolder or a parent."""
    around = (parent for parent in (folder, *folder.parents) if parent.is_relative_to(kept()))
    return any(map(is_held, [*folder.rglob(LOCK), *(parent / LOCK for parent in around)]))


def _record_of(folder: Path, suffix: str) -> Path:
    return folder.with_name(f".{folder.name}.store.{suffix}")


def _read_record(folder: Path) -> tuple[dict[str, str], dict[str, list[int]]]:
    """Return the states of remote and local files at the last synchronisation."""
    file = _record_of(folder, "json")
    record: dict[str, Any] = read_json(file) if file.is_file() else {}
    return record.get("there", {}), record.get("here", {})


def _write_record(folder: Path, there: dict[str, str], here: dict[str, list[int]]) -> None:
    write_json(_record_of(folder, "json"), {"there": there, "here": here})
