"""The events of a request as an answer: refused before the first one, and failed by an event after it."""

from collections.abc import AsyncGenerator, AsyncIterator

from starlette.exceptions import HTTPException

from raysum.serve.events import Event, failed
from raysum.serve.guard import refused

NO_STORE = {"Cache-Control": "no-store", "X-Accel-Buffering": "no"}  # gateways must not collect a stream


async def accepted(events: AsyncIterator[Event]) -> AsyncGenerator[Event, None]:
    """Return the events once the first one has arrived. Raises HTTPException if the request is refused."""
    first = await anext(events)
    if first["event"] == "error":
        raise refused(first["data"])
    return _chained(first, events)


async def _chained(first: Event, events: AsyncIterator[Event]) -> AsyncGenerator[Event, None]:
    """Yield ``first`` and ``events``; an exception becomes an error event, because the status is already sent."""
    yield first
    try:
        async for event in events:
            yield event
    except HTTPException as error:
        yield failed(str(error.detail), error.status_code)
    except Exception as error:
        yield failed(fault_message(error), 500)


def fault_message(error: Exception) -> str:
    """Return the message of an error of ours."""
    cause = getattr(error, "cause", None) or error  # Ray wraps errors of replicas
    return f"internal error ({type(cause).__name__}); see the server's log"
