"""Write, restore and prune checkpoints: engine state for resuming, one weights file for everything else.

All ranks write into ``checkpoints/.partial-STEP-ATTEMPT/`` in the shared run folder. Rank 0 renames the folder to
``step-STEP`` when it is complete, so readers never see an incomplete checkpoint.
"""

import os
import re
import secrets
import shutil
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from raysum.errors import UserError
from raysum.runs.folder import Checkpoint, Run, fill_checkpoint
from raysum.runtime.checksums import damaged
from raysum.runtime.compat import full_precision_copies
from raysum.runtime.progress import say
from raysum.runtime.remote import url_of
from raysum.runtime.run_sync import sync_down

if TYPE_CHECKING:
    from torch import Tensor

_ENGINE, _CONVERTED = "engine", "engine-converted"
_PARTIAL = ".partial-"
_RESUMABLE = 2  # newest checkpoints that keep their engine state: one may be written while the other is read


def remote_ranks(run: Run, token: str) -> frozenset[int]:
    """Return the ranks that do not share the folder of ``run`` with rank 0. Every rank calls it before it writes.

    Only a run on a store may have such ranks: rank 0 writes for all of them, see ``save``. ``token`` is the name of a
    file in the folder, written by the process that started the training.
    Raises UserError on every rank if a rank does not see that file: each host would keep the shards of its own ranks,
    and no checkpoint could be resumed.
    """
    from torch import distributed

    on_store = url_of(run.path) is not None
    file = run.path / (f"{token}-of-rank-0" if on_store else token)
    if on_store and distributed.get_rank() == 0:
        file.parent.mkdir(parents=True, exist_ok=True)
        file.touch()
    distributed.barrier()
    hosts: list[str | None] = [None] * distributed.get_world_size()
    distributed.all_gather_object(hosts, None if file.is_file() else socket.gethostname())
    if on_store and distributed.get_rank() == 0:
        file.unlink(missing_ok=True)
    blind = sorted({host for host in hosts if host})
    if blind and not on_store:
        raise UserError(
            f"the workers on {', '.join(blind)} do not see {run.place} of the host that started the training, so their "
            "part of each checkpoint would be lost: set out= to a folder that all hosts share or a store (s3://...), "
            "or keep the workers on that host (train.placement=pack and fewer train.workers)"
        )
    return frozenset(rank for rank, host in enumerate(hosts) if host)


@contextmanager
def token_in(folder: Path, token: str) -> Iterator[None]:
    """Keep the file ``token`` in ``folder`` during the block, and remove tokens of killed processes."""
    for leftover in folder.glob(".token-*"):
        leftover.unlink(missing_ok=True)
    (folder / token).touch()
    try:
        yield
    finally:
        (folder / token).unlink(missing_ok=True)


def newest(run: Run, remote: frozenset[int]) -> Checkpoint | None:
    """Return the checkpoint to resume from, as rank 0 sees it. Every rank calls it.

    Rank 0 fetches it from the store if another host started the training, and sends its engine state to the hosts of
    the ``remote`` ranks.
    """
    from torch import distributed

    if distributed.get_rank() == 0 and url_of(sync_down(run.path)) and (checkpoint := run.latest()):
        checkpoint.check(_ENGINE)
    distributed.barrier()
    if not remote:
        return run.latest()
    message: list[Any] = [None]
    if distributed.get_rank() == 0 and (checkpoint := run.latest()):
        message = [(checkpoint.step, _contents(checkpoint.path, (_ENGINE, _CONVERTED, "state.json")))]
    distributed.broadcast_object_list(message, src=0)
    if message[0] is None:
        return None
    step, files = message[0]
    if _writes_for_host(remote):
        shutil.rmtree(run.checkpoint_folder, ignore_errors=True)
        _write_contents(run.checkpoint_path(step), files)
    distributed.barrier()
    return Checkpoint(run.checkpoint_path(step))


def save(engine: Any, run: Run, state: dict[str, Any], remote: frozenset[int] = frozenset()) -> None:
    """Publish the checkpoint of ``state["step"]``. Every rank calls it, and returns when all can see it.

    The hosts of ``remote`` ranks send their shards to rank 0, which writes the checksums last. Raises UserError on
    every rank if the state of a rank is missing.
    """
    from torch import distributed

    final = run.checkpoint_path(state["step"])
    attempt = [secrets.token_hex(4)]
    distributed.broadcast_object_list(attempt, src=0)
    partial = run.checkpoint_folder / f"{_PARTIAL}{final.name}-{attempt[0]}"
    engine.save_checkpoint(str(partial), tag=_ENGINE, save_latest=False)
    weights = full_weights(engine)
    distributed.barrier()
    if remote:
        _send_shards(partial, remote)
    shards = [_num_shards(partial)]
    distributed.broadcast_object_list(shards, src=0)
    if engine.zero_optimization_stage() and shards[0] < distributed.get_world_size():
        raise damaged(partial, f"has the state of {shards[0]} workers of {distributed.get_world_size()}")
    if distributed.get_rank() == 0:
        fill_checkpoint(partial, weights, state)
        shutil.rmtree(final, ignore_errors=True)  # an earlier attempt that lost its engine state
        os.replace(partial, final)
    distributed.barrier()


