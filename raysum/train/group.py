"""A process group of this process alone, for trainings that Ray Train makes none for."""

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import torch
from torch import distributed

from raysum.runtime.private import leave_process_group
from raysum.runtime.processes import environment


@contextmanager
def lone_group() -> Iterator[None]:
    """The group, for the length of the block."""
    names = {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "0"}
    backend = "nccl" if torch.cuda.is_available() else "gloo"
    with environment(names), tempfile.TemporaryDirectory(prefix="raysum-") as folder:
        meeting = (Path(folder) / "group").as_uri()
        distributed.init_process_group(backend, init_method=meeting, rank=0, world_size=1)
        try:
            yield
        finally:
            leave_process_group()
