"""Access by key: a middleware that admits requests with a key, and the limits of each key."""

import math
import os
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from pathlib import Path
from typing import Any

from fastapi import Request
from starlette.exceptions import HTTPException
from starlette.types import ASGIApp, Receive, Scope, Send

from raysum.errors import UserError
from raysum.runtime.progress import say
from raysum.runtime.storage import check_here, check_writable
from raysum.serve.config import ServeConfig
from raysum.serve.guard import LOCAL, extent, problem
from raysum.serve.keys import Key, KeyFile
from raysum.serve.reports import report_problem
from raysum.serve.request_log import request_log

OPEN = ("/", "/healthz", "/readyz", "/docs", "/openapi.json")  # paths that need no key
_CHARACTERS = 4  # characters that count as a token until the replica has counted the tokens
_current = ContextVar["Caller | None"]("caller", default=None)  # of the request that this task answers


def with_access(config: ServeConfig) -> ServeConfig:
    """Return ``config`` with absolute paths of its keys, its log and its batches.

    Raises UserError if they cannot be used, or if other machines may send requests and nothing says who.
    """
    request_log(config.log)
    if config.batches:
        check_here(Path(config.batches), "--batches")
        check_writable(Path(config.batches))
    paths = {"keys": config.keys, "log": config.log, "batches": config.batches}
    config = config.model_copy(update={name: path and os.path.abspath(path) for name, path in paths.items()})
    if config.keys:
        if all(key.revoked for key in KeyFile.read(Path(config.keys)).keys):
            say(
                f"warning: {config.keys} has no valid key, so every request gets 401; "
                f"add one with `raysum keys add NAME --file {config.keys}`"
            )
        return config
    if config.host not in LOCAL and not config.allow_anyone:
        raise UserError(
            f"other machines reach {config.host}: create a key with `raysum keys add NAME` and serve with --keys FILE, "
            "or let everyone use the server with --allow-anyone"
        )
    return config


class Allowance:
    """An allowance of so many units ``per_minute``, which refills steadily and starts full. None allows everything."""

    def __init__(self, per_minute: int | None):
        self._most = math.inf if per_minute is None else float(per_minute)
        self._left, self._at = self._most, time.monotonic()

    def take(self, units: float) -> float:
        """Take the units and return 0, or return the seconds to wait. More than a minute's units need a full budget."""
        now = time.monotonic()
        self._left = min(self._most, self._left + (now - self._at) * self._most / 60)
        self._at = now
        missing = min(units, self._most) - self._left
        if missing > 1e-6:
            return missing * 60 / self._most
        self.spend(units)
        return 0.0

    def spend(self, units: float) -> None:
        """Take the units, also more than there are; negative units are given back."""
        if self._most < math.inf:
            self._left -= units


class Caller:
    """A key with its budgets."""

    def __init__(self, key: Key):
        self.key = key
        self.requests, self.tokens = Allowance(key.requests_per_minute), Allowance(key.tokens_per_minute)


class Callers:
    """The keys of a file, which is read again whenever it changes, and their budgets in this process."""

    def __init__(self, file: str):
        self._path = Path(file)
        self._state: Any = None
        self._content: KeyFile | None = None
        self._callers: dict[str, Caller] = {}

    def find(self, key: bytes) -> Caller | None:
        """Return the caller with this key, also a revoked one. Raises UserError if the file cannot be read."""
        entry = self._current_content().find(key)
        return None if entry is None else self._of(entry)

    def named(self, name: str) -> Caller | None:
        """Return the caller of the key ``name``. Raises as :meth:`find` does."""
        entry = next((key for key in self._current_content().keys if key.name == name), None)
        return None if entry is None else self._of(entry)

    def _of(self, entry: Key) -> Caller:
        caller = self._callers.get(entry.name)
        if caller is None or caller.key != entry:  # the limits have changed
            caller = self._callers[entry.name] = Caller(entry)
        return caller

    def _current_content(self) -> KeyFile:
        try:
            status = self._path.stat()
            state = (status.st_ino, status.st_mtime_ns, status.st_size, status.st_mode)
        except OSError:
            state = None
        if state is None or state != self._state:
            self._content = None
            self._state = state
        if self._content is None:
            self._content = KeyFile.read(self._path)
        return self._content


