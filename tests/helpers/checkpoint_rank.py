"""One rank of trainings that save while they continue: ``checkpoint_rank.py FOLDER RANK WORLD``.

``FOLDER/cases.json`` lists [case, stage, low]. Each rank trains four steps, saves after the second, and then loads that
checkpoint into another engine and repeats the last two. Rank 0 writes the results to ``FOLDER/found.pt``.
"""

import json
import os
import sys
from contextlib import closing
from pathlib import Path
from typing import Any
from unittest import mock

import torch
from torch import distributed

from helpers.gradient_cases import brief_for, low_thresholds
from raysum.models.adapters import merge_adapters
from raysum.runs.folder import Checkpoint, Run
from raysum.runtime.checksums import ChecksumFile
from raysum.runtime.compat import leave_process_group
from raysum.runtime.processes import quiet_training
from raysum.stream.loader import batches
from raysum.train import snapshot
from raysum.train.checkpoint_writer import CheckpointWriter
from raysum.train.engine import build_engine
from raysum.train.engine_state import load
from raysum.train.metrics_logger import Meter
from raysum.train.worker import step

STEPS = 4


def whole_weights(engine: Any) -> dict[str, torch.Tensor]:
    """All weights by DeepSpeed's own functions, one parameter after the other, on every rank."""
    from deepspeed.runtime.zero import GatheredParameters
    from deepspeed.utils import safe_get_full_fp32_param

    from raysum.runtime.compat import full_precision_copies

    copies, found = full_precision_copies(engine.optimizer), {}
    for name, parameter in engine.module.model.named_parameters():
        shape = getattr(parameter, "ds_shape", parameter.shape)
        with GatheredParameters([parameter], enabled=not parameter.requires_grad):
            full = safe_get_full_fp32_param(parameter) if parameter.requires_grad else None
            full = copies.get(id(parameter), parameter) if full is None else full
            found[name] = full.detach().float().clone().view(shape)
    return merge_adapters(engine.module.model, found)


def train(brief: Any, engine: Any, start: int, stop: int) -> list[float]:
    rank, world = distributed.get_rank(), distributed.get_world_size()
    coming, meter, losses = batches(brief.train, rank, world, start, STEPS), Meter(engine.device, {}), []
    for number in range(start, stop):
        used = step(engine, brief, number, coming, meter)
        losses.append(meter.line(number + 1, used)["loss"])
    return losses


def saved(folder: Path, name: str, stage: int, low: bool, has_memory: bool) -> dict[str, Any]:
    """Train, save and resume; the weights at the save, and the losses behind it, twice each."""
    brief, run = brief_for(name, folder, stage, low, STEPS), Run(folder / f"{name}-{stage}-{low}-{has_memory}")
    engine = build_engine(brief, None)
    state = {"workers": distributed.get_world_size(), "stage": stage, "new": [*brief.start.new] if brief.start else []}
    memory = snapshot.available_memory() if has_memory else 0
    with mock.patch.object(snapshot, "available_memory", lambda: memory), closing(CheckpointWriter(run)) as writer:
        train(brief, engine, 0, 1)
        writer.save(engine, state | {"step": 1})  # its buffers are used again
        train(brief, engine, 1, 2)
        weights = whole_weights(engine)
        writer.save(engine, state | {"step": 2})
        losses = train(brief, engine, 2, STEPS)
        writer.wait()
    checkpoint = Checkpoint(run.checkpoint_path(2))
    checkpoint.check("engine", "state.json", "weights.safetensors")
    other = build_engine(brief, checkpoint)
    load(other, checkpoint)
    return {"weights": weights, "losses": losses, "again": train(brief, other, 2, STEPS), "path": str(checkpoint.path)}


def failed(folder: Path) -> list[str]:
    """The errors of all ranks if one of them cannot write."""
    brief, run, world = brief_for("flat", folder, 2, False, STEPS), Run(folder / "full"), distributed.get_world_size()
    engine, real = build_engine(brief, None), ChecksumFile.write
    error = None

    def full(self: ChecksumFile, content: bytes) -> int:
        self._error = OSError(28, "No space left on device")
        return real(self, content)

    if distributed.get_rank() == world - 1:
        ChecksumFile.write = full
    with closing(CheckpointWriter(run)) as writer:
        writer.save(engine, {"step": 1})
        train(brief, engine, 0, 1)  # continues
        try:
            writer.save(engine, {"step": 2})
        except Exception as found:
            error = f"{type(found).__name__}: {found}"
    ChecksumFile.write = real
    errors: list[Any] = [None] * world
    distributed.all_gather_object(errors, error)
    return [*errors, *(item.name for item in run.checkpoint_folder.iterdir() if item.name.startswith("step-"))]


def main() -> None:
    folder, rank, world = Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
    torch.set_num_threads(1)
    quiet_training()
    os.environ |= {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(world), "GLOO_SOCKET_IFNAME": "lo"}
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "0", "LOCAL_WORLD_SIZE": str(world)}
    store = distributed.FileStore(str(folder / "store"), world)
    distributed.init_process_group("gloo", store=store, rank=rank, world_size=world)
    found: dict[Any, Any] = {}
    for name, stage, low, has_memory in json.loads((folder / "cases.json").read_text()):
        with low_thresholds():
            found[name, stage, low, has_memory] = saved(folder, name, stage, low, has_memory)
    found["failed"] = failed(folder)
    if rank == 0:
        torch.save(found, folder / "found.pt")
    distributed.barrier()
    leave_process_group()


if __name__ == "__main__":
    main()
