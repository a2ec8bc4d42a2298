"""One rank of trainings by several gloo processes: ``gradient_rank.py FOLDER RANK WORLD``.

``FOLDER/asked-WORLD.json`` has the number of steps and a list of [case, stage, low]; rank 0 writes what it found of
each to ``FOLDER/found-WORLD.pt``. The case "one rank has other kernels" must fail.
"""

import gc
import json
import os
import sys
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import torch
from torch import distributed

from helpers.gradient_cases import PACKED, brief_for, low_thresholds
from helpers.packed_kernel import packed_kernel
from raysum.errors import UserError
from raysum.models.kernels import linear
from raysum.runtime.compat import leave_process_group
from raysum.runtime.processes import quiet_training
from raysum.stream.loader import batches
from raysum.train.engine import HookOrder, build_engine
from raysum.train.metrics_logger import Meter
from raysum.train.worker import step


def trained(
    folder: Path, name: str, stage: int, low: bool, steps: int
) -> tuple[dict[str, torch.Tensor], list[float], list[float]]:
    """As ``gradient_cases.plain_loop``, by the training loop's own step."""
    brief = brief_for(name, folder, stage, low, steps)
    rank, world = distributed.get_rank(), distributed.get_world_size()
    engine = build_engine(brief, None)
    order = HookOrder(engine, steps)
    first = _gradients_at_first_update(engine)
    coming, meter = batches(brief.train, rank, world, 0, steps), Meter(engine.device, {})
    lines = []
    for number in range(steps):
        used = step(engine, brief, number, coming, meter)
        order.check()
        lines.append(meter.line(number + 1, used))
    distributed.barrier()
    return first, [line["loss"] for line in lines], [line["grad_norm"] for line in lines]


def _gradients_at_first_update(engine: Any) -> dict[str, torch.Tensor]:
    """Filled when the engine is about to update for the first time: the gradient of each parameter, of all ranks."""
    from deepspeed.utils import safe_get_full_grad

    found: dict[str, torch.Tensor] = {}
    update = engine.step

    def watched() -> None:
        if engine.is_gradient_accumulation_boundary() and not found:
            for name, weight in engine.module.named_parameters():
                if weight.requires_grad:
                    whole = safe_get_full_grad(weight) if engine.zero_optimization_stage() else weight.grad
                    found[name] = whole.detach().float().cpu().clone()
        update()

    engine.step = watched
    return found


def main() -> None:
    folder, rank, world = Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
    torch.set_num_threads(1)
    quiet_training()
    os.environ |= {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(world), "GLOO_SOCKET_IFNAME": "lo"}
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "0"}
    store = distributed.FileStore(str(folder / f"store-{world}"), world)
    distributed.init_process_group("gloo", store=store, rank=rank, world_size=world)
    found: dict[Any, Any] = {}
    steps, asked = json.loads((folder / f"asked-{world}.json").read_text())
    for name, stage, low in asked:
        with low_thresholds():
            if name == "one rank has other kernels":
                linear._LEAST_MATRIX = linear._LEAST_MATRIX if rank else 1 << 60
                try:
                    trained(folder, "flat", stage, low, steps)
                except UserError as error:
                    found[name, stage, low] = str(error)
            else:
                with packed_kernel() if name in PACKED else nullcontext([1]) as calls:
                    found[name, stage, low] = trained(folder, name, stage, low, steps)
                assert calls
        gc.collect()
    if rank == 0:
        torch.save(found, folder / f"found-{world}.pt")
    distributed.barrier()
    leave_process_group()


if __name__ == "__main__":
    main()
