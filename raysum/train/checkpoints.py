"""The checkpoints of a run for the driver of its training: choose, convert and prune. This module loads no torch."""

import os
import re
import secrets
import shutil
import subprocess
import sys
from collections.abc import Mapping
from functools import partial
from pathlib import Path

from raysum.errors import UserError
from raysum.runs.folder import Checkpoint, Run, split_sound
from raysum.runtime.checksums import damaged, is_whole, sealed_files
from raysum.runtime.progress import say
from raysum.runtime.remote import listed, url_of

ENGINE, CONVERTED = "engine", "engine-converted"
PARTIAL, TOKEN = ".partial-", ".token"  # prefix of incomplete checkpoints; a file that workers look for
_RANK = re.compile(r"zero_pp_rank_(\d+)_")  # in the names of the files that only this worker reads
_RESUMABLE = 2  # newest checkpoints that keep their engine state: one may be written while the other is read


def newest_sound(run: Run) -> Checkpoint | None:
    """Return the newest undamaged checkpoint that training can resume from; rename and report newer, damaged ones.

    Of a run on a store, only the sizes of files are compared: the workers download and check what they read. Raises
    UserError if all resumable checkpoints are damaged, or if the store does not answer.
    """
    url = url_of(run.checkpoint_folder)
    stored = None if url is None else listed(url)
    sound, damages = split_sound(
        [each for each in reversed(run.checkpoints()) if each.resumable], 1, partial(_check, stored=stored)
    )
    if damages and not sound:
        raise UserError(f"{damages[0][1]}, or {_way_out(run)}: training cannot resume from an older checkpoint")
    for path, message in damages:
        renamed = path.with_name(f"damaged-{path.name}")
        shutil.rmtree(renamed, ignore_errors=True)
        os.replace(path, renamed)
        say(f"{message}. Training resumes from an older checkpoint; the damaged one is now {renamed}")
    for later in run.checkpoints() if sound else ():
        if later.step > sound[0].step:
            say(f"{later.path} has no {ENGINE} folder: training resumes from an older checkpoint")
    return sound[0] if sound else None


def _way_out(run: Run) -> str:
    """Return what a user can do with a run that cannot be resumed."""
    try:
        step = run.checkpoint().step
    except UserError:
        return "choose another out="
    return f"start a new training from the weights of step {step}: train.init_from={run.place} and another out="


def _check(checkpoint: Checkpoint, stored: Mapping[str, tuple[int, str]] | None) -> None:
    """Raises UserError if a file that resuming needs is damaged.

    ``stored`` are the files of the run's checkpoints on its store, as :func:`listed` returns them.
    """
    if stored is None:
        checkpoint.check(ENGINE, "state.json", checkpoint.weights.name)
        files = {path.name for path in (checkpoint.path / ENGINE).iterdir()}
    else:
        checkpoint.check("state.json")
        files = {*sealed_files(checkpoint.path)}
        for name, expected in sealed_files(checkpoint.path).items():
            size, _ = stored.get(f"{checkpoint.path.name}/{name}", (None, ""))
            if size != expected["bytes"] and not is_whole(checkpoint.path / name, expected):
                found = "is missing" if size is None else f"has {size} bytes of {expected['bytes']}"
                raise damaged(checkpoint.path / name, f"{found} on the store")
    state, shards = checkpoint.state, sum(name.endswith("optim_states.pt") for name in files)
    if state.get("step") != checkpoint.step or not {"workers", "stage", "data"} <= state.keys():
        raise damaged(checkpoint.path / "state.json", "belongs to another checkpoint")
    if state["stage"] and shards < state["workers"]:
        raise damaged(checkpoint.path / ENGINE, f"has the state of {shards} workers of {state['workers']}")


def engine_files(checkpoint: Checkpoint, rank: int, world: int) -> list[str]:
    """Return the files of the sealed ``checkpoint`` from which worker ``rank`` of ``world`` resumes.

    If another number of workers has written them, they are the files of all workers.
    """
    names = [name for name in sealed_files(checkpoint.path) if name.startswith(f"{ENGINE}/") and name.endswith(".pt")]
    if needs_conversion(checkpoint, world):
        return names
    return [name for name in names if (found := _RANK.search(name)) is None or int(found[1]) == rank]


def prune(run: Run, keep: int) -> None:
    """Keep the best checkpoint, the newest ``keep`` and the newest engine states; remove all others.

    Folders are renamed before they are removed, so that a kill leaves no incomplete checkpoint.
    """
    clear(run)
    checkpoints, best = run.checkpoints(), run.best()
    unwanted = [checkpoint.path for checkpoint in checkpoints[:-keep] if checkpoint != best]
    unwanted += [checkpoint.path / name for checkpoint in checkpoints[:-_RESUMABLE] for name in (ENGINE, CONVERTED)]
    for folder in filter(Path.is_dir, unwanted):
        os.replace(folder, run.checkpoint_folder / f"{PARTIAL}{secrets.token_hex(4)}")
    clear(run)


def clear(run: Run) -> None:
    """Remove incomplete checkpoints."""
    for leftover in run.checkpoint_folder.glob(f"{PARTIAL}*"):
        shutil.rmtree(leftover, ignore_errors=True)


def needs_conversion(checkpoint: Checkpoint, world: int) -> bool:
    """Return whether ``checkpoint`` has ZeRO shards, which fit only the number of workers that wrote them."""
    return checkpoint.state["workers"] != world and checkpoint.state["stage"] > 0


def convert(checkpoint: Checkpoint) -> None:
    """Write the engine state in DeepSpeed's form for any number of workers. Raises RuntimeError if this fails."""
    target = checkpoint.path / CONVERTED
    partial = target.with_name(PARTIAL + target.name)
    for former in (partial, target):  # may be incomplete
        shutil.rmtree(former, ignore_errors=True)
    command = [sys.executable, "-m", "deepspeed.checkpoint.ds_to_universal", "--inject_missing_state"]
    command += ["--input_folder", str(checkpoint.path / ENGINE), "--output_folder", str(partial)]
    command += ["--num_extract_workers", "1", "--num_merge_workers", "1"]
    done = subprocess.run(command, capture_output=True, text=True, env={**os.environ, "DS_ACCELERATOR": "cpu"})
    if done.returncode:
        raise RuntimeError(f"the engine state of {checkpoint.path} cannot be converted: {done.stderr[-2000:]}")
    os.replace(partial, target)
