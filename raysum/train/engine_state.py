"""Find and load the checkpoint from which the ranks resume, also on hosts without the folder of rank 0."""

import os
import re
import secrets
import shutil
import socket
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import torch
from torch import distributed

from raysum.errors import UserError
from raysum.runs.folder import Checkpoint, Run
from raysum.runtime.remote import url_of
from raysum.runtime.run_sync import sync_down
from raysum.train.checkpoints import CONVERTED, ENGINE, TOKEN, convert, needs_conversion
from raysum.train.group import from_all_ranks, from_rank_0


def remote_ranks(run: Run, token: str) -> frozenset[int]:
    """Return the ranks that do not share the folder of ``run`` with rank 0. Every rank calls it before it writes.

    Only a run on a store may have such ranks. Raises UserError on every rank if the folder of another rank lacks the
    ``token`` of the process that started the training: no checkpoint could be resumed.
    """
    file, on_store = run.path / TOKEN, url_of(run.path) is not None
    if on_store:  # each host has a mirror of its own
        token = from_rank_0(secrets.token_hex(16))
        if distributed.get_rank() == 0:
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(token)
    distributed.barrier()
    is_shared = file.is_file() and file.read_text() == token
    hosts = from_all_ranks(None if is_shared else socket.gethostname())
    if any(hosts) and not on_store:
        raise UserError(
            f"the workers on {', '.join(sorted({*filter(None, hosts)}))} do not see {run.place}: set out= to a folder "
            "that all hosts share or a store (s3://...), or keep the workers on the host that started the training "
            "(train.placement=pack and fewer train.workers)"
        )
    return frozenset(rank for rank, host in enumerate(hosts) if host)


def newest(run: Run, remote: frozenset[int]) -> Checkpoint | None:
    """Return the checkpoint to resume from, as rank 0 sees it. Every rank calls it.

    Rank 0 fetches it from the store if another host started the training, converts its engine state if another number
    of workers wrote it, and sends the state to the hosts of the ``remote`` ranks.
    """
    step, files = 0, dict[str, bytes]()
    if distributed.get_rank() == 0 and (checkpoint := Run(sync_down(run.path)).latest()):
        if url_of(run.path):
            checkpoint.check(ENGINE)
        if needs_conversion(checkpoint, distributed.get_world_size()):
            convert(checkpoint)
        files = contents(checkpoint.path, (ENGINE, CONVERTED, "state.json")) if remote else {}
        step = checkpoint.step
    step, files = from_rank_0((step, files))
    if files and writes_for_host(remote):
        shutil.rmtree(run.checkpoint_folder, ignore_errors=True)
        write_contents(run.checkpoint_path(step), files)
    distributed.barrier()
    return Checkpoint(run.checkpoint_path(step)) if step else None


def writes_for_host(remote: frozenset[int]) -> bool:
    """Return whether this rank is remote, and reads and writes files for all ranks of its host."""
    return distributed.get_rank() in remote and os.environ["LOCAL_RANK"] == "0"


def contents(folder: Path, parts: Iterable[str]) -> dict[str, bytes]:
    """Return the contents of the files of ``parts`` (files or folders) of ``folder`` by relative path."""
    files = (path for part in parts for path in (folder / part, *(folder / part).rglob("*")))
    return {str(path.relative_to(folder)): path.read_bytes() for path in files if path.is_file()}


def write_contents(folder: Path, files: dict[str, bytes]) -> None:
    """Write ``files``, as :func:`contents` returns them, into ``folder``."""
    for name, content in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(content)


def load(engine: Any, checkpoint: Checkpoint) -> None:
    """Load the engine state of ``checkpoint``, the converted one if another number of workers wrote it."""
    is_converted = needs_conversion(checkpoint, distributed.get_world_size())
    tag = CONVERTED if is_converted else ENGINE
    path, _ = engine.load_checkpoint(str(checkpoint.path), tag=tag)
    assert path is not None, f"DeepSpeed found no state in {checkpoint.path / tag}"
    if is_converted:
        _load_frozen(engine, checkpoint.path / ENGINE)


def _load_frozen(engine: Any, folder: Path) -> None:
    """Load the frozen parameters, which DeepSpeed does not read from its universal form."""
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
