"""Each measurement in a process of its own, so that its peak memory is its own and nothing warm is left by another."""

import multiprocessing
import os
import threading
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from typing import Any

from raysum.errors import UserError
from raysum.runtime.processes import keep_freed_memory, peak_rss_mb

Row = dict[str, Any]


def alone(work: Callable[..., Row], *arguments: Any) -> Row:
    """The row that ``work(*arguments)`` gives in a fresh process, with that process' ``peak_rss_mb`` if it lacks one.

    Raises UserError where the process is lost (as a rule: out of memory).
    """
    with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as pool:
        try:
            return pool.submit(_measured, work, arguments).result()
        except BrokenProcessPool:
            message = f"a measuring process was killed, as a rule for memory: {arguments}; ask for less"
            raise UserError(message) from None


def _end_with_parent() -> None:
    """A killed benchmark leaves no process that goes on measuring."""
    parent = multiprocessing.parent_process()
    assert parent, "this is a child"
    parent.join()
    os._exit(1)


def _measured(work: Callable[..., Row], arguments: tuple[Any, ...]) -> Row:
    threading.Thread(target=_end_with_parent, daemon=True).start()
    keep_freed_memory()
    row = work(*arguments)
    return {**row, "peak_rss_mb": round(row.get("peak_rss_mb", peak_rss_mb()), 1)}
