"""What the process that asks has to say, from wherever it runs to where the user reads it."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

from raysum.runtime.progress import say

_LOOK = 0.5  # seconds


def tell(text: str, relay: Path | None) -> None:
    """Say it; in a process whose stderr nobody reads, by the file that :func:`relayed` follows."""
    if relay is None:
        say(text)
    else:
        with relay.open("a", encoding="utf-8") as file:
            file.write(" ".join(text.split()) + "\n")


@contextmanager
def relayed() -> Iterator[Path]:
    """A file of this machine whose lines are said in the block, as they come."""
    with TemporaryDirectory(prefix="raysum-") as folder:
        relay, ended = Path(folder, "said"), threading.Event()
        relay.touch()

        def follow() -> None:
            with relay.open(encoding="utf-8") as file:
                done = False
                while not done:
                    done = ended.wait(_LOOK)  # once more after the end
                    for line in file:
                        say(line.rstrip("\n"))

        thread = threading.Thread(target=follow, daemon=True)
        thread.start()
        try:
            yield relay
        finally:
            ended.set()
            thread.join()
