"""The setting ``train.workers``: a number, or a range such as 2..8 for elastic training."""

import re
from typing import Annotated, Any

from pydantic import PlainSerializer, PlainValidator, WithJsonSchema

_MOST = 100_000
_NUMBER = {"type": "integer", "minimum": 0, "maximum": _MOST}
_RANGE = re.compile(r"(\d{1,9})\.\.(\d{1,9})")


class Workers(int):
    """A number of workers, or a range: its value is the largest number, and ``least`` the smallest."""

    least: int

    def __new__(cls, most: int, least: int | None = None) -> "Workers":
        workers = super().__new__(cls, most)
        workers.least = most if least is None else least
        return workers

    def __getnewargs__(self) -> tuple[int, int]:  # type: ignore[override]
        return int(self), self.least

    @property
    def is_range(self) -> bool:
        return self.least < self

    def counts(self, micro_batches: int) -> list[int]:
        """Return the numbers of workers that get equally many of the ``micro_batches`` of a step, largest first."""
        return [count for count in range(int(self), self.least - 1, -1) if count and micro_batches % count == 0]


def _parse(value: Any) -> Workers:
    """Return a number or a text such as "2..8" as workers."""
    if isinstance(value, Workers):
        return value
    if isinstance(value, str) and (found := _RANGE.fullmatch(value)):
        least, most = map(int, found.groups())
        if not 1 <= least < most:
            raise ValueError("a range of workers is SMALLEST..LARGEST, such as 2..8, with at least 1")
    else:
        try:
            least = most = int(value) if isinstance(value, str) or type(value) is int else -1
        except ValueError:
            least = most = -1
    if not 0 <= least <= most <= _MOST:
        raise ValueError(f"must be a number of workers from 0 to {_MOST}, or a range such as 2..8")
    return Workers(most, least)


WorkerRange = Annotated[
    Workers,
    PlainValidator(_parse),
    PlainSerializer(lambda value: f"{value.least}..{int(value)}" if value.is_range else int(value)),
    WithJsonSchema({"anyOf": [_NUMBER, {"type": "string", "pattern": f"^{_RANGE.pattern}$"}]}),
]