def _send_shards(partial: Path, remote: frozenset[int]) -> None:
    """Move the files that the hosts of ``remote`` ranks wrote into ``partial`` to the host of rank 0."""
    from torch import distributed

    own_files = _contents(partial, (_ENGINE,)) if _writes_for_host(remote) else {}
    gathered: list[Any] | None = [None] * distributed.get_world_size() if distributed.get_rank() == 0 else None
    distributed.gather_object(own_files, gathered, dst=0)
    for files in gathered or ():
        _write_contents(partial, files)
    if _writes_for_host(remote):
        shutil.rmtree(partial, ignore_errors=True)


def _writes_for_host(remote: frozenset[int]) -> bool:
    """Return whether this rank is remote, and reads and writes files for all ranks of its host."""
    from torch import distributed

    return distributed.get_rank() in remote and os.environ["LOCAL_RANK"] == "0"


def _contents(folder: Path, parts: tuple[str, ...]) -> dict[str, bytes]:
    """Return the contents of the files of ``parts`` of ``folder`` by relative path."""
    files = (path for part in parts for path in (folder / part, *(folder / part).rglob("*")))
    return {str(path.relative_to(folder)): path.read_bytes() for path in files if path.is_file()}


def _write_contents(folder: Path, files: dict[str, bytes]) -> None:
    for name, content in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(content)


def load(engine: Any, checkpoint: Checkpoint, world: int) -> None:
    """Load the engine state of ``checkpoint``, the converted one if another number of workers wrote it."""
    is_converted = needs_conversion(checkpoint, world)
    tag = _CONVERTED if is_converted else _ENGINE
    path, _ = engine.load_checkpoint(str(checkpoint.path), tag=tag)
    assert path is not None, f"DeepSpeed found no state in {checkpoint.path / tag}"
    if is_converted:
        _load_frozen(engine, checkpoint.path / _ENGINE)


def _load_frozen(engine: Any, folder: Path) -> None:
    """Load the frozen parameters, which DeepSpeed does not read from its universal form."""
    import torch
    from deepspeed.runtime.zero import GatheredParameters

    frozen = {name: parameter for name, parameter in engine.module.named_parameters() if not parameter.requires_grad}
    files = sorted(folder.glob("*_model_states.pt"), key=lambda file: [int(n) for n in re.findall(r"\d+", file.name)])
    states = [torch.load(file, "cpu", weights_only=False, mmap=True) for file in files if frozen]
    for name, parameter in frozen.items():
        with GatheredParameters([parameter], modifier_rank=0), torch.no_grad():
            if hasattr(parameter, "ds_id"):  # ZeRO-3: each worker has written a part, the last one with padding
                whole = torch.cat([state["frozen_param_fragments"][name].flatten() for state in states])
            else:
                whole = states[0]["module"][name].flatten()
            parameter.copy_(whole[: parameter.numel()].view_as(parameter))


def newest_sound(run: Run) -> Checkpoint | None:
    """Return the newest undamaged checkpoint that training can resume from; rename and report newer, damaged ones.

    Raises UserError if all resumable checkpoints are damaged.
    """
    damages: list[tuple[Path, str]] = []
    for checkpoint in reversed(run.checkpoints()):
        if checkpoint.resumable:
            try:
                _check(checkpoint)
                break
            except UserError as damage:
                damages.append((checkpoint.path, str(damage)))
    else:
        if damages:
            raise UserError(f"{damages[0][1]}, or {_way_out(run)}: training cannot resume from an older checkpoint")
        return None
    for path, message in damages:
        renamed = path.with_name(f"damaged-{path.name}")
        shutil.rmtree(renamed, ignore_errors=True)
        os.replace(path, renamed)
        say(f"{message}. Training resumes from an older checkpoint; the damaged one is now {renamed}")
    for later in run.checkpoints():
        if later.step > checkpoint.step:
            say(f"{later.path} has no {_ENGINE} folder: training resumes from an older checkpoint")
    return checkpoint


