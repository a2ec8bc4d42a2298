"""Find and load the checkpoint from which the ranks resume, also on hosts without the folder of rank 0."""

import os
import re
import secrets
import shutil
import socket
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch
from torch import distributed

from raysum.errors import UserError
from raysum.runs.folder import Checkpoint, Run
from raysum.runtime.checksums import SEAL, is_whole, sealed_files
from raysum.runtime.remote import url_of
from raysum.runtime.run_sync import bring, sync_down
from raysum.train.checkpoints import CONVERTED, ENGINE, TOKEN, convert, engine_files, needs_conversion
from raysum.train.group import agreed, from_all_ranks, from_rank_0


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

    Of a run on a store, each rank downloads the files that it reads, each file once on a host. If another number of
    workers wrote the engine state, every host converts it. Raises the same UserError on every rank.
    """

    def seen() -> tuple[int, dict[str, bytes]]:
        checkpoint = Run(sync_down(run.path)).latest() if distributed.get_rank() == 0 else None
        return (checkpoint.step, contents(checkpoint.path, (SEAL, "state.json"))) if checkpoint else (0, {})

    step, head = from_rank_0(agreed(seen))
    if not step:
        return None
    checkpoint = Checkpoint(run.checkpoint_path(step))
    if writes_for_host(remote):
        _enter(checkpoint, head)
    distributed.barrier()
    is_converted = needs_conversion(checkpoint, distributed.get_world_size())
    if url_of(run.path):
        _download(checkpoint, is_converted)
    if is_converted and (distributed.get_rank() == 0 or writes_for_host(remote)):
        convert(checkpoint)
    distributed.barrier()
    return checkpoint


def _enter(checkpoint: Checkpoint, head: dict[str, bytes]) -> None:
    """Write the ``head`` of ``checkpoint``, its checksums and state, on a remote host; remove other checkpoints there.

    Files of this checkpoint that the host has already are kept if the checksums are still the same.
    """
    if contents(checkpoint.path, [SEAL]).get(SEAL) != head[SEAL]:
        shutil.rmtree(checkpoint.path, ignore_errors=True)
    for other in checkpoint.path.parent.glob("*"):
        if other != checkpoint.path:
            shutil.rmtree(other, ignore_errors=True)
    write_contents(checkpoint.path, head)


def _download(checkpoint: Checkpoint, is_converted: bool) -> None:
    """Download and check the files that this rank reads, or its part of those that its host converts.

    Rank 0 sends files that it has not uploaded. Every rank calls it.
    """
    names = engine_files(checkpoint, distributed.get_rank(), distributed.get_world_size())
    if is_converted:
        names = names[int(os.environ["LOCAL_RANK"]) :: int(os.environ["LOCAL_WORLD_SIZE"])]
    expected = sealed_files(checkpoint.path)
    for name in names:
        if (file := checkpoint.path / name).is_file() and not is_whole(file, expected[name]):
            file.unlink(missing_ok=True)  # damaged on this host only: download it again
    distributed.barrier()  # ranks of a host share files
    for name in names:
        with suppress(UserError):
            bring(checkpoint.path, name)
    lacking = [name for name in names if not (checkpoint.path / name).is_file()]
    if asked := sorted({name for each in from_all_ranks(lacking) for name in each}):
        files = from_rank_0(contents(checkpoint.path, asked) if distributed.get_rank() == 0 else None)
        write_contents(checkpoint.path, {name: files[name] for name in lacking if name in files})
    agreed(lambda: _check(checkpoint, names))


def _check(checkpoint: Checkpoint, names: Iterable[str]) -> None:
    """Raises UserError with a way out if a file in ``names`` cannot be downloaded or is damaged on the store."""
    try:
        checkpoint.check(*names)
    except UserError as error:
        raise UserError(f"{error}; or remove {url_of(checkpoint.path)} to resume from an older checkpoint") from None


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
