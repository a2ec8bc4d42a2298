"""The batches of a service on its disk: a folder each, with the requests, the results, and the state.

A result counts when its line is complete, so a killed service continues with the requests that have none.
"""

import asyncio
import json
import os
import re
import secrets
import shutil
import time
from codecs import BOM_UTF8
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, Field, ValidationError

from raysum.errors import UserError
from raysum.runtime.lock import LOCK, folder_lock, is_held
from raysum.runtime.storage import append_line, keep_lines, read_lines, write_text
from raysum.serve.reports import report_problem
from raysum.sources.record import Rejected, parse_json

_REQUESTS, _RESULTS, _STATE = "requests.jsonl", "results.jsonl", "batch.json"
_ID = re.compile(r"batch_[0-9a-f]{16}")
_NEW = ".new"  # suffix of a folder, while the requests arrive
_LOOK = 0.5  # seconds
_EXAMPLE = '{"custom_id": "1", "body": {"documents": [...]}}'


class RequestCounts(BaseModel):
    total: int
    completed: int = Field(0, description="requests with a summary")
    failed: int = Field(0, description="requests with an error")


class BatchState(BaseModel):
    """A batch of requests."""

    id: str
    object: Literal["batch"] = "batch"
    status: Literal["in_progress", "completed", "cancelled"] = "in_progress"
    created_at: int = Field(description="seconds since 1970")
    ended_at: int | None = Field(None, description="seconds since 1970")
    request_counts: RequestCounts


class BatchList(BaseModel):
    object: Literal["list"] = "list"
    data: list[BatchState]


class _State(BaseModel):
    owner: str  # name of the key that sent it, or an empty text
    batch: BatchState

    def write(self, folder: Path) -> None:
        write_text(folder / _STATE, self.model_dump_json())


class StoredBatch:
    """A batch in its folder, ``path``."""

    def __init__(self, path: Path):
        """Read the batch. Raises OSError, ValueError or UserError if a file of it is missing or damaged."""
        self.path = path
        state = _State.model_validate_json((path / _STATE).read_bytes())
        self.owner, self.batch = state.owner, state.batch
        self._done = set[str]()
        if self.is_running:
            self.recount()

    @property
    def is_running(self) -> bool:
        return self.batch.status == "in_progress"

    @property
    def results(self) -> Path:
        return self.path / _RESULTS

    def missing(self) -> Iterator[dict[str, Any]]:
        """Yield the requests without a result, in their order."""
        with (self.path / _REQUESTS).open("rb") as lines:
            for line in lines:
                if line.strip() and (request := json.loads(line))["custom_id"] not in self._done:
                    yield request

    def add(self, custom_id: str, status: int, body: dict[str, Any]) -> None:
        """Append the answer to a request: its ``body`` has an ``error`` unless the ``status`` is 200."""
        is_answered = status == 200
        error = None if is_answered else {"status": status, "message": body["error"]}
        line = {"custom_id": custom_id, "error": error, "response": body if is_answered else None}
        append_line(self.results, line)
        self._count(custom_id, is_answered)

    def end(self, status: Literal["completed", "cancelled"]) -> None:
        """Write the state. Raises UserError if requests were lost, so that the batch cannot be completed."""
        counts = self.batch.request_counts
        if status == "completed" and counts.completed + counts.failed < counts.total:
            raise UserError(f"{self.path / _REQUESTS} has lost lines")
        changes = {"status": status, "ended_at": int(time.time())}
        ended = self.batch.model_copy(update=changes)
        _State(owner=self.owner, batch=ended).write(self.path)
        self.batch = ended

    def recount(self) -> None:
        """Count the results, and remove lines that are none, such as an incomplete one of a killed service."""
        counts, self._done = self.batch.request_counts, set()
        counts.completed = counts.failed = 0
        self.results.touch()
        keep_lines(self.results, lambda line: isinstance(line.get("custom_id"), str) and "error" in line)
        for result in read_lines(self.results):
            self._count(result["custom_id"], result["error"] is None)

    def _count(self, custom_id: str, is_answered: bool) -> None:
        if custom_id in self._done:
            return
        self._done.add(custom_id)
        self.batch.request_counts.completed += is_answered
        self.batch.request_counts.failed += not is_answered