def _way_out(run: Run) -> str:
    """Return what a user can do with a run that cannot be resumed."""
    try:
        step = run.checkpoint().step
    except UserError:
        return "choose another out="
    return f"start a new training from the weights of step {step}: train.init_from={run.place} and another out="


def _check(checkpoint: Checkpoint) -> None:
    """Raises UserError if a file that resuming needs is damaged."""
    checkpoint.check(_ENGINE, "state.json", checkpoint.weights.name)
    state = checkpoint.state
    if state.get("step") != checkpoint.step or not {"workers", "stage", "data"} <= state.keys():
        raise damaged(checkpoint.path / "state.json", "belongs to another checkpoint")
    shards = _num_shards(checkpoint.path)
    if state["stage"] and shards < state["workers"]:
        raise damaged(checkpoint.path / _ENGINE, f"has the state of {shards} workers of {state['workers']}")


def _num_shards(folder: Path) -> int:
    """Return the number of workers with optimizer states in a checkpoint."""
    return len([*(folder / _ENGINE).glob("*optim_states.pt")])


def prune(run: Run, keep: int) -> None:
    """Keep the best checkpoint, the newest ``keep`` and the newest engine states; remove all others.

    Folders are renamed before they are removed, so that a kill leaves no incomplete checkpoint.
    """
    clear(run)
    checkpoints, best = run.checkpoints(), run.best()
    unwanted = [checkpoint.path for checkpoint in checkpoints[:-keep] if checkpoint != best]
    unwanted += [checkpoint.path / name for checkpoint in checkpoints[:-_RESUMABLE] for name in (_ENGINE, _CONVERTED)]
    for folder in filter(Path.is_dir, unwanted):
        renamed = run.checkpoint_folder / f"{_PARTIAL}{secrets.token_hex(4)}"
        os.replace(folder, renamed)
        shutil.rmtree(renamed, ignore_errors=True)


def clear(run: Run) -> None:
    """Remove incomplete checkpoints."""
    for leftover in run.checkpoint_folder.glob(f"{_PARTIAL}*"):
        shutil.rmtree(leftover, ignore_errors=True)


def needs_conversion(checkpoint: Checkpoint, world: int) -> bool:
    """Return whether ``checkpoint`` has ZeRO shards, which fit only the number of workers that wrote them."""
    return checkpoint.state["workers"] != world and checkpoint.state["stage"] > 0


def convert(checkpoint: Checkpoint) -> None:
    """Write the engine state of ``checkpoint`` in DeepSpeed's universal form, which any number of workers can load.

    Raises RuntimeError with DeepSpeed's message if its converter fails.
    """
    target = checkpoint.path / _CONVERTED
    partial = target.with_name(_PARTIAL + target.name)
    for former in (partial, target):  # may be incomplete
        shutil.rmtree(former, ignore_errors=True)
    command = [sys.executable, "-m", "deepspeed.checkpoint.ds_to_universal", "--inject_missing_state"]
    command += ["--input_folder", str(checkpoint.path / _ENGINE), "--output_folder", str(partial)]
    command += ["--num_extract_workers", "1", "--num_merge_workers", "1"]
    done = subprocess.run(command, capture_output=True, text=True, env={**os.environ, "DS_ACCELERATOR": "cpu"})
    if done.returncode:
        raise RuntimeError(f"the engine state of {checkpoint.path} cannot be converted: {done.stderr[-2000:]}")
    os.replace(partial, target)


def full_weights(engine: Any) -> "dict[str, Tensor]":
    """Return all parameters in fp32 on the CPU, tied ones once; empty on ranks above 0. Every rank calls it.

    Adapters are merged into the matrices that they adapt.
    """
    from deepspeed.runtime.zero import GatheredParameters
    from deepspeed.utils import safe_get_full_fp32_param
    from torch import distributed

    from raysum.models.adapters import merge_adapters

    copies = full_precision_copies(engine.optimizer)
    weights = {}
    for name, parameter in engine.module.model.named_parameters():
        shape = getattr(parameter, "ds_shape", parameter.shape)  # under ZeRO-3 the parameter itself is empty
        with GatheredParameters([parameter], enabled=not parameter.requires_grad):  # ZeRO has no copy of frozen ones
            full = safe_get_full_fp32_param(parameter) if parameter.requires_grad else None
            full = copies.get(id(parameter), parameter) if full is None else full
            if distributed.get_rank() == 0:
                weights[name] = full.detach().float().cpu().view(shape).clone()
    return merge_adapters(engine.module.model, weights) if weights else weights
