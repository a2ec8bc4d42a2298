"""The page of a search in its folder, written anew while it runs: whoever opened it sees how far it has come."""

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from raysum.runtime.progress import say
from raysum.runtime.storage import write_text
from raysum.tune.page import EVERY, page
from raysum.tune.record import read_search

_SHARE, _LONGEST = 20, 30.0  # times its processor seconds pass until it is written again; seconds, at most


@contextmanager
def paged(out: Path) -> Iterator[Path]:
    """The page of the search in ``out`` follows the block, and then tells how it ended.

    What cannot be written or read is said once, and stops nothing.
    """
    stopped, file, told = threading.Event(), out / "index.html", list[str]()

    def write(running: bool) -> None:
        try:
            write_text(file, page(read_search(out, running)))
        except Exception as error:  # whatever it is, the search is worth more
            told.append(str(error))
            if len(told) == 1:
                say(f"the search's page {file} cannot be written ({error}); the search goes on")

    def follow() -> None:
        wait = 0.0
        while not stopped.wait(wait):
            began = time.thread_time()
            write(running=True)
            wait = max(EVERY, min(_SHARE * (time.thread_time() - began), _LONGEST))

    thread = threading.Thread(target=follow, name="search page", daemon=True)
    thread.start()
    try:
        yield file
    finally:
        stopped.set()
        thread.join()
        write(running=False)
