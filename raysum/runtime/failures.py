"""Errors of tasks as values, which Ray can send."""

import pickle
import traceback
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any, NoReturn

from raysum.errors import UserError


@dataclass(frozen=True)
class Failure:
    """An error of a task. Ray cannot send an exception with invalid Unicode in its text and would wait forever."""

    message: str
    is_mistake: bool  # of the user

    @classmethod
    def of(cls, error: Exception) -> "Failure":
        is_mistake = isinstance(error, UserError)
        return cls(str(error) if is_mistake else traceback.format_exc(), is_mistake)

    @classmethod
    def in_rows(cls, items: Iterable[Any], column: str) -> Iterator[dict[str, bytes]]:
        """Yield rows with the pickled ``items``, or with the Failure that ends them.

        No exception leaves a task of Ray Data, which would repeat it.
        """
        try:
            for item in items:
                yield {column: pickle.dumps(item)}
        except Exception as error:
            yield {column: pickle.dumps(cls.of(error))}

    def throw(self) -> NoReturn:
        raise UserError(self.message) if self.is_mistake else RuntimeError(f"a task failed:\n{self.message}")


def unpickled(content: bytes) -> Any:
    """Return the item that our workers pickled. Raises the error of a Failure."""
    item = pickle.loads(content)
    if isinstance(item, Failure):
        item.throw()
    return item
