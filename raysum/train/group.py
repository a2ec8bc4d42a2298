"""The process of a worker: threads, silence, and a process group of its own where Ray Train made none."""

import logging
import os
import tempfile
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import torch
from torch import distributed

from raysum.runtime.allocator import keep_freed_memory
from raysum.runtime.environment import environment


def settle(threads: int | None, neighbours: int) -> None:
    """Give this process its ``threads`` (None: its share of the cores among ``neighbours`` workers), and silence it.

    Called before DeepSpeed is imported, in every worker.
    """
    torch.set_num_threads(threads or max(1, cores() // neighbours))
    keep_freed_memory()
    silence()


def silence() -> None:
    """Keep DeepSpeed's and torch's remarks off the terminal, and tell DeepSpeed where there is no CUDA."""
    warnings.filterwarnings("ignore")
    logging.getLogger("DeepSpeed").setLevel(logging.ERROR)
    if not torch.cuda.is_available():
        os.environ["DS_ACCELERATOR"] = "cpu"


def cores() -> int:
    """Cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def cpu_share(workers: int) -> float:
    """CPUs that one of ``workers`` asks Ray for: one, or where there are few a part of half of all.

    The other half is left to Ray Data's readers, so that nothing waits for CPUs that are not there.
    """
    import ray

    return min(1.0, ray.cluster_resources().get("CPU", 1) / 2 / workers)


@contextmanager
def lone_group() -> Iterator[None]:
    """A process group of this process alone, for the length of the block."""
    names = {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "0"}
    backend = "nccl" if torch.cuda.is_available() else "gloo"
    with environment(names), tempfile.TemporaryDirectory(prefix="raysum-") as folder:
        meeting = (Path(folder) / "group").as_uri()
        distributed.init_process_group(backend, init_method=meeting, rank=0, world_size=1)
        try:
            yield
        finally:
            _leave()


def _leave() -> None:
    """End the group, and what DeepSpeed remembers of it, so that another can be made in this process."""
    import deepspeed.comm.comm

    if deepspeed.comm.comm.cdb is None:
        distributed.destroy_process_group()
    else:
        deepspeed.comm.destroy_process_group()
        deepspeed.comm.comm.cdb = None
