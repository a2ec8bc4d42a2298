"""A process of raysum's: its environment, its threads, and how its C library keeps freed memory."""

import ctypes
import gc
import os
import resource
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

from raysum.runtime.log_filters import quiet_training

_Result = TypeVar("_Result")
_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3  # of mallopt(3)
_LARGEST = 64 << 20  # bytes: larger blocks still go back at once, as keeping them costs too much memory
_KEPT = 256 << 20  # bytes that may stay free at the end of the heap

# OpenMP's threads sleep while they wait for each other, after some microseconds in which they spin. Spinning takes the
# cores from whoever has the work that they wait for, and sleeping on an idle core costs more than the work of a small
# model. OpenMP reads this when torch is imported. Searches a second of the quickstart's model in a virtual machine, two
# threads on two cores, by torch's own way, asleep at once, and so: alone 9.0, 3.4, 6.9; beside loops on both cores
# 0.05, 1.9, 2.8; two such processes together 2.9, 10.2, 5.7; four 0.1, 8.3, 5.3.
_WAITING = {"OMP_WAIT_POLICY": "PASSIVE", "GOMP_SPINCOUNT": "1000"}


def let_threads_sleep() -> None:
    """Before torch is imported; nothing where the user has chosen how threads wait."""
    if not _WAITING.keys() & os.environ.keys():
        os.environ.update(_WAITING)


@contextmanager
def environment(values: Mapping[str, str]) -> Iterator[None]:
    """The variables have these ``values``, in this process and in those that it starts; then what they had before."""
    before = {name: os.environ[name] for name in values if name in os.environ}
    os.environ.update(values)
    try:
        yield
    finally:
        for name in values:
            os.environ.pop(name, None)
        os.environ.update(before)


def interruptible(work: Callable[..., _Result], *given: Any) -> _Result:
    """What ``work`` returns or raises, in a thread of its own: Ctrl-C does not wait for the end of code in C, which is
    then left behind."""
    future: Future[_Result] = Future()

    def run() -> None:
        try:
            future.set_result(work(*given))
        except BaseException as error:
            future.set_exception(error)

    threading.Thread(target=run, daemon=True).start()
    return future.result()


def cores() -> int:
    """Cores that this process may use: those of its affinity, and of a container's share of their time."""
    found = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return min(found, cores_of_share(Path("/sys/fs/cgroup")) or found)


def cores_of_share(groups: Path) -> int | None:
    """The cores, rounded up, whose time the control group mounted at ``groups`` may use; None without a bound."""
    try:
        if (groups / "cpu.max").exists():  # version 2
            most, period = (groups / "cpu.max").read_text().split()
        else:
            most, period = ((groups / f"cpu/cpu.cfs_{name}_us").read_text() for name in ("quota", "period"))
        return -(-int(most) // int(period)) if int(most) > 0 else None
    except (OSError, ValueError):  # no group, or `max`
        return None


def settle(threads: int | None, neighbours: int) -> None:
    """Give this process its ``threads`` (None: its share of the cores among ``neighbours`` alike), and silence it.

    Called before DeepSpeed is imported, in every process that trains or labels.
    """
    import torch

    torch.set_num_threads(threads or max(1, cores() // neighbours))
    keep_freed_memory()
    quiet_training()


def keep_freed_memory() -> None:
    """Reuse freed blocks in this process; nothing where the C library is not glibc.

    By default it gives every larger block back, and each new one, such as a model's activations, is zeroed again.
    Measured on two cores (PHT, HT, 4 examples of up to 30 paragraphs, a training step): 5.8 -> 4.7 and 13.3 -> 11.7 s
    of CPU time, 0.5 -> 0.1 and 3.2 -> 0.6 s of them in the system.
    """
    if not sys.platform.startswith("linux"):
        return
    library = ctypes.CDLL(None)
    if hasattr(library, "mallopt"):
        library.mallopt(_MMAP_THRESHOLD, _LARGEST)
        library.mallopt(_TRIM_THRESHOLD, _KEPT)


def forget_peak() -> None:
    """:func:`peak_rss_mb` is from now on that of what follows, as if freed memory had never been held; only on Linux
    with glibc, elsewhere nothing."""
    library = ctypes.CDLL(None)
    if sys.platform.startswith("linux") and hasattr(library, "malloc_trim"):
        gc.collect()
        library.malloc_trim(0)
        Path("/proc/self/clear_refs").write_text("5")  # proc(5): resets VmHWM


def peak_rss_mb() -> float:
    """The most memory that this process has held at one time, in MiB.

    Linux counts what the parent held into ``ru_maxrss`` of a new process, but not into VmHWM.
    """
    if sys.platform.startswith("linux"):
        (line,) = [line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("VmHWM:")]
        return int(line.split()[1]) / (1 << 10)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak / (1 << 20 if sys.platform == "darwin" else 1 << 10)