class BatchStore:
    """The batches in ``folder``."""

    def __init__(self, folder: str):
        self._folder = Path(folder)
        self._batches = dict[str, StoredBatch]()

    @asynccontextmanager
    async def opened(self) -> AsyncIterator[None]:
        """Read the batches and hold them during the block, as soon as no other process does: there are two while a
        service is replaced. Requests that a killed service had not received to their end are removed."""
        while is_held(self._folder / LOCK):
            await asyncio.sleep(_LOOK)
        with folder_lock(self._folder, self._folder / LOCK):
            for path in self._folder.glob(f"batch_*{_NEW}"):
                shutil.rmtree(path, ignore_errors=True)
            for path in self._folder.iterdir():
                if _ID.fullmatch(path.name) and path.name not in self._batches:
                    try:
                        self._batches[path.name] = StoredBatch(path)
                    except (OSError, ValueError, UserError) as error:
                        report_problem(f"{path} is left out, because it is damaged ({error}): restore or remove it")
            yield

    def batches(self) -> list[StoredBatch]:
        """Return all batches, the oldest first."""
        return sorted(self._batches.values(), key=lambda batch: (batch.batch.created_at, batch.batch.id))

    def find(self, id: str) -> StoredBatch | None:
        return self._batches.get(id)

    def new(self) -> "NewBatch":
        return NewBatch(self._folder / f"batch_{secrets.token_hex(8)}{_NEW}")

    def keep(self, new: "NewBatch", owner: str, longest: int) -> StoredBatch:
        """Return the batch of ``owner`` that has arrived. Raises UserError with the first line that is no request."""
        batch = StoredBatch(new.completed(owner, longest))
        self._batches[batch.batch.id] = batch
        return batch


class NewBatch:
    """A batch that arrives."""

    def __init__(self, path: Path):
        self._path = path
        path.mkdir(parents=True)
        self._file = (path / _REQUESTS).open("wb")

    def write(self, part: bytes) -> None:
        self._file.write(part)

    def remove(self) -> None:
        self._file.close()
        shutil.rmtree(self._path, ignore_errors=True)

    def completed(self, owner: str, longest: int) -> Path:
        """Check the requests, each of at most ``longest`` bytes, and return the folder. Raises UserError."""
        self._file.flush()
        os.fsync(self._file.fileno())
        self._file.close()
        ids = set[str]()
        with (self._path / _REQUESTS).open("rb") as lines:
            for number, line in enumerate(iter(lambda: lines.readline(longest + 1), b""), 1):
                if len(line) > longest:
                    raise UserError(f"line {number} is larger than {longest} bytes, the server's --max-body")
                if not line.strip():
                    continue
                if (custom_id := _custom_id(line, number)) in ids:
                    raise UserError(f"line {number} has the custom_id {custom_id!r} of an earlier line")
                ids.add(custom_id)
        if not ids:
            raise UserError(f"the body has no requests: send a line for each, {_EXAMPLE}")
        path = self._path.with_suffix("")
        counts = RequestCounts(total=len(ids))
        batch = BatchState(id=path.name, created_at=int(time.time()), request_counts=counts)
        _State(owner=owner, batch=batch).write(self._path)
        return self._path.rename(path)


class _Request(BaseModel):
    custom_id: str = Field(min_length=1, max_length=512)
    body: dict[str, Any]


def _custom_id(line: bytes, number: int) -> str:
    try:
        found = parse_json(line.decode())
        if isinstance(found, dict):
            return _Request.model_validate(found, strict=True).custom_id
        reason = "not a JSON object"
    except ValidationError as error:
        (first, *_) = error.errors()
        reason = f"{'.'.join(map(str, first['loc']))}: {first['msg']}"
    except UnicodeDecodeError:
        reason = "not UTF-8"
    except (ValueError, Rejected) as error:
        reason = "not JSON: remove the byte-order mark" if line.startswith(BOM_UTF8) else f"not JSON ({error})"
    raise UserError(f"line {number}: {reason}; write {_EXAMPLE}")
