"""Process settings: environment variables, threads, memory, and hidden messages of other libraries."""

import ctypes
import gc
import logging
import os
import re
import resource
import sys
import threading
import warnings
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, TypeVar

import psutil

from raysum.runtime.compat import hide_worker_logs

_Result = TypeVar("_Result")
_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3  # of mallopt(3)
_LARGEST = 64 << 20  # bytes: larger blocks still go back at once, as keeping them costs too much memory
_KEPT = 256 << 20  # bytes that may stay free at the end of the heap

# OpenMP's threads spin while they wait for each other, for about as long as it takes to wake one up, then sleep. Longer
# spinning takes cores from the threads that they wait for; sleeping at once costs more than the work of a small model.
# OpenMP reads these variables when torch is imported. Measured on two cores of a virtual machine, two threads:
# searches per second of the quickstart's model with torch's default, with immediate sleep, and with 1,000 turns: alone
# 9.0, 3.4, 6.9; beside busy loops on both cores 0.05, 1.9, 2.8; four such processes 0.1, 8.3, 5.3. Milliseconds of a
# decoding step of `ft` with 1,000, 3,000 and 5,000 turns: alone 12.5, 10.2, 9.9 (in int8 10.3, 7.1, 7.4), two such
# processes 19, 26, 35; four, with the first two, 43 and 58.
_WAITING = {"OMP_WAIT_POLICY": "PASSIVE", "GOMP_SPINCOUNT": "3000"}


def let_threads_sleep() -> None:
    """Set how OpenMP threads wait, unless the user did. Call it before torch is imported."""
    if not _WAITING.keys() & os.environ.keys():
        os.environ.update(_WAITING)


@contextmanager
def environment(values: Mapping[str, str]) -> Iterator[None]:
    """Set environment variables for this process and its children, and restore them after the block."""
    before = {name: os.environ[name] for name in values if name in os.environ}
    os.environ.update(values)
    try:
        yield
    finally:
        for name in values:
            os.environ.pop(name, None)
        os.environ.update(before)


def interruptible(work: Callable[..., _Result], *args: Any) -> _Result:
    """Run ``work`` in another thread and return its result, so that Ctrl-C need not wait for the end of C code."""
    future: Future[_Result] = Future()

    def run() -> None:
        try:
            future.set_result(work(*args))
        except BaseException as error:
            future.set_exception(error)

    threading.Thread(target=run, daemon=True).start()
    return future.result()


def child_command(module: str) -> list[str]:
    """Return the command of a Python process that runs ``main()`` of ``module``, with the import path of this one."""
    path = [folder or os.getcwd() for folder in sys.path]
    return [sys.executable, "-c", f"import sys; sys.path[:] = {path!r}; from {module} import main; main()"]


def cores() -> int:
    """Return the number of cores that this process may use, by its affinity and its container's CPU limit."""
    found = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return min(found, cpu_limit(Path("/sys/fs/cgroup")) or found)


def cpu_limit(groups: Path) -> int | None:
    """Return the CPU limit, in cores rounded up, of the control group mounted at ``groups``; None without a limit.

    joblib counts the same, but its import takes 0.15 s of every start.
    """
    try:
        if (groups / "cpu.max").exists():  # version 2
            most, period = (groups / "cpu.max").read_text().split()
        else:
            most, period = ((groups / f"cpu/cpu.cfs_{name}_us").read_text() for name in ("quota", "period"))
        return -(-int(most) // int(period)) if int(most) > 0 else None
    except (OSError, ValueError):  # no group, or `max`
        return None


def available_memory(groups: Path = Path("/sys/fs/cgroup")) -> int:
    """Return the bytes of memory that new processes can use, by the machine and by its control group at ``groups``."""
    free, group = psutil.virtual_memory().available, _memory_of_group(groups)
    return min(free, group[0] - group[1]) if group else free


def _memory_of_group(groups: Path) -> tuple[int, int] | None:
    """Return the memory limit of a control group (version 2 or 1) and its use, in bytes; None without a limit.

    The use excludes cached files that the kernel drops first. Version 1 has a limit larger than any memory by default.
    """
    names = ("memory.max", "memory.current", "inactive_file")
    if not (groups / names[0]).exists():
        groups, names = groups / "memory", ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file")
    limit, usage, cached = names
    try:
        found = re.search(rf"^{cached} (\d+)$", (groups / "memory.stat").read_text(), re.MULTILINE)
        used = int((groups / usage).read_text()) - int(found[1] if found else 0)
        return int((groups / limit).read_text()), used
    except (OSError, ValueError):  # no group, or `max`
        return None


def run_near(address: str, devices: Path = Path("/sys/bus/pci/devices")) -> None:
    """Let this process, with the threads it has and starts, run only on the cores next to a PCI device (Linux).

    ``address`` is one such as 0000:4f:00.0, of a folder in ``devices``. Nothing changes if the kernel does not know the
    device, or if this process may use none of those cores.
    """
    try:
        parts = [part.split("-") for part in (devices / address / "local_cpulist").read_text().strip().split(",")]
        near = {core for first, *last in parts for core in range(int(first), int([first, *last][-1]) + 1)}
        chosen = near & os.sched_getaffinity(0)
    except (OSError, ValueError):
        return
    for thread in os.listdir("/proc/self/task") if chosen else ():
        with suppress(OSError):  # it has ended
            os.sched_setaffinity(int(thread), chosen)


def configure_process(threads: int | None, neighbours: int) -> None:
    """Set the number of threads of this process (None: the cores divided by ``neighbours``), and quiet its logs.

    Every process that trains or labels calls it before DeepSpeed is imported.
    """
    import torch

    torch.set_num_threads(threads or max(1, cores() // neighbours))
    keep_freed_memory()
    quiet_training()


def keep_freed_memory() -> None:
    """Let glibc keep freed blocks of memory for reuse; other C libraries are left as they are.

    By default every larger block is returned, and each new one, such as a model's activations, is zeroed again.
    Measured on two cores (PHT, HT, 4 examples of up to 30 paragraphs, a training step): 5.8 -> 4.7 and 13.3 -> 11.7 s
    of CPU time, 0.5 -> 0.1 and 3.2 -> 0.6 s of them in the system.
    """
    if sys.platform.startswith("linux") and hasattr(library := ctypes.CDLL(None), "mallopt"):
        library.mallopt(_MMAP_THRESHOLD, _LARGEST)
        library.mallopt(_TRIM_THRESHOLD, _KEPT)


def return_freed_memory() -> None:
    """Return freed memory to the system (Linux with glibc only)."""
    if sys.platform.startswith("linux") and hasattr(library := ctypes.CDLL(None), "malloc_trim"):
        gc.collect()
        library.malloc_trim(0)


def forget_peak() -> None:
    """Return freed memory and reset the peak that :func:`peak_rss_mb` reports (Linux only)."""
    return_freed_memory()
    if sys.platform.startswith("linux"):
        Path("/proc/self/clear_refs").write_text("5")  # proc(5): resets VmHWM


def peak_rss_mb() -> float:
    """Return the peak resident memory of this process in MiB.

    On Linux ``ru_maxrss`` of a new process includes its parent's memory; VmHWM does not.
    """
    if sys.platform.startswith("linux"):
        (line,) = [line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("VmHWM:")]
        return int(line.split()[1]) / (1 << 10)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak / (1 << 20 if sys.platform == "darwin" else 1 << 10)


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
