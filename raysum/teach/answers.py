"""What the teacher has answered: kept beside the output, on the disk before anything else is done with it."""

import fcntl
import json
import os
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

from raysum.errors import UserError
from raysum.runtime.progress import say
from raysum.runtime.storage import parsed

CUT = "the answer is cut at max_tokens"
_PATIENCE = 180  # seconds that a process of a killed start may live on
_LOOK = 0.1
_OURS = (b'{"key"', b'{"prompt"')  # how a line begins


@dataclass(frozen=True)
class Answer:
    """One answer: its text, or the ``reason`` for which it is of no use; and the tokens that it cost."""

    text: str
    reason: str = ""
    prompt_tokens: int = 0
    completion_tokens: int = 0
    served: str = ""  # the model, as the server calls it
    max_tokens: int = 0  # that it could have had

    @property
    def tokens(self) -> int:
        return self.prompt_tokens + self.completion_tokens


class Answers:
    """The answers of one output by key, and the prompts that they are to; many threads of one process may share them.

    Only keys and places in the file are held in memory.
    """

    def __init__(self, path: Path):
        self.path, self.prompt_tokens, self.completion_tokens = path, 0, 0
        self._places, self._prompts, self._lines = dict[str, int](), set[str](), 0
        self._lock = threading.Lock()
        self._out = os.open(path, os.O_RDWR | os.O_APPEND | os.O_CREAT, 0o666)
        self._file = path.open("rb")
        _take(self._out, path)
        self._read()
        self._known = os.fstat(self._out).st_size

    def __len__(self) -> int:
        """Also of those that another has taken the place of."""
        return self._lines

    @property
    def tokens(self) -> int:
        return self.prompt_tokens + self.completion_tokens

    def get(self, key: str, max_tokens: int) -> Answer | None:
        """None also for one that was cut, where there may be more of it by now."""
        with self._lock:
            if key not in self._places:
                return None
            self._file.seek(self._places[key])
            told = json.loads(self._file.readline())
        found = Answer(**{name: value for name, value in told.items() if name != "key"})
        return None if found.reason == CUT and found.max_tokens < max_tokens else found

    def is_old(self, key: str) -> bool:
        """Whether it was there when the file was opened."""
        return self._places[key] < self._known

    def add(self, key: str, answer: Answer) -> None:
        """Keep an answer: it is on the disk when this returns. Raises OSError where there is no room for it."""
        with self._lock:
            self._places[key] = self._append({"key": key, **asdict(answer)})
            self._count(answer.prompt_tokens, answer.completion_tokens)

    def note(self, sha: str, prompt: str) -> None:
        """Keep the text of a prompt, which rows tell by its hash."""
        if sha not in self._prompts:
            self._append({"prompt": sha, "text": prompt})
            self._prompts.add(sha)

    def close(self) -> None:
        """Whoever adds afterwards is told so by an OSError."""
        with self._lock:
            self._file.close()
            os.close(self._out)
            self._out = -1

    def _append(self, told: Mapping[str, Any]) -> int:
        """The place of the line that is written, whole or not at all."""
        line, place = json.dumps(told).encode() + b"\n", os.fstat(self._out).st_size
        try:
            written = 0
            while written < len(line):
                written += os.write(self._out, line[written:])
            os.fsync(self._out)
        except OSError as error:
            with suppress(OSError):
                os.ftruncate(self._out, place)
            error.filename = str(self.path)
            raise
        return place

    def _count(self, prompt: int, completion: int) -> None:
        self._lines += 1
        self.prompt_tokens += prompt
        self.completion_tokens += completion

    def _read(self) -> None:
        """Raises UserError where the file is something else. What a killed process has torn is passed over."""
        place, line = 0, b"\n"
        for line in self._file:
            found = line.strip(b"\0\n")
            told = next(parsed([found]), {})
            if "prompt" in told:
                self._prompts.add(str(told["prompt"]))
            elif _is_answer(told):
                self._count(told["prompt_tokens"], told["completion_tokens"])
                self._places[told["key"]] = place
            elif not any(found.startswith(begin[: len(found)]) for begin in _OURS):
                raise UserError(f"{self.path} holds no answers; remove it, or choose another --out")
            place += len(line)
        if not line.endswith(b"\n"):
            os.write(self._out, b"\n")


def _is_answer(told: Mapping[str, Any]) -> bool:
    """Whether a line was written by :meth:`Answers.add`; of another there may be wrong words, and it is asked again."""
    kinds = {"key": str} | {one.name: one.type for one in fields(Answer)}
    return (
        told.keys() == kinds.keys()
        and all(type(told[name]) is kind for name, kind in kinds.items())
        and all(told[name] >= 0 for name, kind in kinds.items() if kind is int)
    )


@contextmanager
def answers_in(path: Path) -> Iterator[Answers]:
    """The answers of a file, which is made if need be. Raises UserError where that cannot be."""
    try:
        found = Answers(path)
    except OSError as error:
        raise UserError(f"cannot write {path} ({error.strerror}); choose another --out") from None
    try:
        yield found
    finally:
        found.close()


def _take(file: int, path: Path) -> None:
    """Lock the open ``file``, which is freed as its process ends. Raises UserError where another goes on holding it."""
    for look in range(round(_PATIENCE / _LOOK)):
        if look == round(1 / _LOOK):
            say(f"Waiting for what an earlier start left running, which still writes {path}")
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            time.sleep(_LOOK)
        except OSError:  # a file system that cannot lock
            return
        else:
            return
    raise UserError(f"{path} is still written by another process; wait for its end, or choose another --out")
