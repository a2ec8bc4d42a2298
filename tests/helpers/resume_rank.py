"""One rank of a training that starts or resumes: ``resume_rank.py FOLDER PHASE RANK``.

``FOLDER/phases.json`` has the ZeRO stage, the hosts of all ranks, and the phases: [path or URL of the run, number of
workers, steps]. A host has an empty disk (RAYSUM_CACHE) in each phase. Rank 0 writes its losses by step to
``FOLDER/losses-PHASE.json``.
"""

import json
import os
import sys
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import torch
from torch import distributed

from helpers.gradient_cases import brief_for, low_thresholds
from raysum.config.workers import Workers
from raysum.data.dataset import Dataset
from raysum.runs.folder import Run
from raysum.runtime.compat import leave_process_group
from raysum.runtime.processes import quiet_training
from raysum.runtime.remote import local
from raysum.runtime.run_sync import push_so_far, refresh
from raysum.runtime.storage import read_lines
from raysum.stream.loader import batches
from raysum.train.checkpoints import TOKEN, newest_sound
from raysum.train.group import from_rank_0
from raysum.train.metrics_logger import Reporter
from raysum.train.requests import Requests
from raysum.train.worker import work


def train(folder: Path, rank: int, stage: int, name: str, world: int, steps: int) -> dict[int, float]:
    """Train as ``rank`` of ``world``; rank 0 also does what the driver does, on its host. Return the losses."""
    run, brief = Run(local(name)), brief_for("PHT", folder, stage, False, steps)
    settings = {"workers": Workers(world), "save_every": 2, "log_every": 1}
    train = brief.config.train.model_copy(update=settings)
    config = brief.config.model_copy(update={"train": train})
    brief = replace(brief, run=run, config=config, token=from_rank_0(brief.token))
    if rank == 0:
        refresh(run.path)
        newest_sound(run)
        if not run.exists:
            run.create(config, {}, Dataset.open(folder / "summarization").vocabulary_path)
        push_so_far(run.path)
        (run.path / TOKEN).write_text(brief.token)
    reporter = Reporter(run, rank == 0)
    with low_thresholds(), closing(reporter), closing(Requests()) as requests:
        work(brief, lambda start: batches(brief.train, rank, world, start, steps), reporter, requests)
    return {line["step"]: line["loss"] for line in read_lines(run.metrics) if "loss" in line}


def main() -> None:
    folder, number, rank = Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
    stage, hosts, phases = json.loads((folder / "phases.json").read_text())
    name, world, steps = phases[number]
    torch.set_num_threads(1)
    quiet_training()
    local_rank, neighbours = hosts[:rank].count(hosts[rank]), hosts[:world].count(hosts[rank])
    os.environ |= {"RANK": str(rank), "GLOO_SOCKET_IFNAME": "lo", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "0"}
    os.environ |= {"LOCAL_RANK": str(local_rank), "LOCAL_WORLD_SIZE": str(neighbours), "WORLD_SIZE": str(world)}
    os.environ["RAYSUM_CACHE"] = str(folder / f"disk-{number}-{hosts[rank]}")
    store = distributed.FileStore(str(folder / f"store-{number}"), world)
    distributed.init_process_group("gloo", store=store, rank=rank, world_size=world)
    losses = train(folder, rank, stage, name, world, steps)
    distributed.barrier()
    leave_process_group()
    if rank == 0:
        (folder / f"losses-{number}.json").write_text(json.dumps(losses))


if __name__ == "__main__":
    main()
