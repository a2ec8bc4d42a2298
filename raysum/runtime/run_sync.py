"""A run on a store, as it is kept on this machine: brought up to date when it is opened, uploaded when it has changed.

What is large (weights, the state of the engine) is fetched when it is asked for. A checkpoint counts on the store as it
does here: its checksums are put there last, and taken away first.
"""

import fcntl
import json
import os
import re
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from raysum.errors import UserError
from raysum.runtime.checksums import SEAL
from raysum.runtime.lock import LOCK, is_held
from raysum.runtime.progress import say
from raysum.runtime.remote import (
    cache_folder,
    check_bucket,
    exists,
    fetch,
    kept,
    listed,
    local,
    read,
    remove,
    upload,
    url_of,
)
from raysum.runtime.remote_lock import check_lease, leased
from raysum.runtime.storage import read_json, write_json

_MARKS = ("config.yaml", "search.yaml", "table.json")  # of a run, a search, an evaluation; uploaded first
_STATE = "state.json"  # of a checkpoint
_STEP = re.compile(r"(?:^|.*/)(step-\d+)(?=/)")  # how names of its files begin
_OWN = re.compile(r"(^|/)(\.|damaged-)|(^|/)(ray|tune)/")  # never uploaded: unfinished, damaged, Ray's
_missed = dict[Path, int]()  # how often in a row a folder was not uploaded
_LATER = re.compile(r"(^|/)(tensorboard|labels)/")  # not fetched with the rest


def pulled(path: str | os.PathLike[str]) -> Path:
    """``path`` on this machine; what is kept of a URL is brought up to date, unless it is being written here.

    Raises UserError where the store does not answer.
    """
    folder = local(path)
    if url_of(folder) and not _is_written(folder):
        with _alone(folder):
            _pull(folder)
    return folder


def refresh(folder: Path) -> None:
    """Fetch what another host has uploaded of the run at ``folder``, which this process writes, if it is on a store."""
    if url_of(folder):
        with _alone(folder):
            _pull(folder)


@contextmanager
def written(folder: Path) -> Iterator[None]:
    """The block writes the run or search at ``folder``: alone, going on from what is on the store it is kept of, if it
    is of one, and has all of it at the end.

    Raises UserError where something else is there, another writes there, or the store does not take it.
    """
    with leased(folder):
        refresh(folder)
        url = url_of(folder)
        if url and not any((folder / mark).is_file() for mark in _MARKS) and listed(url).keys() - {LOCK}:
            raise UserError(f"{url} exists already; remove it or choose another folder")
        yield
        if url:
            check_lease(folder)
            try:
                push(folder, pruned=True)
            except UserError as error:
                raise UserError(
                    f"{error}. All is safe in the cache, {cache_folder()}; the same command again uploads it"
                ) from None


@contextmanager
def added_to(folder: Path) -> Iterator[None]:
    """The block may write results into the run at ``folder``; the store that it is kept of, if any, has them then."""
    yield
    if url_of(folder) and not _is_written(folder):  # whoever does uploads these, too
        push(folder)


def push_so_far(folder: Path) -> None:
    """``push`` of a run that is being trained, which goes on where the store cannot be reached: all is made up for."""
    missed = _missed.get(folder, 0)
    try:
        push(folder, pruned=True)
    except UserError as error:
        _missed[folder] = missed + 1
        if not missed:
            say(f"Not uploaded yet: {error}. Training goes on, and will upload later")
        return
    if _missed.pop(folder, 0):
        say(f"Uploaded, after {missed} times that it could not be")


def push(folder: Path, pruned: bool = False) -> None:
    """Upload what has changed at ``folder``, if it is kept of a store, since both were the same; if ``pruned``, remove
    there what of checkpoints is gone here.

    Raises UserError where the store does not take it, or another writes there by now.
    """
    if (url := url_of(folder)) is None:
        return
    check_lease(folder)
    with _alone(folder):
        _push(folder, url, pruned)


