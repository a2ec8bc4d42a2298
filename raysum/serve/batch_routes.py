"""The routes of batches, and the task that summarizes them while the service has nothing else to do."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from itertools import count, islice
from typing import Any, NamedTuple

from fastapi import FastAPI, Request
from fastapi.responses import FileResponse
from starlette.exceptions import HTTPException

from raysum.errors import UserError
from raysum.serve.access import caller_name
from raysum.serve.batch_store import BatchList, BatchState, BatchStore, StoredBatch
from raysum.serve.config import Limits
from raysum.serve.guard import BATCHES, NotLoaded, Overloaded
from raysum.serve.reports import report_problem
from raysum.serve.schema import Problem
from raysum.serve.streams import fault_message

_PAUSE = 2.0  # seconds after a refusal without Retry-After
_LOADS = 3  # attempts to load a model
_LATER = 30.0  # seconds until the next attempt, if the folder of a batch could not be read or written
_RETRIED = (429, 503)  # a limit of the key, no place
_PROBLEMS: dict[int | str, dict[str, Any]] = {404: {"model": Problem, "description": "There is no such batch"}}
_UNWRITTEN: dict[str, Any] = {"model": Problem, "description": "The server cannot write its batches"}
_LINES = {"application/jsonl": {"schema": {"type": "string"}}}

Answer = Callable[[str, dict[str, Any]], Awaitable[dict[str, Any]]]  # of the name of a key and the body of a request


class Batches(NamedTuple):
    """Where batches are stored, and how many of their requests the models get at a time."""

    folder: str
    together: int


class Runner:
    """Answers the requests of all ``batches``, the oldest batch first.

    ``answer`` raises HTTPException or UserError. It continues unfinished batches when it starts.
    """

    def __init__(self, batches: Batches, answer: Answer):
        self._store, self._answer, self._together = BatchStore(batches.folder), answer, batches.together
        self._arrived, self._is_open = asyncio.Event(), asyncio.Event()
        self._asked = dict[str, set[asyncio.Task[None]]]()  # the running requests of a batch
        self._uncounted = set[str]()

    async def run(self) -> None:
        async with self._store.opened():
            self._is_open.set()
            while True:
                self._arrived.clear()
                later = [batch for batch in self._store.batches() if batch.is_running and not await self._finish(batch)]
                with suppress(asyncio.TimeoutError):
                    await asyncio.wait_for(self._arrived.wait(), _LATER if later else None)

    async def opened(self) -> BatchStore:
        """Return the batches. Raises Overloaded while another process holds them."""
        try:
            await asyncio.wait_for(self._is_open.wait(), _PAUSE)
        except asyncio.TimeoutError:  # noqa: UP041 - another class before Python 3.11
            raise Overloaded("another process of this service still holds the batches; try again later") from None
        return self._store

    def add(self) -> None:
        """Look for a new batch."""
        self._arrived.set()

    def cancel(self, batch: StoredBatch) -> None:
        if batch.is_running:
            batch.end("cancelled")
            for task in self._asked.get(batch.batch.id, ()):
                task.cancel()

    async def _finish(self, batch: StoredBatch) -> bool:
        """Return whether a batch ended; not if its folder cannot be read or written now, which is reported once."""
        try:
            if batch.batch.id in self._uncounted:
                await asyncio.to_thread(batch.recount)
                self._uncounted.remove(batch.batch.id)
            await self._answered(batch)
        except (OSError, ValueError, KeyError, UserError) as error:
            self._uncounted.add(batch.batch.id)
            report_problem(f"{batch.path} waits: {error}")
            return False
        return True

    async def _answered(self, batch: StoredBatch) -> None:
        running = self._asked[batch.batch.id] = set()
        requests = batch.missing()
        try:
            while batch.is_running:
                more = islice(requests, self._together - len(running))
                running |= {asyncio.create_task(self._ask(batch, request)) for request in more}
                if not running:
                    batch.end("completed")
                    break
                done, _ = await asyncio.wait(running, return_when=asyncio.FIRST_COMPLETED)
                for task in done:
                    if not task.cancelled():
                        task.result()
                running -= done
        finally:
            for task in running:
                task.cancel()
            await asyncio.gather(*running, return_exceptions=True)
            del self._asked[batch.batch.id]

    async def _ask(self, batch: StoredBatch, request: dict[str, Any]) -> None:
        """Write the answer to a request; one that is refused for now is repeated, but not long if it has no model."""
        for tries in count(1):
            try:
                status, body = 200, await self._answer(batch.owner, request["body"])
            except UserError as error:
                status, body = 400, {"error": str(error)}
            except HTTPException as error:
                is_hopeless = isinstance(error, NotLoaded) and tries == _LOADS
                if error.status_code in _RETRIED and not is_hopeless:
                    await asyncio.sleep(float((error.headers or {}).get("Retry-After", _PAUSE)))
                    continue
                status, body = error.status_code, {"error": str(error.detail)}
            except Exception as error:  # as the route answers a fault of ours
                status, body = 500, {"error": fault_message(error)}
            if batch.is_running:
                batch.add(request["custom_id"], status, body)
            return


def refuse_batches(api: FastAPI) -> None:
    """Let the routes of batches say how to start a service that has them."""

    @api.api_route(BATCHES, methods=["GET", "POST"], include_in_schema=False)
    @api.api_route(f"{BATCHES}/{{rest:path}}", methods=["GET", "POST"], include_in_schema=False)
    async def refuse() -> None:
        raise HTTPException(404, "this service has no batches: start it with --batches FOLDER")


def add_batches(api: FastAPI, runner: Runner, limits: Limits) -> None:
    """Add the routes of batches. A batch is only visible for the key that sent it."""

    async def found(id: str) -> StoredBatch:
        batch = (await runner.opened()).find(id)
        if batch is None or batch.owner != caller_name():
            raise HTTPException(404, f"there is no batch {id[:100]!r}")
        return batch

    @api.post(
        BATCHES,
        responses={
            413: {"model": Problem},
            507: _UNWRITTEN,
            422: {"model": Problem, "description": "A line is no request"},
        },
        openapi_extra={"requestBody": {"required": True, "content": _LINES}},
    )
    async def create_batch(request: Request) -> BatchState:
        """Accept a batch: a JSON line for each request, with `custom_id` and the `body` of a /v1/summarize request.

        The requests are answered while the service has nothing else to do, also after a restart."""
        store, new = await runner.opened(), None
        try:
            new = store.new()
            async for part in request.stream():
                await asyncio.to_thread(new.write, part)
            batch = await asyncio.to_thread(store.keep, new, caller_name(), limits.max_body)
        except BaseException as error:
            if new:
                new.remove()
            if isinstance(error, UserError):
                raise HTTPException(422, str(error)) from None
            if isinstance(error, OSError):
                raise _unwritten(error) from None
            raise
        runner.add()
        return batch.batch

    @api.get(BATCHES)
    async def list_batches() -> BatchList:
        """List the batches of this key, the newest first."""
        batches = reversed((await runner.opened()).batches())
        own = [batch.batch for batch in batches if batch.owner == caller_name()]
        return BatchList(data=own)

    @api.get(f"{BATCHES}/{{id}}", responses=_PROBLEMS)
    async def show_batch(id: str) -> BatchState:
        """Return the progress of a batch."""
        return (await found(id)).batch

    @api.get(
        f"{BATCHES}/{{id}}/results",
        response_class=FileResponse,
        responses=_PROBLEMS | {200: {"content": _LINES}},
    )
    async def show_results(id: str) -> FileResponse:
        """Return the results so far: a JSON line for each, with `custom_id` and `response` or `error`."""
        if not (results := (await found(id)).results).is_file():
            raise HTTPException(404, f"the results of batch {id} are no longer on the server's disk")
        return FileResponse(results, media_type="application/jsonl")

    @api.post(f"{BATCHES}/{{id}}/cancel", responses=_PROBLEMS | {507: _UNWRITTEN})
    async def cancel_batch(id: str) -> BatchState:
        """End a batch. The results so far stay."""
        batch = await found(id)
        try:
            runner.cancel(batch)
        except OSError as error:
            raise _unwritten(error) from None
        return batch.batch


def _unwritten(error: OSError) -> HTTPException:
    return HTTPException(507, f"the server cannot write its batches ({error.strerror}); inform its operator")


@asynccontextmanager
async def running(runner: Runner) -> AsyncIterator[None]:
    """Answer the batches during the block."""
    task = asyncio.create_task(runner.run())
    try:
        yield
    finally:
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task
