"""The events of a training, as lines of events.jsonl in its run folder: starts, checkpoints and failures."""

import time
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, Field, ValidationError

from raysum.errors import UserError
from raysum.runtime.storage import append_line, read_lines

EVENTS = "events.jsonl"
_LONGEST = 500  # characters of a message


class Event(BaseModel):
    """``time`` is in seconds since 1970. A start has one host name for each worker, a failure a message."""

    time: float = Field(ge=0, le=1e12, allow_inf_nan=False)
    event: Literal["start", "checkpoint", "failure"]
    step: int = Field(0, ge=0, le=10**15)
    hosts: list[str] = []
    message: str = ""


def add_event(folder: Path, event: str, **values: Any) -> None:
    """Append an event to the run at ``folder``. A long message is truncated."""
    message = {"message": values["message"][:_LONGEST]} if "message" in values else {}
    append_line(folder / EVENTS, {"time": time.time(), "event": event, **values, **message})


def read_events(folder: Path) -> list[Event]:
    """Return the events of the run at ``folder``; none for a run of an earlier version.

    Raises UserError if the file is damaged.
    """
    try:
        return [Event.model_validate(line) for line in read_lines(folder / EVENTS)]
    except ValidationError as error:
        place = folder / EVENTS
        raise UserError(f"{place} is damaged: {error.errors()[0]['msg']}; put back a copy, or remove it") from None
