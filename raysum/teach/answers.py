"""The teacher's answers: an SQLite file beside the output. Each answer is on the disk before anything else uses it."""

import sqlite3
import threading
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import astuple, dataclass, fields
from pathlib import Path
from typing import Any

from raysum.errors import UserError
from raysum.runtime.storage import parsed

CUT = "the answer is cut at max_tokens"
_HEADER = b"SQLite format 3\0"
_APPLICATION = 0x72617973  # "rays": marks the file as ours
_OLD_LINES = (b'{"key"', b'{"prompt"')  # starts of lines in the JSONL files of raysum 0.1
_SCHEMA = f"""
PRAGMA application_id = {_APPLICATION};
CREATE TABLE prompts (sha256 TEXT PRIMARY KEY, text TEXT NOT NULL);
CREATE TABLE answers (
    id INTEGER PRIMARY KEY,
    key TEXT NOT NULL,
    text TEXT NOT NULL,
    reason TEXT NOT NULL,
    prompt_tokens INTEGER NOT NULL,
    completion_tokens INTEGER NOT NULL,
    served TEXT NOT NULL,
    max_tokens INTEGER NOT NULL
);
CREATE INDEX by_key ON answers (key, id);
"""


@dataclass(frozen=True)
class Answer:
    """An answer: its text and cost, and the ``reason`` if it is rejected."""

    text: str
    reason: str = ""
    prompt_tokens: int = 0
    completion_tokens: int = 0
    served: str = ""  # the model name that the server reports
    max_tokens: int = 0  # the limit of the request


class Answers:
    """The answers of one output by key, and the prompts that they answer. The threads of one process may share it.

    An answer never replaces an older one of the same key: all of them count as spent tokens.
    """

    def __init__(self, db: sqlite3.Connection):
        self._db, self._lock = db, threading.Lock()
        sums = "total(prompt_tokens), total(completion_tokens)"
        last, prompt, completion = self._db.execute(f"SELECT max(id), {sums} FROM answers").fetchone()
        self._last_old, self.prompt_tokens, self.completion_tokens = last or 0, int(prompt), int(completion)
        self.added = 0  # answers since the file was opened

    def get(self, key: str, max_tokens: int, retry_rejected: bool = False) -> Answer | None:
        """Return the latest answer; None if there is none, or if it was cut and ``max_tokens`` now allows more.

        ``retry_rejected`` also ignores rejected answers that were there before the file was opened.
        """
        with self._lock:
            query = f"SELECT id, {_COLUMNS} FROM answers WHERE key = ? ORDER BY id DESC LIMIT 1"
            row = self._db.execute(query, (key,)).fetchone()
        if row is None:
            return None
        number, answer = row[0], Answer(*row[1:])
        if answer.reason == CUT and answer.max_tokens < max_tokens:
            return None
        return None if retry_rejected and answer.reason and number <= self._last_old else answer

    def add(self, key: str, answer: Answer) -> None:
        """Write an answer. It is on the disk when this returns."""
        with self._lock:
            self._db.execute(_INSERT, (key, *astuple(answer)))
            self.added += 1
            self.prompt_tokens += answer.prompt_tokens
            self.completion_tokens += answer.completion_tokens

    def add_prompt(self, sha256: str, text: str) -> None:
        """Write the text of a prompt, which rows of the output name by its hash."""
        with self._lock:
            self._db.execute("INSERT OR IGNORE INTO prompts VALUES (?, ?)", (sha256, text))

    def close(self) -> None:
        with self._lock:
            self._db.close()


_COLUMNS = ", ".join(field.name for field in fields(Answer))
_INSERT = f"INSERT INTO answers (key, {_COLUMNS}) VALUES ({', '.join('?' * (len(fields(Answer)) + 1))})"


@contextmanager
def open_answers(path: Path) -> Iterator[Answers]:
    """Open the answers file, or create it; a new one without answers is removed if an error ends the block.

    Raises UserError if it is damaged, of another program, or not writable.
    """
    is_new, added = not path.exists(), 0
    try:
        if _is_jsonl(path):
            _import_lines(path)
        with closing(_connected(path)) as db:
            _set_up(db, path)
            with closing(Answers(db)) as answers:
                try:
                    yield answers
                finally:
                    added = answers.added
    except sqlite3.Error as error:
        raise UserError(_explained(path, error)) from None
    except BaseException:
        if is_new and not added:
            path.unlink(missing_ok=True)
        raise


def _is_jsonl(path: Path) -> bool:
    """Return whether the file is of an older version, or of another program."""
    try:
        with path.open("rb") as file:
            return file.read(len(_HEADER)) not in (b"", _HEADER)
    except FileNotFoundError:
        return False
    except OSError as error:
        raise UserError(f"cannot write {path} ({error.strerror}); choose another --out") from None


def _connected(path: Path) -> sqlite3.Connection:
    """Return a connection that commits each statement."""
    return sqlite3.connect(path, isolation_level=None, check_same_thread=False)


def _set_up(db: sqlite3.Connection, path: Path) -> None:
    """Lock the file for this process alone, also against readers, and create its tables if it is new."""
    db.execute("PRAGMA locking_mode = EXCLUSIVE")  # the write-ahead log then needs no shared memory
    db.execute("PRAGMA journal_mode = WAL")
    db.execute("PRAGMA synchronous = FULL")  # each commit waits for the disk
    if db.execute("PRAGMA application_id").fetchone()[0] != _APPLICATION:
        if db.execute("SELECT count(*) FROM sqlite_master").fetchone()[0]:
            raise UserError(f"{path} holds no answers; remove it, or choose another --out")
        db.executescript(f"BEGIN; {_SCHEMA} COMMIT;")


def _import_lines(path: Path) -> None:
    """Replace a JSONL file of raysum 0.1 by an SQLite file. Skips lines that a killed process left incomplete."""
    partial = path.with_name(f".{path.name}.partial")
    partial.unlink(missing_ok=True)
    try:
        with closing(_connected(partial)) as db, path.open("rb") as lines:
            db.executescript(f"BEGIN; {_SCHEMA}")
            for line in lines:
                line = line.strip(b"\0\n")
                value = next(parsed([line]), {})
                if "prompt" in value:
                    row = (str(value["prompt"]), str(value.get("text", "")))
                    db.execute("INSERT OR IGNORE INTO prompts VALUES (?, ?)", row)
                elif _is_answer(value):
                    db.execute(_INSERT, (value["key"], *(value[field.name] for field in fields(Answer))))
                elif not any(line.startswith(start[: len(line)]) for start in _OLD_LINES):
                    raise UserError(f"{path} holds no answers; remove it, or choose another --out")
            db.execute("COMMIT")
        partial.replace(path)
    finally:
        for name in (partial.name, f"{partial.name}-journal"):
            partial.with_name(name).unlink(missing_ok=True)


def _is_answer(value: Mapping[str, Any]) -> bool:
    """Return whether a line of an older version is complete. An answer with other fields is asked for again."""
    types = {"key": str} | {field.name: field.type for field in fields(Answer)}
    return (
        value.keys() == types.keys()
        and all(type(value[name]) is kind for name, kind in types.items())
        and all(value[name] >= 0 for name, kind in types.items() if kind is int)
    )


def _explained(path: Path, error: sqlite3.Error) -> str:
    reason = str(error)
    if "locked" in reason:
        return f"{path} is used by another process; wait for its end, or choose another --out"
    if isinstance(error, sqlite3.OperationalError):
        return f"cannot write {path} ({reason}); free space there, or choose another --out"
    return f"{path} is damaged ({reason}); restore a copy, or remove it and ask for all answers again"