class KeyRequired:
    """ASGI middleware that answers 401 without a valid key, and 429 beyond the limits of a key.

    If the file of keys cannot be read, nobody is admitted (503): otherwise a revoked key might still be valid.
    """

    def __init__(self, app: ASGIApp, callers: Callers):
        self.app, self._callers = app, callers

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        _current.set(None)
        if scope["type"] == "http" and scope["path"].removeprefix(scope.get("root_path", "")) not in OPEN:
            try:
                self._admit(Request(scope))
            except HTTPException as error:
                await problem(error.status_code, error.detail, dict(error.headers or {}))(scope, receive, send)
                return
        await self.app(scope, receive, send)

    def _admit(self, request: Request) -> None:
        """Make the caller the current one. Raises HTTPException 401, 429 or 503."""
        key = _key_of(request)
        with _readable():
            caller = self._callers.find(key) if key else None
        _current.set(caller)
        if caller is None or caller.key.revoked:
            missing = "a key is missing; send `Authorization: Bearer KEY`"
            reason = "this key is revoked" if caller else "this key is not valid" if key else missing
            raise HTTPException(401, reason, {"WWW-Authenticate": "Bearer"})
        if wait := caller.requests.take(1):
            raise _too_many(caller, f"{caller.key.requests_per_minute} requests", wait)


@contextmanager
def _readable() -> Iterator[None]:
    """Raises HTTPException 503 if the file of keys cannot be read in the block."""
    try:
        yield
    except UserError as error:
        report_problem(str(error))
        raise HTTPException(503, "the keys of this server cannot be read; see its log") from None


def _key_of(request: Request) -> bytes:
    """Return the key in the headers, or nothing. It is never decoded, shown or kept."""
    scheme, _, key = request.headers.get("authorization", "").partition(" ")
    if scheme.lower() != "bearer":
        key = request.headers.get("x-api-key", "")
    return key.strip().encode("latin-1")  # as the headers were decoded


@contextmanager
def paid(cluster: Mapping[str, Any]) -> Iterator[dict[str, int]]:
    """Charge the current key for a summary of the raw ``cluster``.

    The block may update the dict with ``source_tokens``, which replace the estimate. A refused request (an
    HTTPException or UserError of the block) costs no tokens. Raises HTTPException 429 beyond the key's limit.
    """
    usage: dict[str, int] = {}
    caller = _current.get()
    if caller is None:
        yield usage
        return
    estimate = math.ceil(extent(cluster["documents"])["characters"] / _CHARACTERS)
    if wait := caller.tokens.take(estimate):
        raise _too_many(caller, f"{caller.key.tokens_per_minute} tokens", wait)
    try:
        yield usage
    except (HTTPException, UserError):
        caller.tokens.spend(-estimate)
        raise
    caller.tokens.spend(usage.get("source_tokens", estimate) - estimate)


def act_as(name: str, callers: Callers | None) -> None:
    """Make the key ``name`` the current one of this task. Raises HTTPException 401 if it is revoked or removed, and 503
    if the keys cannot be read."""
    if callers is None:
        return
    with _readable():
        caller = callers.named(name)
    if caller is None or caller.key.revoked:
        raise HTTPException(401, "the key that sent this batch is revoked")
    _current.set(caller)


def caller_name() -> str:
    """Return the name of the key of the request that this task answers, or an empty text."""
    caller = _current.get()
    return caller.key.name if caller else ""


def _too_many(caller: Caller, limit: str, wait: float) -> HTTPException:
    reason = f"the key {caller.key.name} has reached its limit of {limit} per minute"
    return HTTPException(429, reason, {"Retry-After": str(max(1, math.ceil(wait)))})
