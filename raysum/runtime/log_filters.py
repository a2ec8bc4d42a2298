"""Keeping other libraries' remarks off the user's terminal: what matters of them is raised as well."""

import logging
import os
import warnings
from collections.abc import Iterator
from contextlib import contextmanager

from raysum.runtime.compat import hide_worker_logs


def quiet_ray() -> None:
    """Errors alone of Ray, in this process."""
    hide_worker_logs()
    for name in ("ray", "ray.data", "ray.train", "ray.tune", "ray.serve"):
        logging.getLogger(name).setLevel(logging.ERROR)


def quiet_data() -> None:
    """No bars and announcements of Ray Data, in this process."""
    import ray.data

    context = ray.data.DataContext.get_current()
    context.enable_progress_bars = False
    context.print_on_execution_start = False
    logging.getLogger("ray.data").setLevel(logging.ERROR)


def quiet_training() -> None:
    """No remarks of DeepSpeed and torch, in this process; tells DeepSpeed where there is no CUDA."""
    import torch

    warnings.filterwarnings("ignore")
    logging.getLogger("DeepSpeed").setLevel(logging.ERROR)
    if not torch.cuda.is_available():
        os.environ["DS_ACCELERATOR"] = "cpu"


@contextmanager
def muted(name: str) -> Iterator[None]:
    """The logger ``name`` says nothing in the block."""
    logger = logging.getLogger(name)
    level = logger.level
    logger.setLevel(logging.CRITICAL + 1)
    try:
        yield
    finally:
        logger.setLevel(level)


@contextmanager
def hushed() -> Iterator[None]:
    """Nothing reaches stderr in the block, from C++ either: torch's profiler says each start and stop there."""
    before = os.dup(2)
    with open(os.devnull, "wb") as nowhere:
        os.dup2(nowhere.fileno(), 2)
    try:
        yield
    finally:
        os.dup2(before, 2)
        os.close(before)
