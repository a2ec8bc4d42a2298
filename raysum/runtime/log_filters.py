"""Hide log messages of other libraries. Important problems are also raised as errors."""

import logging
import os
import warnings
from collections.abc import Iterator
from contextlib import contextmanager

from raysum.runtime.compat import hide_worker_logs


def quiet_ray() -> None:
    """Show only errors of Ray in this process."""
    hide_worker_logs()
    for name in ("ray", "ray.data", "ray.train", "ray.tune", "ray.serve"):
        logging.getLogger(name).setLevel(logging.ERROR)


def quiet_data() -> None:
    """Hide progress bars and messages of Ray Data in this process."""
    import ray.data

    context = ray.data.DataContext.get_current()
    context.enable_progress_bars = False
    context.print_on_execution_start = False
    logging.getLogger("ray.data").setLevel(logging.ERROR)


def quiet_training() -> None:
    """Hide warnings of DeepSpeed and torch in this process, and set DeepSpeed's accelerator if there is no CUDA."""
    import torch

    warnings.filterwarnings("ignore")
    logging.getLogger("DeepSpeed").setLevel(logging.ERROR)
    if not torch.cuda.is_available():
        os.environ["DS_ACCELERATOR"] = "cpu"


@contextmanager
def muted(name: str) -> Iterator[None]:
    """Silence the logger ``name`` during the block."""
    logger = logging.getLogger(name)
    level = logger.level
    logger.setLevel(logging.CRITICAL + 1)
    try:
        yield
    finally:
        logger.setLevel(level)


@contextmanager
def hushed() -> Iterator[None]:
    """Discard all output to stderr during the block, also from C++: torch's profiler reports each start and stop."""
    before = os.dup(2)
    with open(os.devnull, "wb") as nowhere:
        os.dup2(nowhere.fileno(), 2)
    try:
        yield
    finally:
        os.dup2(before, 2)
        os.close(before)