def _push(folder: Path, url: str, pruned: bool) -> None:
    there, here = _record(folder)
    found = {str(path.relative_to(folder)): _state(path) for path in folder.rglob("*") if path.is_file()}
    found = {name: state for name, state in found.items() if not _OWN.search(name)}
    changed = {name for name, state in found.items() if here.get(name) != state and (name in here or name not in there)}
    steps = {_step(name) for name in changed if Path(name).name == SEAL} - {""}  # made, or made anew
    changed |= {name for name in found if _step(name) in steps}
    gone = {name for name in there if pruned and _step(name) and not (folder / name).parent.is_dir()}
    seals = {name for name in changed if Path(name).name == SEAL}
    remove(url, sorted((gone | seals) & there.keys(), key=lambda name: Path(name).name != SEAL))
    first = changed & {*_MARKS}
    for part in (first, changed - first - seals, seals):
        upload(folder, sorted(part))
    if changed or gone:
        now = listed(url)
        there = {name: state for name, state in there.items() if name not in gone}
        there |= {name: now[name][1] for name in changed if name in now}
        _remember(folder, there, here | {name: found[name] for name in changed})


def bring(folder: Path, *parts: str) -> None:
    """Fetch the ``parts``, files or folders, of a checkpoint that are not here yet, if it is kept of a store."""
    if url := url_of(folder):
        is_sealed = (folder / SEAL).is_file()
        files = read_json(folder / SEAL)["files"] if is_sealed else dict.fromkeys(listed(url))  # as of former versions
        for name, told in files.items():
            if any(name == part or name.startswith(f"{part}/") for part in parts):
                fetch(folder / name, told)


def _pull(folder: Path) -> None:
    url = str(url_of(folder))
    before, here = _record(folder)
    marked = any(exists(f"{url}/{mark}") for mark in _MARKS)  # other folders may hold very much
    there = {name: state for name, (_, state) in listed(url).items() if not _OWN.search(name)} if marked else {}
    if not there:
        check_bucket(url)
    if there == before:
        return  # and what is here may be newer
    if not there:
        _clear(folder)
    whole = {_step(name) for name in there if Path(name).name == SEAL} | {""}
    whole |= {_step(name) for name in there if Path(name).name == _STATE and _is_former(f"{url}/{name}")}
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
        if path.name in (_STATE, SEAL) if step else not _LATER.search(name):
            if is_new or not path.is_file():
                here[name] = _state(fetch(path, anew=True))
        elif is_new:
            path.unlink(missing_ok=True)
    _remember(folder, there, here)


def _is_former(url: str) -> bool:
    """Whether that state of a checkpoint tells of no checksums, as those of former versions do."""
    try:
        return "sealed" not in json.loads(read(url) or b"0")
    except (ValueError, TypeError):
        return False


def _clear(folder: Path) -> None:
    """Remove all but a lock, of what is not on the store any more."""
    for item in folder.iterdir() if folder.is_dir() else ():
        if item.is_dir():
            shutil.rmtree(item)
        elif item.name != LOCK:
            item.unlink()
    with suppress(OSError):
        folder.rmdir()


def _step(name: str) -> str:
    """The folder of the checkpoint that a file of that name is of; of others an empty one."""
    found = _STEP.match(name)
    return found[0] if found else ""


def _state(path: Path) -> list[int]:
    found = path.stat()
    return [found.st_size, found.st_mtime_ns]


def _is_written(folder: Path) -> bool:
    """Whether a command on this machine writes ``folder``, a part of it, or what it is a part of."""
    around = (place for place in (folder, *folder.parents) if place.is_relative_to(kept()))
    return any(map(is_held, [*folder.rglob(LOCK), *(place / LOCK for place in around)]))


@contextmanager
def _alone(folder: Path) -> Iterator[None]:
    """Other processes of this machine that compare ``folder`` with the store wait for the end of the block."""
    file = folder.with_name(f".{folder.name}.store.lock")
    file.parent.mkdir(parents=True, exist_ok=True)
    with file.open("ab") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _record(folder: Path) -> tuple[dict[str, str], dict[str, list[int]]]:
    """What was there, and what of it here, when both were last the same."""
    file = _record_of(folder)
    told: dict[str, Any] = read_json(file) if file.is_file() else {}
    return told.get("there", {}), told.get("here", {})


def _remember(folder: Path, there: dict[str, str], here: dict[str, list[int]]) -> None:
    write_json(_record_of(folder), {"there": there, "here": here})


def _record_of(folder: Path) -> Path:
    return folder.with_name(f".{folder.name}.store.json")
